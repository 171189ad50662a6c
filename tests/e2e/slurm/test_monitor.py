"""Monitor mode on a real cluster: slurmctld's own log says that nothing was changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.training import Service, Training, gpu_lost

from medevac.core.actions import Isolate, StopAttempt

CHANGES = re.compile(r"REQUEST_(?:UPDATE|JOB_REQUEUE|KILL|CANCEL|SIGNAL|SUSPEND|DELETE|CREATE|REBOOT|SUBMIT)\w*")


@pytest.fixture
def service(wide: Cluster, tmp_path: Path) -> Iterator[Service]:
    made = Service(wide, tmp_path, mode="monitor")
    yield made
    made.close()


def test_nothing_is_changed(service: Service) -> None:
    cluster = service.cluster
    job = Training(service)
    cluster.wait_state(job.number, "RUNNING")
    before = len(cluster.log)
    service.start()
    service.start("watchdog")
    job.reached(15)
    lost = job.node(1)
    gpu_lost(cluster, lost)

    def decided() -> bool:
        held = [held.action for decision in service.decisions() for held in decision.held]
        return {Isolate, StopAttempt} <= {type(action) for action in held}

    service.until(decided, "decided")
    seen = job.best(1)
    job.reached(seen + 5)
    assert cluster.state(job.number) == "RUNNING"
    logged = cluster.log[before:]
    assert "REQUEST_JOB_INFO" in logged, "the log does not tell of requests"
    assert CHANGES.findall(logged) == []
    assert not (job.checkpoints / "latest_clean").exists()
    assert not (job.checkpoints / "medevac-lineage.jsonl").exists()
    assert service.stop() == 0
