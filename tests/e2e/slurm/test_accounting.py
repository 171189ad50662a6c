"""The same with slurmdbd on MariaDB: what Slurm's accounting adds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.slurm.cluster import Cluster, missing, program, until_async
from tests.e2e.slurm.training import Service, gpu_lost
from tests.needs import need

from medevac.adapters.schedulers.slurm import Commands, SlurmScheduler
from medevac.core.events import JobSubmitted


@pytest.fixture(scope="module")
def accounting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    gone = missing() + [name for name in ("slurmdbd", "mariadbd", "mariadb-install-db", "sacct") if not program(name)]
    need(f"Slurm's accounting ({', '.join(gone)})", present=not gone)
    cluster = Cluster(tmp_path_factory.mktemp("accounting"), nodes=2, accounting=True)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


async def test_the_accounting_tells_how_a_job_ended(accounting: Cluster, tmp_path: Path) -> None:
    scheduler = SlurmScheduler(Commands(conf=str(accounting.conf)), tmp_path / "state")
    number = accounting.submit("exit 7")

    async def told() -> bool:
        row = await scheduler.look.accounted(str(number))
        return row is not None and (row["State"], row["ExitCode"]) == ("FAILED", "7:0")

    await until_async(told, "sacct tells the end")


async def test_without_accounting_nothing_is_told(slurm: Cluster, tmp_path: Path) -> None:
    scheduler = SlurmScheduler(Commands(conf=str(slurm.conf)), tmp_path / "state")
    assert await scheduler.look.accounted("1") is None


@pytest.fixture
def watched(accounting: Cluster, tmp_path: Path) -> Iterator[Service]:
    made = Service(accounting, tmp_path, mode="monitor")
    yield made
    made.close()


def test_recommendations_stand_beside_what_operators_did(watched: Service) -> None:
    cluster = watched.cluster
    number = cluster.submit("sleep 600", '--comment={"medevac": {}}', "--nodelist=node1")
    fails = cluster.submit("sleep 2; exit 7", '--comment={"medevac": {}}', "--nodelist=node0")
    cluster.wait_state(number, "RUNNING")
    watched.start()
    watched.until(
        lambda: {f"slurm-{number}", f"slurm-{fails}"} <= {e.job for e in watched.events(JobSubmitted)}, "seen"
    )
    gpu_lost(cluster, "node1")
    watched.until(lambda: any(decision.held for decision in watched.decisions()), "recommended")
    cluster.wait_state(fails, "FAILED")
    watched.until(lambda: watched.moved_to(f"slurm-{fails}")[-1:] == ["watched"], "its end is seen")
    for node, reason in (("node1", "GPU fell off"), ("node0", "fan tray")):
        cluster.call("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")
    cluster.call("scancel", str(number))
    words = ("compare", "--since", "1h", "--config", str(watched.config), "--json")

    def told() -> dict[str, tuple[str, str]]:
        rows = json.loads(watched.medevac(*words) or '{"rows": []}')["rows"]
        return {row["subject"]: (row["verdict"], row.get("deed", {}).get("what", "")) for row in rows}

    expected = {
        "node1": ("agreed", "drain"),
        "node0": ("missed", "drain"),
        f"slurm-{number}": ("differed", "cancel"),
        f"slurm-{fails}": ("open", ""),
    }
    watched.until(lambda: told() == expected, f"{expected}, but {told()}")
    assert all(
        row["earlier_s"] > 0 for row in json.loads(watched.medevac(*words))["rows"] if row["verdict"] == "agreed"
    )


def test_without_accounting_there_is_nothing_to_compare_with(slurm: Cluster, tmp_path: Path) -> None:
    service = Service(slurm, tmp_path, mode="monitor")
    service.start()
    assert service.stop() == 0
    said = service.complaint("compare", "--config", str(service.config))
    assert said.startswith("medevac: what people did is read from Slurm's accounting (slurmdbd), which is not there")
    assert said.count("\n") == 1
