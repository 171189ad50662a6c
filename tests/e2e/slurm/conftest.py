"""One Slurm cluster a session, clean for each test; where a program of it is missing, a skip with the reason."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.slurm.cluster import Cluster, missing
from tests.needs import need

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[3]
SLURM_CONF = """\
RebootProgram={folder}/reboot
Prolog={folder}/prolog
HealthCheckProgram={folder}/health-check
HealthCheckInterval=2
PartitionName=low Nodes=node[0-3] State=UP
"""
DEPLOY = ROOT / "deploy" / "slurm"
CHECKS = """\
#!/bin/sh
[ -e {folder}/checks ] || exit 0
export SLURM_CONF={folder}/slurm.conf PATH={folder}:$PATH
exec {deploy}/{name}
"""
MEDEVAC = """\
#!/bin/sh
cd {root} && exec {python} -m medevac.cli.main "$@" --kernel-log {folder}/kmsg/$SLURMD_NODENAME
"""


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


@pytest.fixture(scope="session")
def odd_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A RebootProgram, a second partition, and accelerators of node3 that are only counted."""
    gone = missing()
    need(f"Slurm ({', '.join(gone)})", present=not gone)
    cluster = Cluster(tmp_path_factory.mktemp("nodes"), counted=("node3",), more=SLURM_CONF)
    folder = cluster.folder
    program(folder / "reboot", f"#!/bin/sh\ntouch {folder}/rebooted\n")
    program(folder / "medevac", MEDEVAC.format(root=ROOT, python=sys.executable, folder=folder))
    for name in ("prolog", "health-check"):
        program(folder / name, CHECKS.format(folder=folder, deploy=DEPLOY, name=name))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def odd(odd_cluster: Cluster) -> Cluster:
    """As it was made: what was changed of its nodes is undone."""
    odd_cluster.call("scontrol", "reconfigure")
    (odd_cluster.folder / "rebooted").unlink(missing_ok=True)
    for node in odd_cluster.nodes:
        odd_cluster.call("scontrol", "update", f"NodeName={node}", "Comment=")
    odd_cluster.reset()
    return odd_cluster
