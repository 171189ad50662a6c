"""The watchdog on a real cluster: no job stays held when the controller is gone; what is a person's stays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.training import Service, Training, gpu_lost

from medevac.adapters.schedulers.slurm.marks import hold_mark
from medevac.core.seal import step_of
from medevac.testing import kill


@pytest.fixture
def service(wide: Cluster, tmp_path: Path) -> Iterator[Service]:
    made = Service(wide, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("point", ["scheduler.stop:after", "scheduler.start:before"])
def test_a_controller_killed_between_hold_and_release(service: Service, point: str) -> None:
    """What the job loads when the watchdog lets it go was written before the hold."""
    service.env[kill.VARIABLE] = point
    controller = service.start()
    job = Training(service)
    job.reached(25)
    theirs = service.cluster.submit("sleep 600", "-N1", "--hold")
    waits = service.cluster.submit("sleep 600", "-N1", "--hold")
    mark = json.dumps({"medevac": {"hold": "incident-1", "at": 1.0, "for": "person"}})
    service.cluster.call("scontrol", "update", f"JobId={waits}", f"AdminComment={mark}")
    lost = job.node(1)
    gpu_lost(service.cluster, lost)
    service.until(lambda: controller.poll() is not None, "killed")
    before = service.cluster.job(job.number)
    assert (before["JobState"], before["Priority"]) == ("PENDING", "0")
    assert hold_mark(admin_comment(service.cluster, job.number))
    assert step_of((job.checkpoints / "latest_clean").resolve().name) in job.sealed()
    told = (service.cluster.pointers / str(job.number)).read_text()
    clean = step_of(told.rpartition("/")[2].strip())
    assert clean in job.sealed()

    service.start("watchdog")
    service.until(lambda: service.cluster.state(job.number) == "RUNNING", "running again")
    assert service.cluster.job(job.number)["Restarts"] == "1"
    service.until(lambda: hold_mark(admin_comment(service.cluster, job.number)) is None, "unmarked")
    nodes = service.cluster.call("squeue", "-h", "-j", str(job.number), "-O", "NodeList:.").stdout
    names = service.cluster.call("scontrol", "show", "hostnames", nodes.strip().removesuffix(".")).stdout.split()
    assert lost not in names
    service.until(lambda: f"from step {clean}\n" in job.printed(), "resumed from it")
    for number in (theirs, waits):
        assert service.cluster.job(number)["Priority"] == "0"
    assert service.stop("watchdog") == 0


def test_a_controller_that_takes_too_long(service: Service) -> None:
    """It lives, and does nothing: the limit counts."""
    controller = service.start()
    cluster = service.cluster
    slow = cluster.submit("sleep 600", "-N1", "--hold")
    mark = json.dumps({"medevac": {"hold": "incident-1", "at": 1.0, "for": "recovery", "by": "stop"}})
    cluster.call("scontrol", "update", f"JobId={slow}", f"AdminComment={mark}")
    freed = service.medevac("watchdog", "--once", "--limit", "9e9", "--config", str(service.config))
    assert freed == ""
    freed = service.medevac("watchdog", "--once", "--limit", "120", "--config", str(service.config))
    assert freed.strip() == str(slow)
    cluster.wait_state(slow, "RUNNING")
    assert admin_comment(cluster, slow) == ""
    assert controller.poll() is None


def admin_comment(cluster: Cluster, number: int) -> str:
    said = cluster.call("squeue", "-h", "-t", "all", "-j", str(number), "-O", "admin_comment:|").stdout
    return said.strip().removesuffix("|").replace("(null)", "")
