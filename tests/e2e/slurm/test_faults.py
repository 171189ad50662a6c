"""Faults of what a recovery stands on, in the middle of one, on a real cluster: no job lost, doubled or stranded."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.slurm.cluster import Cluster, missing
from tests.e2e.slurm.training import Service, Training, gpu_lost
from tests.needs import need

from medevac.core.events import ActionSettled, AttemptStarted

Makes = Callable[[str], Training]


@pytest.fixture
def made(wide: Cluster, tmp_path: Path) -> Iterator[Makes]:
    """A service by a policy, and a job that has checkpoints."""
    with beside(wide, tmp_path) as make:
        yield make


@pytest.fixture
def made_alone(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Iterator[Makes]:
    """The same on a cluster of its own: what dies of it does not come back at once."""
    gone = missing()
    need(f"Slurm ({', '.join(gone)})", present=not gone)
    cluster = Cluster(tmp_path_factory.mktemp("alone"), nodes=6)
    try:
        cluster.start()
        with beside(cluster, tmp_path) as make:
            yield make
    finally:
        cluster.stop()


@contextmanager
def beside(cluster: Cluster, folder: Path) -> Iterator[Makes]:
    services = []

    def make(policy: str) -> Training:
        service = Service(cluster, folder, policy=policy)
        services.append(service)
        service.start()
        job = Training(service)
        job.reached(15)
        return job

    yield make
    for service in services:
        service.close()


def ran_once_each(job: Training, attempts: int) -> None:
    """Each attempt began once, and each action came to one end."""
    began = [event.attempt for event in job.service.events(AttemptStarted) if event.job == job.job]
    assert began == list(range(1, attempts + 1))
    settled = [event.action for event in job.service.events(ActionSettled) if event.outcome != "unknown"]
    assert len(settled) == len(set(settled))


def pages(job: Training, words: str) -> int:
    paged = job.service.folder / "paged"
    return sum(words in line for line in paged.read_text().splitlines()) if paged.exists() else 0


def decided(job: Training, state: str) -> None:
    job.service.until(lambda: state in job.service.moved_to(job.job), state)


@pytest.mark.soak
def test_slurmctld_is_killed_and_restarted_in_a_recovery(made_alone: Makes) -> None:
    """Its nodes complete for a minute and more when it is back."""
    job = made_alone("standard")
    job.cluster.save()
    gpu_lost(job.cluster, job.node(1))
    decided(job, "stopping")
    job.cluster.kill("slurmctld")
    time.sleep(1.0)
    job.cluster.start_controller()
    job.runs_again()
    ran_once_each(job, 2)
    assert job.node(1) not in job.nodes(2)


def test_the_database_is_locked_in_a_recovery(made: Makes) -> None:
    job = made("standard")
    gpu_lost(job.cluster, job.node(1))
    decided(job, "stopping")
    with sqlite3.connect(job.service.state / "medevac.db", isolation_level=None) as link:
        link.execute("BEGIN IMMEDIATE")
        time.sleep(7.0)  # longer than a writer waits for
        link.execute("ROLLBACK")
    link.close()
    job.runs_again()
    ran_once_each(job, 2)


def test_no_spare_node_is_left_until_one_comes_back(made: Makes) -> None:
    job = made("standard")
    cluster = job.cluster
    spares = [node for node in cluster.nodes if node not in job.nodes(1)]
    for node in spares:
        cluster.call("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=a person's")
    gpu_lost(cluster, job.node(1))
    job.service.until(lambda: pages(job, f"job {job.job}: ") == 1, "paged")
    cluster.call("scontrol", "update", f"NodeName={spares[0]}", "State=UNDRAIN")
    job.runs_again()
    ran_once_each(job, 2)
    assert spares[0] in job.nodes(2)
    assert pages(job, f"job {job.job}: ") == 1


def test_a_second_fault_while_the_first_is_recovered(made: Makes) -> None:
    job = made("standard")
    first = job.node(1)
    gpu_lost(job.cluster, first)
    job.service.until(lambda: any(e.attempt == 2 for e in job.service.events(AttemptStarted)), "started again")
    second = job.node(2, attempt=2)
    gpu_lost(job.cluster, second)
    job.service.until(lambda: any(e.attempt == 3 for e in job.service.events(AttemptStarted)), "started once more")
    job.runs_again(3)
    ran_once_each(job, 3)
    assert not {first, second} & job.nodes(3)


@pytest.mark.soak
def test_a_slurmd_is_killed(made_alone: Makes) -> None:
    job = made_alone("standard")
    lost = job.node(1)
    job.cluster.kill(lost)
    job.runs_again()
    assert lost not in job.nodes(2)
    ran_once_each(job, 2)


@pytest.mark.soak
def test_a_whole_rack_is_lost_and_comes_back(made: Makes) -> None:
    job = made("demo")
    cluster = job.cluster
    rack = cluster.nodes[: len(cluster.nodes) // 2]
    for node in rack:
        gpu_lost(cluster, node)
    job.service.until(lambda: pages(job, f"job {job.job}: ") == 1, "paged")
    for node in rack:
        job.service.medevac("return", f"GPU-{node}-0", "--state-dir", str(job.service.state))
    job.runs_again()
    ran_once_each(job, 2)
