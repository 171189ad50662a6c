"""The fuzz target over its kept corpus, whole and cut and flipped, without the fuzzer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.fuzz.decode import one as one_input

from medevac.decode import stream

CORPUS = sorted((Path(__file__).parents[2] / "fuzz" / "corpus").iterdir())


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_corpus(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BLOCK", stream.BLOCK)  # the target sets its own
    data = path.read_bytes()
    one_input(data)
    rng = random.Random(path.name)
    for _ in range(20):
        broken = bytearray(data)
        for _ in range(3):
            broken[rng.randrange(1, len(broken))] = rng.randrange(256)
        one_input(bytes(broken[: rng.randrange(1, len(broken) + 1)]))
