"""A sealed checkpoint is there whole or not at all, whatever happens while it is saved."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from medevac.client import lineage
from medevac.client import seal as sealing
from medevac.client.seal import newest, sealed, sweep
from medevac.core.events import SealRank
from medevac.core.seal import Seal, decode_seal

RANKS = (SealRank(rank=0, node="node1", gpu_uuid="GPU-1", pci="0000:3b:00.0", ecc=2),)


def draft(step: int) -> Seal:
    return Seal(job="j", attempt=2, step=step, parent=20, ranks=RANKS)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def save(folder: Path, step: int, text: str) -> None:
    with sealed(folder, draft(step)) as staging:
        (staging / "shards").mkdir()
        (staging / "shards" / "0.bin").write_text(text)
        (staging / "state.json").write_text("{}")


def test_the_seal_names_each_file_with_size_and_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "HASH", "sha256")
    monkeypatch.setattr(sealing, "_new_digest", hashlib.sha256)
    save(tmp_path, 40, "hello")
    assert names(tmp_path) == ["step_00000040"]
    made = decode_seal((tmp_path / "step_00000040" / "medevac.json").read_bytes())
    assert (made.job, made.attempt, made.step, made.parent, made.ranks) == ("j", 2, 40, 20, RANKS)
    assert made.at > 0
    assert set(made.files) == {"shards/0.bin", "state.json"}
    assert made.files["shards/0.bin"].size == 5
    assert made.files["shards/0.bin"].hash == "sha256:" + hashlib.sha256(b"hello").hexdigest()


def test_the_hash_is_xxh3_where_there_is_xxhash(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sealing._hash()[0] == "xxh3"
    monkeypatch.setitem(sys.modules, "xxhash", None)
    assert sealing._hash() == ("sha256", hashlib.sha256)


def test_a_save_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), sealed(tmp_path, draft(40)) as staging:
        (staging / "no such folder" / "x").write_text("x")
    assert names(tmp_path) == []


def test_a_step_that_is_saved_again_replaces_the_old_one(tmp_path: Path) -> None:
    save(tmp_path, 40, "old")
    save(tmp_path, 40, "new")
    assert names(tmp_path) == ["step_00000040"]
    assert (tmp_path / "step_00000040" / "shards" / "0.bin").read_text() == "new"


def test_a_save_killed_on_its_way_leaves_no_step(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from medevac.client.seal import *;"
        "from medevac.core.seal import Seal\n"
        "with sealed(Path(sys.argv[1]), Seal(job='j', attempt=1, step=60)) as staging:\n"
        "    (staging / 'x').write_text('half'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    save(tmp_path, 40, "whole")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert newest(tmp_path) == tmp_path / "step_00000040"
    sweep(tmp_path)
    assert names(tmp_path) == ["step_00000040"]


def test_the_newest_is_the_highest_step(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    assert newest(tmp_path / "none") is None
    for step in (100, 20, 9):
        save(tmp_path, step, "x")
    (tmp_path / "step_999").mkdir()
    (tmp_path / "latest_clean").symlink_to("step_00000020")
    assert newest(tmp_path) == tmp_path / "step_00000100"


def test_what_continued_a_suspect_one_stays_suspect_when_that_is_sealed_anew(tmp_path: Path) -> None:
    for step, parent in ((20, None), (40, 20), (60, 40), (80, 60)):
        with sealed(tmp_path, msgspec.structs.replace(draft(step), parent=parent)) as staging:
            (staging / "x").write_text("x")
    lineage.judge(tmp_path, [40], "suspect", "a test")
    save(tmp_path, 40, "done again from step 20")
    states = {known.step: known.state for known in lineage.survey(tmp_path)}
    assert states == {20: "clean", 40: "clean", 60: "suspect", 80: "suspect"}


def test_doubt_that_comes_while_a_checkpoint_is_written_is_on_it(tmp_path: Path) -> None:
    with sealed(tmp_path, draft(40)) as staging:
        (staging / "x").write_text("x")
        lineage.judge(tmp_path, [40], "suspect", "an uncorrected error")
    assert [known.state for known in lineage.survey(tmp_path)] == ["suspect"]
