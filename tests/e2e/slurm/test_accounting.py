"""The same with slurmdbd on MariaDB: what Slurm's accounting adds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.slurm.cluster import Cluster, missing, program, until_async
from tests.needs import need

from medevac.adapters.schedulers.slurm import Commands, SlurmScheduler


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
