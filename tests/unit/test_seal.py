"""The seal's format: what is written reads back, and nothing in it can point outside of its folder."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medevac.core.events import SealRank
from medevac.core.seal import Seal, SealedFile, decode_seal, encode_seal, step_folder, step_of

SEAL = Seal(
    job="j",
    attempt=2,
    step=40,
    parent=30,
    at=1700000000.5,
    ranks=(SealRank(rank=0, node="node1", gpu_uuid="GPU-1", pci="0000:3b:00.0", ecc=0),),
    files={
        "model.npy": SealedFile(size=3, hash="xxh3:" + "0" * 16),
        "a b/ü.pt": SealedFile(size=0, hash="sha256:" + "f" * 64),
    },
)


def test_a_seal_reads_back_as_written() -> None:
    assert decode_seal(encode_seal(SEAL)) == SEAL
    assert msgspec.json.decode(encode_seal(SEAL))["schema"] == 1


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "a//b", "", ".", "a/.", "x\0y", "medevac.json"])
def test_a_name_that_leaves_the_folder_is_refused(name: str) -> None:
    seal = msgspec.structs.replace(SEAL, files={name: SealedFile(size=1, hash="xxh3:" + "0" * 16)})
    with pytest.raises(ValueError, match=r"folder|itself"):
        decode_seal(encode_seal(seal))


@pytest.mark.parametrize("digest", ["", "xxh3:", "xxh3:zz", "md5:" + "0" * 32, "sha256:" + "0" * 63])
def test_an_unknown_hash_is_refused(digest: str) -> None:
    seal = msgspec.structs.replace(SEAL, files={"x": SealedFile(size=1, hash=digest)})
    with pytest.raises(ValueError, match="hash"):
        decode_seal(encode_seal(seal))


def test_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema"):
        decode_seal(encode_seal(SEAL).replace(b'"schema": 1', b'"schema": 2'))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_seal_or_a_value_error(raw: bytes) -> None:
    try:
        assert decode_seal(raw).schema == 1
    except ValueError as error:
        assert str(error)  # noqa: PT017 (either outcome is right; a crash is not)


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=10**12))
def test_a_step_names_its_folder(step: int) -> None:
    assert step_of(step_folder(step)) == step


@pytest.mark.parametrize(
    "name",
    [
        "step_",
        "step_1",
        "step_0000004x",
        "step_000000400",
        "step_00000040.tmp",
        "step_\N{ARABIC-INDIC DIGIT ONE}0000000",
        "latest_clean",
    ],
)
def test_other_names_are_no_step(name: str) -> None:
    assert step_of(name) is None
