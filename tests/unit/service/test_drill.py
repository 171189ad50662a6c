"""`medevac drill` hurts a playground, and nothing else."""

from __future__ import annotations

import json
import math
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from medevac.cli.main import main
from medevac.decode.context import Context
from medevac.decode.lines import decode_line


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mem").mkdir()
    said = {
        "conf": f"{tmp_path}/slurm.conf",
        "nodes": ["node0", "node1"],
        "kernel_logs": f"{tmp_path}/{{node}}.log",
        "pci": ["0000:1b:00.0", "0000:3b:00.0"],
        "memory": f"{tmp_path}/mem",
    }
    (tmp_path / "playground.json").write_text(json.dumps(said))
    monkeypatch.setenv("MEDEVAC_PLAYGROUND", str(tmp_path))
    return tmp_path


@pytest.fixture
def rank(ground: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is rank 2 of the playground's training."""
    env = {"SLURM_CONF": f"{ground}/slurm.conf", "RANK": "2"}
    code = "import sys, time; print(1, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-S", "-c", code], env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield process
        process.kill()


def test_a_line_in_a_kernel_log(ground: Path) -> None:
    assert main(["drill", "xid-line", "node1", "--gpu", "1"]) == 0
    fault = decode_line((ground / "node1.log").read_bytes().strip(), Context(reference=0.0, node="node1"))
    assert fault
    assert (fault.code, fault.pci, fault.node) == (79, "0000:3b:00.0", "node1")
    assert main(["drill", "xid-line", "node9"]) == 2
    assert main(["drill", "xid-line", "node1", "--gpu", "2"]) == 2


def test_a_killed_rank(rank: subprocess.Popen[bytes]) -> None:
    assert main(["drill", "kill-rank", "1"]) == 2
    assert main(["drill", "kill-rank", "2"]) == 0
    assert rank.wait(30) == -signal.SIGKILL


def test_a_stopped_rank(rank: subprocess.Popen[bytes]) -> None:
    assert main(["drill", "stop-rank", "2"]) == 0
    _, status = os.waitpid(rank.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def test_a_parameter_that_is_no_number(ground: Path) -> None:
    assert main(["drill", "nan"]) == 2
    (ground / "mem" / "rank0.bin").write_bytes(struct.pack("<2f", 1.0, 2.0))
    assert main(["drill", "nan"]) == 0
    first, second = struct.unpack("<2f", (ground / "mem" / "rank0.bin").read_bytes())
    assert math.isnan(first)
    assert second == 2.0


def test_only_on_a_playground(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MEDEVAC_PLAYGROUND", raising=False)
    assert main(["drill", "nan"]) == 2
    assert main(["drill", "nan", "--playground", str(tmp_path)]) == 2
    assert "drills are for one only" in capsys.readouterr().err
