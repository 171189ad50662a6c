"""A real PyTorch job that goes wrong in eight ways, each named right, end to end through `medevac run`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.runs import JOB, Run

from medevac.adapters.stacks import program
from medevac.core.decision import Finding
from medevac.core.diagnose_case import Diagnosis
from medevac.core.events import AttemptEnded, AttemptExamined, StepReported

pytestmark = pytest.mark.e2e

DDP_JOB = Path(__file__).with_name("ddp_job.py")
RANKS = 3
CULPRIT = 2
SOON = 12
"""The step at which it goes wrong: a hang limit is known from the tenth on."""

Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path, need: Callable[..., None]) -> Iterator[Start]:
    need("torch")
    run = Run(tmp_path, ranks=RANKS)
    run.env = {"GLOO_SOCKET_IFNAME": "lo"}

    def begin(fault: str, *options: str, at: int = SOON, policy: str = "") -> Run:
        with (tmp_path / "policy.toml").open("a") as out:
            out.write(policy)
        run.train = [sys.executable, str(DDP_JOB), fault, str(CULPRIT), str(at), *options]
        run.start()
        return run

    yield begin
    run.close()


def diagnosis(run: Run) -> Diagnosis:
    """Why the first attempt ended."""
    run.until(lambda: any(d.diagnoses for d in run.decisions()), "diagnosed")
    return next(d.diagnoses[0].verdict for d in run.decisions() if d.diagnoses)


def findings(run: Run, rule: str) -> list[Finding]:
    return [f for d in run.decisions() for f in d.findings if f.rule == rule]


def trains(run: Run, steps: int = SOON) -> None:
    run.until(lambda: any(event.step >= steps for event in run.events(StepReported)), f"step {steps}")


def test_a_killed_rank(start: Start) -> None:
    run = start("none")
    trains(run)
    os.kill(run.rank_pid(CULPRIT), signal.SIGKILL)
    said = diagnosis(run)
    assert (said.cause, said.symptom) == ("unknown", "crash")
    assert (said.suspects[0].rank, said.suspects[0].node) == (CULPRIT, node_of(run, CULPRIT))
    assert "signal 9" in said.suspects[0].why


@pytest.mark.parametrize("options", [(), ("--silent",)], ids=["heartbeats", "silent"])
def test_a_stopped_rank_is_found_by_its_process(start: Start, options: tuple[str, ...]) -> None:
    run = start("none", *options)
    trains(run, 2 * SOON)
    os.kill(run.rank_pid(CULPRIT), signal.SIGSTOP)
    said = diagnosis(run)
    assert (said.cause, said.symptom) == ("unknown", "hang")
    assert (said.suspects[0].rank, said.suspects[0].node) == (CULPRIT, node_of(run, CULPRIT))
    (seen,) = run.events(AttemptExamined)
    assert [clue.rank for clue in seen.clues] == [CULPRIT]
    assert [end.why for end in run.events(AttemptEnded)] == ["stopped"]


def test_a_rank_that_waits_for_nothing_is_found_by_its_stack(start: Start, need: Callable[..., None]) -> None:
    need("py-spy", present=program() is not None)
    run = start("stuck", at=2 * SOON, policy="stacks = true\npatience_s = 1.0\n")
    said = diagnosis(run)
    assert (said.cause, said.symptom) == ("unknown", "hang")
    assert said.suspects[0].rank == CULPRIT
    clues = [clue for event in run.events(AttemptExamined) for clue in event.clues]
    assert {(clue.signature, clue.rank) for clue in clues} == {("stack-outside", CULPRIT)}
    assert "wait_for_nothing (ddp_job.py:" in clues[0].text


def test_a_slow_rank_is_named_while_it_runs(start: Start) -> None:
    run = start("slow", at=90)
    run.until(lambda: bool(findings(run, "straggler")), "a straggler")
    found = findings(run, "straggler")[0]
    assert f"rank {CULPRIT} on {node_of(run, CULPRIT)}" in found.meaning
    assert (found.part.domain, found.part.name) == ("job", JOB)
    assert run.attempt().number == 1


def test_without_heartbeats_a_slow_rank_is_a_slow_job(start: Start) -> None:
    run = start("slow", "--silent", at=90)
    run.until(lambda: bool(findings(run, "slowdown")), "a slowdown")
    assert "rank unknown" in findings(run, "slowdown")[0].meaning


def test_a_nan_is_numerical_and_has_a_rank(start: Start) -> None:
    said = diagnosis(start("nan"))
    assert (said.cause, said.suspects[0].rank) == ("numerical", CULPRIT)


def test_a_dead_loader_worker_names_its_rank(start: Start) -> None:
    said = diagnosis(start("loader"))
    assert said.suspects[0].rank == CULPRIT
    assert said.cause in {"unknown", "out-of-memory"}
    assert any("DataLoader worker" in clue.text for clue in (*said.root, *said.cascade))


def test_a_full_disk_at_a_save_is_storage(start: Start) -> None:
    said = diagnosis(start("disk"))
    assert (said.cause, said.symptom) == ("storage", "crash")
    assert "No space left" in said.root[0].text


def test_an_exception_in_one_rank_is_the_users_code(start: Start) -> None:
    said = diagnosis(start("exception"))
    assert (said.cause, said.symptom) == ("user-code", "crash")
    assert said.suspects[0].rank == CULPRIT
    assert any("KeyError" in clue.text for clue in said.root)


def node_of(run: Run, rank: int) -> str:
    plan = run.attempt().plan
    assert plan
    return plan.ranks[rank].place.node
