"""What the HealthCheckProgram does to a node on a fresh fault."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "deploy" / "slurm" / "health-check"


def ordered(folder: Path, state: str, code: int) -> str:
    """The words that scontrol was given, with a node in this state and a node-check that ends with this code."""
    said = folder / "said"
    for name, script in (
        ("medevac", f"echo 'node3: fell off the bus'; exit {code}"),
        ("sinfo", f"echo {state}"),
        ("scontrol", f'echo "$@" >> {said}'),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    env = {"PATH": f"{folder}:/usr/bin:/bin", "SLURMD_NODENAME": "node3"}
    subprocess.run(["sh", str(PROGRAM)], env=env, check=True, timeout=60)
    return said.read_text() if said.exists() else ""


@pytest.mark.parametrize("state", ["idle", "mixed", "allocated"])
def test_a_node_in_service_is_drained(tmp_path: Path, state: str) -> None:
    assert ordered(tmp_path, state, 1) == (
        "update NodeName=node3 State=DRAIN Reason=node-check: node3: fell off the bus\n"
    )


@pytest.mark.parametrize("state", ["drained", "draining", "down", "down*"])
def test_a_node_that_is_out_keeps_its_reason(tmp_path: Path, state: str) -> None:
    assert ordered(tmp_path, state, 1) == ""


@pytest.mark.parametrize("code", [0, 2, 3, 124, 127])
def test_what_is_not_known_drains_nothing(tmp_path: Path, code: int) -> None:
    assert ordered(tmp_path, "idle", code) == ""
