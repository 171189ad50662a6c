"""Whatever happens in whatever order: deciding never fails, and the laws hold."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterable

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.core.builders import CLUSTER, DEMO, NODES, Told, sealed

from medevac.catalog.policy import load_policy
from medevac.controller.step import advance
from medevac.core import events as ev
from medevac.core.actions import (
    FinishJob,
    Isolate,
    RequestCheckpoint,
    StartAttempt,
    StopAttempt,
    VerifyCheckpoint,
)
from medevac.core.decision import Decision
from medevac.core.guards import touches
from medevac.core.lineage import verdicts
from medevac.core.node_lifecycle import OUT
from medevac.core.policy import Policy
from medevac.core.view import View
from medevac.ports.store import EventRecord

MONITOR = load_policy("demo", "monitor")
GPUS = [gpu.uuid for node in NODES for gpu in node.gpus]
CODES = (13, 31, 45, 48, 63, 64, 74, 79, 94, 95, 119, 154, 9999)
ORDERS = ("resume", "return", "release", "pause", "resume", "return", "resume-from", "return", "release", "stop")


class Move(msgspec.Struct, frozen=True):
    """A line of a history: what kind of thing happens next, and numbers that say which."""

    what: str
    a: int
    b: int


MISHAPS = (
    *("xid", "storm", "ecc", "power", "step", "nan", "seal", "found", "verified", "judged", "start", "end", "end"),
    *("settle", "refuse", "unknown", "time", "order", "order", "loaded", "stale", "watch"),
)
KINDS = (*MISHAPS, *("go",) * 2 * len(MISHAPS))


def moves_of(seed: int) -> list[Move]:
    """A long history, mostly one thing going wrong after another has been dealt with."""
    chance = random.Random(seed)
    kinds = chance.choices(KINDS, k=chance.randrange(5, 160))
    return [Move(what, chance.randrange(41), chance.randrange(41)) for what in kinds]


SHORT = st.lists(st.builds(Move, st.sampled_from(KINDS), st.integers(0, 40), st.integers(0, 40)), max_size=30)
MOVES = SHORT | st.integers(0, 2**32).map(moves_of)


def as_it_should(told: Told, at: float) -> Iterable[ev.AnyEvent]:
    """What a world without mishaps brings next: what is pending is done, time passes, the job trains and saves."""
    job, due = told.view.jobs["job"], told.view.deadline()
    if told.view.pending:
        yield from done(told, min(told.view.pending), at)
    elif job.state in {"proving", "running"}:
        for step in range(job.reached + 1, job.reached + 13):
            yield ev.StepReported(at=at, job="job", attempt=job.attempt, step=step, rank=step % 8)
        yield replace(sealed(told, job.reached + 12, at), parent=job.resumed)
    elif due is not None:
        yield ev.TimePassed(at=max(due, at))


def done(told: Told, key: str, at: float) -> Iterable[ev.AnyEvent]:
    """An action that is done, with the events that it has."""
    match told.view.pending[key]:
        case StartAttempt() as start:
            yield ev.AttemptStarted(
                at=at, job="job", attempt=start.attempt, ranks=start.ranks, resume_from=start.resume_from
            )
        case StopAttempt() as stop:
            yield ev.AttemptEnded(at=at, job="job", attempt=stop.attempt, code=137, why="stopped")
        case RequestCheckpoint() as asked:
            yield ev.AttemptEnded(at=at, job="job", attempt=asked.attempt, code=83)
        case VerifyCheckpoint() as verify:
            yield ev.CheckpointVerified(at=at, job="job", step=verify.step, ok=True)
    yield ev.ActionSettled(at=at, action=key, outcome="done")


def events(move: Move, told: Told, at: float) -> Iterable[ev.AnyEvent]:  # noqa: C901, PLR0912 - one case a kind
    """The events of one move in the world as it stands."""
    job = told.view.jobs["job"]
    a, b, attempt, gpu = move.a, move.b, job.attempt, GPUS[move.a % len(GPUS)]
    pending = sorted(told.view.pending)
    node = f"n{gpu[1]}"
    match move.what:
        case "go":
            yield from as_it_should(told, at)
        case "xid":
            code = CODES[b % len(CODES)]
            yield ev.FaultSeen(at=at, kind="xid", code=code, node=node, gpu=gpu, details={"row": str(a)})
        case "storm":
            for row in range(12):
                yield ev.FaultSeen(at=at, kind="xid", code=63, node=node, gpu=gpu, details={"row": str(row)})
        case "ecc":
            yield ev.EccCounted(at=at - b % 3, node=node, gpu=gpu, sbe=a * 100, dbe=b % 4, remapped_rows=a)
        case "power":
            yield ev.EnvironmentSeen(at=at, rack=f"r{a % 2}", component="psu", state=("failed", "ok")[b % 2])
        case "step" | "nan":
            yield ev.StepReported(
                at=at, job="job", attempt=attempt, step=job.reached + 1 + b % 3, rank=a % 8, finite=move.what == "step"
            )
        case "stale":
            yield ev.StepReported(at=at, job="job", attempt=a % 3, step=b, finite=b % 2 == 0)
        case "seal":
            yield replace(sealed(told, b, at), parent=a if a < b else None)
        case "found":
            yield ev.CheckpointFound(at=at, job="job", step=b, why="no seal")
        case "judged":
            yield ev.CheckpointJudged(at=at, job="job", step=b, state=("clean", "suspect", "condemned")[a % 3])
        case "verified":
            yield ev.CheckpointVerified(
                at=at, job="job", step=job.chosen or b, ok=a % 4 > 0, problem="" if a % 4 else "x"
            )
        case "start":
            yield ev.AttemptStarted(at=at, job="job", attempt=attempt, ranks=job.ranks, resume_from=job.resumed)
        case "loaded":
            yield ev.ResumedFrom(at=at, job="job", attempt=attempt, rank=a % 8, step=b if a % 2 else job.resumed)
        case "end":
            exits = (ev.RankExit(rank=a % 8, code=b % 4),) if b % 4 else ()
            yield ev.AttemptEnded(at=at, job="job", attempt=attempt, code=b % 4, exits=exits, why="stopped" * (a % 2))
        case "settle" | "refuse" | "unknown" if pending:
            outcome = {"settle": "done", "refuse": ("refused", "unsupported")[b % 2], "unknown": "unknown"}[move.what]
            yield ev.ActionSettled(at=at, action=pending[a % len(pending)], outcome=outcome)  # type: ignore[arg-type]
        case "time":
            due = told.view.deadline()
            yield ev.TimePassed(at=at if due is None or b % 2 else max(due, at))
        case "order":
            what = ORDERS[b % len(ORDERS)]
            target = gpu if what == "return" else "job"
            yield ev.OrderGiven(at=at, what=what, who="alex", target=target, step=a if what == "resume-from" else None)  # type: ignore[arg-type]
        case "watch":
            yield ev.WatchBegan(at=at)


def history(moves: list[Move], policy: Policy) -> Told:
    """A job, and then all of these."""
    told = Told(policy)
    policy_of_job = ev.JobPolicy(checkpoint_dir="/c")
    told.tell(CLUSTER, ev.JobSubmitted(at=1.0, job="job", ranks=8, policy=policy_of_job), ev.TimePassed(at=1.0))
    for move in moves:
        for event in events(move, told, told.view.now + 0.5):
            before = told.view
            decision = told.tell(event)
            check(before, told, decision)
    return told


def check(before: View, told: Told, decision: Decision) -> None:
    """The laws, after each step."""
    view, policy, job = told.view, told.policy, told.view.jobs["job"]
    for action in decision.actions:
        assert policy.mode == "act" or not touches(action), "law 4: monitor mode touches nothing"
        if isinstance(action, StartAttempt) and action.resume_from is not None:
            state = verdicts(job, view.doubts)[action.resume_from].state
            assert state == "clean" or action.resume_from == job.trusted, "law 5: only from a clean checkpoint"
        if isinstance(action, StartAttempt):
            gone = {name for name, device in view.devices.items() if device.state in OUT}
            assert not gone & {gpu for rank in action.ranks for gpu in rank.gpus}, "never placed on what is out"
        if isinstance(action, VerifyCheckpoint):
            assert action.step in job.checkpoints
    gone = {name for name, device in view.devices.items() if device.state in OUT and name in GPUS}
    assert len(gone) <= len(GPUS) * policy.budget.cluster_share, "law 6: never over the budget"
    fresh = [action for action in decision.actions if isinstance(action, Isolate)]
    assert len(fresh) <= policy.budget.new_in_window
    if job.state != "ended":
        assert job.unproven <= policy.recovery.attempts_without_progress, "law 10: without progress it stops"
    if before.jobs.get("job") and before.jobs["job"].state in {"finished", "watched", "ended"}:
        assert not any(isinstance(action, StartAttempt) for action in decision.actions), "over is over"
    assert len({action.id for action in decision.actions}) == len(decision.actions)


@given(MOVES)
def test_laws_hold_in_act_mode(moves: list[Move]) -> None:
    history(moves, DEMO)


@given(MOVES)
def test_laws_hold_in_monitor_mode(moves: list[Move]) -> None:
    history(moves, MONITOR)


@given(MOVES)
def test_time_alone_comes_to_rest(moves: list[Move]) -> None:
    """A deadline that came due is dealt with: time never stands still, and nothing waits for ever in small steps."""
    told = history(moves, DEMO)
    waited = 0.0
    for _ in range(100):
        due = told.view.deadline()
        if due is None:
            return
        at = max(due, told.view.now)
        told.tell(ev.TimePassed(at=at))
        after = told.view.deadline()
        waited += (after or at) - at
        assert after is None or after > at or after != due, "time stands still"
    assert waited > 0


@given(MOVES)
def test_a_finished_job_is_finished_once(moves: list[Move]) -> None:
    told = history(moves, DEMO)
    ends = [a for decision in told.decisions for a in decision.actions if isinstance(a, FinishJob)]
    released = sum(decision.moved[0].trigger.on == "order-release" for decision in told.decisions if decision.moved)
    assert len(ends) <= 1 + released


@given(MOVES)
@settings(max_examples=25)
def test_the_same_history_gives_the_same_bytes(moves: list[Move]) -> None:
    one, other = history(moves, DEMO), history(moves, DEMO)
    assert msgspec.json.encode(one.decisions) == msgspec.json.encode(other.decisions)


@given(MOVES)
@settings(max_examples=25)
def test_a_log_that_was_stored_gives_the_same_decisions(moves: list[Move]) -> None:
    """Decisions that were read back fold into the same view as those that were just made."""
    told = history(moves, DEMO)
    stored = msgspec.json.decode(msgspec.json.encode(told.decisions), type=list[Decision])
    view = View.under(DEMO)
    live = View.under(DEMO)
    recorded: list[ev.AnyEvent] = msgspec.json.decode(msgspec.json.encode(told.events), type=list[ev.AnyEvent])
    for seq, (event, decision) in enumerate(zip(recorded, stored, strict=True), 1):
        view = view.apply(event, seq).after(decision)
        live, again = advance(live, EventRecord(seq=seq, event=event), DEMO)
        assert msgspec.json.decode(msgspec.json.encode(again), type=Decision) == decision
    assert view == told.view


SCRIPT = """
import sys, hashlib
from pathlib import Path
import msgspec
from tests.scenario.script import read
from tests.scenario.world import World
whole = hashlib.sha256()
for path in sorted(Path(sys.argv[1]).glob("*.jsonl")):
    whole.update(msgspec.json.encode(World(read(path)).run()))
print(whole.hexdigest())
"""


def test_no_hash_seed_changes_a_decision() -> None:
    digests = set()
    for seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, "tests/scenario"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
            timeout=170,
        )
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout)
    assert len(digests) == 1
