"""One Slurm cluster a session, clean for each test; where a program of it is missing, a skip with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.slurm.cluster import Cluster, missing
from tests.needs import need

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of it in one worker: a cluster is one for all."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.xdist_group("slurm"))
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    gone = missing()
    need(f"Slurm ({', '.join(gone)})", present=not gone)
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def slurm(slurm_cluster: Cluster) -> Cluster:
    """The cluster, with all of its nodes in service and no job."""
    slurm_cluster.reset()
    return slurm_cluster


@pytest.fixture(scope="session")
def wide_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    gone = missing()
    need(f"Slurm ({', '.join(gone)})", present=not gone)
    cluster = Cluster(tmp_path_factory.mktemp("wide"), nodes=6)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def wide(wide_cluster: Cluster) -> Cluster:
    """Six nodes, so that a job of four finds others; all in service, no job."""
    wide_cluster.reset()
    return wide_cluster
