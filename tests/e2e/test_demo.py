"""The demo for real: five seeds, the no-fault, the decoy and monitor mode; `make soak` runs all fifty."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from medevac.sim.storm import Storm

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 400.0
SEEDS = (0, 1, 3, 5, 7)
LONG = [pytest.param(seed, marks=pytest.mark.soak) for seed in range(50) if seed not in SEEDS]

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(LIMIT_S + 30)]


def demo(out: Path, *flags: str) -> dict[str, Any]:
    """Run `examples/demo.py` without the contrast; what it prints as one object."""
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), "--no-contrast", "--json", "--out", str(out), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.stdout, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 0) == result["recovered"], done.stderr[-3000:]
    return result


@pytest.mark.parametrize("seed", [*SEEDS, *LONG])
def test_the_storm_is_survived(seed: int, tmp_path: Path) -> None:
    storm = Storm.plan(seed)
    result = demo(tmp_path / "demo", "--seed", str(seed))
    assert result["recovered"]
    assert result["parameters"] == result["undisturbed"]

    run = result["run"]
    assert run["outcome"] == "recovered"
    states = {gpu["uuid"]: gpu["state"] for gpu in run["devices"] if gpu["state"] != "healthy"}
    assert states == {gpu: "isolated" if gpu == storm.victim else "soft-drained" for gpu in storm.stormy}
    (incident,) = run["incidents"]
    assert incident["severity"] == "critical"
    assert storm.rack in incident["probable_cause"]
    last = run["attempts"][-1]
    assert not {gpu for rank in last["ranks"] for gpu in rank["gpus"]} & set(storm.stormy)
    assert (tmp_path / "demo" / "story.html").stat().st_size > 10_000


def test_without_a_fault_nothing_is_done(tmp_path: Path) -> None:
    result = demo(tmp_path / "demo", "--seed", "2", "--no-fault")
    assert result["recovered"]
    assert result["parameters"] == result["undisturbed"]
    assert len(result["run"]["attempts"]) == 1
    assert result["run"]["incidents"] == []


def test_a_fault_beside_the_job_leaves_the_job_alone(tmp_path: Path) -> None:
    result = demo(tmp_path / "demo", "--seed", "3", "--decoy")
    assert result["recovered"]
    assert len(result["run"]["attempts"]) == 1
    out = [gpu["uuid"] for gpu in result["run"]["devices"] if gpu["state"] != "healthy"]
    assert out == [Storm.plan(3, fault=False, decoy=True).decoy]


def test_monitor_mode_touches_nothing(tmp_path: Path) -> None:
    """The job runs into NaN, and what would have been done stands in the story."""
    result = demo(tmp_path / "demo", "--seed", "4", "--monitor")
    assert not result["recovered"]
    assert not result["finite"]
    assert {gpu["state"] for gpu in result["run"]["devices"]} == {"healthy"}
    assert result["run"]["held"]
