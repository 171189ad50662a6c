"""SIGKILL to the service around each step of a recovery; the next one goes on: nothing twice, nothing left undone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.training import LIMIT_S, Service, Training, gpu_lost, memory_error, rows_remapped

from medevac.core.events import ActionSettled, AttemptStarted
from medevac.testing import kill

SOON = ("scheduler.stop:after", "scheduler.start:after")
"""Those of every run; `make soak` has all."""

SOFT = {"request_checkpoint"}
DOUBTFUL = {"hold", "judge", "release", "give_back", "finish"}


@pytest.fixture
def service(wide: Cluster, tmp_path: Path) -> Iterator[Service]:
    made = Service(wide, tmp_path)
    yield made
    made.close()


def points() -> Iterator[object]:
    for point in kill.points():
        yield pytest.param(point, marks=() if point in SOON else (pytest.mark.soak,))


@pytest.mark.parametrize("point", [*points()])
def test_killed_at(point: str, service: Service) -> None:
    job = Training(service)
    service.env[kill.VARIABLE] = point
    method = point.partition(".")[2].partition(":")[0]
    _tended(service, lambda: job.best(1) >= 15)
    hurt = rows_remapped if method in SOFT else memory_error if method in DOUBTFUL else gpu_lost
    hurt(service.cluster, job.node(1))
    if method in DOUBTFUL:
        _tended(service, lambda: service.moved_to(job.job)[-1:] == ["held"])
        service.medevac("release", job.job, "--resume-from", str(job.sealed()[-1]), "--state-dir", str(service.state))
    _tended(service, lambda: job.best(2) > job.best(1) and service.moved_to(job.job)[-1:] == ["running"])
    _ordered(method, job)
    assert kill.marks(service.state), "the service was never killed there"
    mine = [event for event in service.events(AttemptStarted) if event.job == job.job]
    assert [event.attempt for event in mine] == [1, 2]
    assert job.node(1) not in job.nodes(2)
    settled = [event.action for event in service.events(ActionSettled) if event.outcome != "unknown"]
    assert len(settled) == len(set(settled)), "an action was done twice"


def _ordered(method: str, job: Training) -> None:
    """What a person orders at last, for the points that nothing else reaches."""
    orders = {"give_back": ("return", f"GPU-{job.node(1)}-0"), "finish": ("stop", job.job)}
    if order := orders.get(method):
        job.service.medevac(*order, "--state-dir", str(job.service.state))
        wanted = method.replace("_", "-")
        _tended(
            job.service,
            lambda: any(f"/{wanted}/" in e.action and e.outcome == "done" for e in job.service.events(ActionSettled)),
        )


def _tended(service: Service, done: object) -> None:
    """Start the service anew whenever it is killed, as systemd does, until `done`."""
    assert callable(done)
    end = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < end, service.printed()
        controller = service.processes.get("controller")
        if controller is None or controller.poll() is not None:
            service.start()
        time.sleep(0.1)
