"""Bits flip in one rank's memory of a real DDP and a real HSDP job: found, named, undone; the right part is blamed."""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.runs import ROOT, Run
from tests.e2e.test_torch_ddp import launch

from medevac.core.actions import Isolate
from medevac.core.events import AttemptEnded, AttemptStarted, CorruptionSeen
from medevac.core.seal import LINEAGE
from medevac.torch.replay import FILE, read
from medevac.torch.stop import HARDWARE

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("torch"), pytest.mark.timeout(400)]

JOB = Path(__file__).with_name("replica_job.py")
STORIES = Path(__file__).parents[1] / "unit" / "torch" / "replica_ranks.py"
EXAMPLES = {"PYTHONPATH": os.pathsep.join([str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])}
RANKS = {"ddp": 3, "hsdp": 4}
EVERY, AT, VICTIM = 6, 10, 1
LIMIT_S = 360.0
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@functools.cache
def undisturbed(kind: str) -> str:
    """The parameters of the same training without Medevac around it, and without a fault."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(JOB), kind, "none", "--step-seconds", "0", "--checkpoint-dir", f"{folder}/ck"]
        ended = launch(*command, ranks=RANKS[kind], **EXAMPLES)
        assert [code for code, _ in ended] == [0] * RANKS[kind], ended
        return str(json.loads(Path(folder, "ck", "final.json").read_text())["parameters"])


UNHURRIED = """
[hang]
floor_s = 60.0
"""


class Corrupted(Run):
    """`medevac run` of the job with its fault, on six simulated GPUs. A slow machine is waited for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        policy = folder / "policy.toml"
        policy.write_text(policy.read_text().partition("[hang]")[0] + UNHURRIED)

    def ended(self) -> int:
        assert self.process is not None
        return self.process.wait(LIMIT_S)

    def hit(self, kind: str, fault: str, where: str, *more: str) -> None:
        self.ranks = RANKS[kind]
        self.env |= EXAMPLES
        flips = ["--where", where, "--rank", str(VICTIM), "--at", str(AT), "--every", str(EVERY)]
        self.train = [sys.executable, str(JOB), kind, fault, *flips, *more]
        self.start()

    def told(self) -> str:
        logs = sorted(self.state.glob("jobs/*/attempts/*/rank*.log"))
        return self.printed() + "".join(f"\n== {log}\n{log.read_text()[-3000:]}" for log in logs)

    def outcomes(self) -> list[str]:
        return [event.outcome for event in self.events(CorruptionSeen)]

    def isolated(self) -> set[str]:
        return {action.gpu for action in self.actions() if isinstance(action, Isolate)}

    def victim(self) -> str:
        """The GPU of the first attempt's rank that is hit."""
        return self.events(AttemptStarted)[0].ranks[VICTIM].gpus[0]

    def found_in_time(self, where: str) -> None:
        """After at most N steps, as that tensor."""
        first = self.events(CorruptionSeen)[0]
        assert first.since <= AT < first.step <= AT + EVERY, first
        assert where in first.tensors, first


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Corrupted]:
    made = Corrupted(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("kind", RANKS)
def test_a_gpu_that_flips_bits_each_time_is_isolated_and_the_model_is_not_touched(run: Corrupted, kind: str) -> None:
    run.hit(kind, "persistent", "0.weight", "--no-check-at-save")
    assert run.ended() == 0, run.told()
    assert run.outcomes() == ["found", "again", "hardware"], run.told()
    run.found_in_time("0.weight")
    again = run.events(CorruptionSeen)[1]
    assert (again.rank, again.gpu) == (VICTIM, run.victim()), run.told()
    assert run.isolated() == {run.victim()}, run.told()
    first, second = run.events(AttemptEnded)
    assert {(exit_.rank, exit_.code) for exit_ in first.exits if exit_.code == HARDWARE} == {(VICTIM, HARDWARE)}
    assert second.code == 0
    assert run.victim() not in {gpu for place in run.events(AttemptStarted)[1].ranks for gpu in place.gpus}
    assert run.parameters() == undisturbed(kind), run.told()
    assert condemned(run) == {8}, "the one that was saved between the last agreement (6) and the finding (12)"


def condemned(run: Corrupted) -> set[int]:
    lines = (run.checkpoints / LINEAGE).read_text().splitlines()
    return {line["step"] for line in map(json.loads, lines) if line["state"] == "condemned"}


def test_a_bit_that_flips_once_in_the_optimizer_is_undone_in_place_and_nothing_is_isolated(run: Corrupted) -> None:
    run.hit("ddp", "transient", "2.weight/exp_avg_sq")
    assert run.ended() == 0, run.told()
    assert run.outcomes() == ["found", "transient"], run.told()
    run.found_in_time("2.weight/exp_avg_sq")  # and the parameter, which the next update has spoilt
    told = run.events(CorruptionSeen)[-1]
    assert (told.rank, told.gpu) == (VICTIM, run.victim())
    assert not run.isolated()
    assert len(run.events(AttemptEnded)) == 1
    assert run.parameters() == undisturbed("ddp"), run.told()


def test_a_rank_that_is_wrong_wherever_it_runs_is_software_and_no_hardware_is_blamed(run: Corrupted) -> None:
    run.hit("ddp", "software", "0.bias")
    assert run.ended() != 0, run.told()
    assert run.outcomes() == ["found", "again", "software"], run.told()
    assert not run.isolated()
    first, second = (event.ranks[VICTIM].gpus for event in run.events(AttemptStarted))
    assert first != second, "it was tried on one part only"
    assert read(run.checkpoints).closed[-1].outcome == "software", FILE


def stories(ranks: int, *names: str) -> list[dict[str, Any]]:
    """What each rank was told."""
    ended = launch(str(STORIES), *names, ranks=ranks)
    assert [code for code, _ in ended] == [0] * ranks, ended
    return [json.loads(next(line for line in out.splitlines() if line.startswith("{"))) for _, out in ended]


def test_a_majority_names_the_rank_and_what_ranks_have_of_their_own_is_no_alarm() -> None:
    """Dropout and batch statistics by rank, accumulation, a parameter and optimizer state of one rank alone."""
    for said in stories(3, "ddp", "left_out"):
        assert said["ddp"]["clean"] == [None] * 10
        assert [finding[:3] for finding in said["ddp"]["seen"]] == [["roll-back", [2], 9]] * 3
        for name, finding in zip(("3.weight", "0.bias/exp_avg", "0.weight/step"), said["ddp"]["seen"], strict=True):
            assert f" in {name}, " in finding[3]
        assert said["ddp"]["after"] is None
        warned = said["left_out"]["first"]
        assert warned == ["warn", [], None, "not on all replicas, so not compared: 3.weight/own"]
        assert said["left_out"]["second"] is None


def test_only_what_a_mesh_replicates_is_compared() -> None:
    for rank, said in enumerate(stories(4, "hsdp", "sharded", "tensor_parallel")):
        assert said["hsdp"]["ranks"] == [[rank % 2, rank % 2 + 2]]
        assert said["hsdp"]["clean"] is None
        assert said["hsdp"]["seen"][:3] == ["roll-back", [], 1]
        assert "3.weight" in said["hsdp"]["seen"][3]
        assert "no majority, so no rank can be named yet" in said["hsdp"]["seen"][3]
        assert said["sharded"] == {"clean": None, "copies": 0}
        assert set(said["tensor_parallel"]["names"]) == {"2.bias", *(f"2.bias/{one}" for one in MOMENTS)}
        assert said["tensor_parallel"]["clean"] is None
        assert "2.bias/exp_avg" in said["tensor_parallel"]["seen"][3]
