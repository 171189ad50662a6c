"""SIGKILL to the controller at every boundary of a recovery: between decided, written, done, and read back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.runs import JOB, Run, recovered_once, uuid

from medevac.core.actions import GiveBack, HoldJob, ReleaseJob
from medevac.core.events import ActionSettled, AttemptEnded
from medevac.ports.checkpoints import Checkpoints
from medevac.ports.notifier import Notifier
from medevac.ports.scheduler import Scheduler
from medevac.ports.store import Store
from medevac.testing import kill

PORTS = {"scheduler": Scheduler, "checkpoints": Checkpoints, "store": Store, "notifier": Notifier}


@pytest.fixture
def run(tmp_path: Path, point: str) -> Iterator[Run]:
    # A controller that is killed a dozen times before it can act needs an attempt that lasts.
    pace = 0.3 if point.startswith("store.") else 0.06
    made = Run(tmp_path, steps=120, step_s=pace, later_step_s=0.005)
    yield made
    made.close()


@pytest.mark.parametrize("port", PORTS)
def test_every_call_of_a_port_is_known_here(port: str) -> None:
    """A new call that changes something has no kill test yet: give it a scenario in `SCENARIOS`."""
    calls = {name for name, _ in inspect.getmembers(PORTS[port], inspect.isfunction) if not name.startswith("_")}
    assert calls == {*kill.MUTATING[port], *kill.OF_CLUSTERS[port], *kill.READING[port]}
    assert {f"{port}.{name}" for name in kill.MUTATING[port]} <= SCENARIOS.keys()


# --- recoveries -------------------------------------------------------------------------------------------------------


def hard(run: Run) -> None:
    """A GPU of the job is lost: it is taken out, the job stopped, resumed from a verified checkpoint elsewhere."""
    run.checkpoint()
    run.gpu_lost()
    assert run.wait() == 0, run.printed()
    recovered_once(run, attempts=2)


def soft(run: Run) -> None:
    """A GPU of the job is likely to fail: the job saves and leaves."""
    run.checkpoint()
    run.rows_remapped()
    assert run.wait() == 0, run.printed()
    recovered_once(run, attempts=2)
    assert run.events(AttemptEnded)[0].code in {83, 0}


def doubtful(run: Run) -> None:
    """A GPU's memory failed unseen since the beginning: all checkpoints are in doubt, a person says from which to go
    on, and gives the GPU back.
    """
    run.checkpoint()
    run.memory_error()
    assert run.wait() == 5, run.printed()
    assert any(isinstance(action, HoldJob) for action in run.actions())
    run.order("release", JOB, "--resume-from", "8")
    run.order("return", uuid(1, 0))
    run.start("--attach", JOB)
    assert run.wait() == 0, run.printed()
    recovered_once(run, attempts=2)
    assert {type(action) for action in run.actions()} >= {HoldJob, ReleaseJob, GiveBack}


SCENARIOS: dict[str, Callable[[Run], None]] = {
    "scheduler.isolate": hard,
    "scheduler.give_back": doubtful,
    "scheduler.start": hard,
    "scheduler.stop": hard,
    "scheduler.request_checkpoint": soft,
    "scheduler.hold": doubtful,
    "scheduler.release": doubtful,
    "scheduler.finish": hard,
    "checkpoints.verify": hard,
    "checkpoints.judge": doubtful,
    "checkpoints.point": hard,
    "store.append_events": hard,
    "store.append_decision": hard,
    "notifier.page": hard,
}


@pytest.mark.e2e
@pytest.mark.parametrize("point", kill.points())
def test_killed_at(point: str, run: Run) -> None:
    call, _, _ = point.partition(":")
    run.env[kill.VARIABLE] = point
    run.start()
    SCENARIOS[call](run)
    assert kill.marks(run.state), "the controller was never killed there"
    unknown = [event.action for event in run.events(ActionSettled) if event.outcome == "unknown"]
    assert len(unknown) == len(set(unknown))
