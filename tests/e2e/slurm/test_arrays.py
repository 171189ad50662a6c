"""Job arrays on a real cluster: each task by itself, and all of them where they fail alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.training import Service

OPTED_IN = """--comment={"medevac": {}}"""


@pytest.fixture
def service(slurm: Cluster, tmp_path: Path) -> Iterator[Service]:
    made = Service(slurm, tmp_path)
    made.start()
    yield made
    made.close()


def test_a_failed_task_is_recovered_by_itself(service: Service) -> None:
    cluster = service.cluster
    script = '[ "$SLURM_ARRAY_TASK_ID.${SLURM_RESTART_COUNT:-0}" = 2.0 ] && exit 9; sleep 2; exit 0'
    number = cluster.submit(script, "--array=1-3", OPTED_IN)
    service.until(lambda: service.moved_to(f"slurm-{number}_2")[-1:] == ["finished"], "recovered")
    for task, restarts in (("1", "0"), ("2", "1"), ("3", "0")):
        cluster.wait_state(f"{number}_{task}", "COMPLETED")
        assert cluster.job(f"{number}_{task}")["Restarts"] == restarts


def test_an_array_whose_tasks_fail_alike_is_stopped_with_the_reason(service: Service) -> None:
    cluster = service.cluster
    number = cluster.submit(
        "[ $SLURM_ARRAY_TASK_ID = 1 ] && exec sleep 600; sleep 1; exit 7", "--array=1-9%4", OPTED_IN
    )

    def waits_for_a_person() -> bool:
        said = cluster.call(
            "squeue", "-h", "-r", "-j", str(number), "-O", "ArrayTaskID:|,State:|,PriorityLong:."
        ).stdout
        rows = dict(row.rstrip(".").split("|", 1) for row in said.split())
        return rows.pop("1", "").startswith("RUNNING") and set(rows.values()) == {"PENDING|0"} and len(rows) == 8

    service.until(waits_for_a_person, "stopped")
    (page,) = [line for line in (service.folder / "paged").read_text().splitlines() if "is stopped" in line]
    assert f"tasks of slurm-{number} that ran failed alike (exit code 7)" in page
    assert cluster.state(f"{number}_1") == "RUNNING", "what runs goes on"
    released = service.medevac("watchdog", "--once", "--limit", "0.001", "--config", str(service.config))
    assert released.strip() == ""
