"""Jobs and nodes read through a real slurmrestd."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.e2e.slurm.cluster import Cluster, program, until
from tests.e2e.slurm.test_edges import OPTED_IN, go, is_end, is_start, seen, stop
from tests.needs import need

from medevac.adapters.schedulers.slurm import Commands, SlurmScheduler, SlurmSettings, parse
from medevac.adapters.schedulers.slurm.look import Look
from medevac.adapters.schedulers.slurm.values import SlurmJob, SlurmNode


@pytest.fixture
def restd(slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    need("slurmrestd", present=program("slurmrestd") is not None)
    monkeypatch.setenv("SLURMRESTD_SECURITY", "disable_user_check")
    path = slurm.folder / "rest"
    path.unlink(missing_ok=True)
    listed = slurm.call("slurmrestd", "-s", "list", check=False)
    # Those of slurmdbd do not start without one.
    plugin = max(re.findall(r"openapi/(?:slurmctld|v0\.0\.\d+)", listed.stdout + listed.stderr))
    slurm._daemon("slurmrestd", "-s", plugin, "-a", "rest_auth/local", f"unix:{path}")
    try:
        until(path.exists, "slurmrestd listens", 20.0)
        yield str(path)
    finally:
        slurm.kill("slurmrestd")


async def test_it_tells_what_the_commands_tell(slurm: Cluster, restd: str, tmp_path: Path) -> None:
    commands = Commands(conf=str(slurm.conf))
    number = slurm.submit("sleep 60", "-N2", "--comment=one", "--error", str(tmp_path / "%j.err"))
    slurm.wait_state(number, "RUNNING")
    slurm.submit("exit 3", "--array=1-2")
    slurm.submit("true", "--hold", "--no-requeue")
    slurm.submit("sleep 60", "-N1", ":", "-N1")
    slurm.wait_state(number + 1, "FAILED")
    slurm.call("scontrol", "update", "NodeName=node3", "State=DRAIN", "Reason=fan tray", "Weight=7", "Comment=a b")
    by_command, by_rest = Look(commands, SlurmSettings()), Look(commands, SlurmSettings(restd=restd))
    assert told(await by_command.jobs()) == told(await by_rest.jobs())
    nodes, same = await by_command.nodes(), await by_rest.nodes()
    assert unsigned(same) == unsigned(nodes)


def unsigned(nodes: dict[str, SlurmNode]) -> dict[str, SlurmNode]:
    return {name: msgspec.structs.replace(node, reason_by="", reason_at="") for name, node in nodes.items()}


def told(jobs: tuple[SlurmJob, ...]) -> list[tuple[object, ...]]:
    """What recovery looks at; times as numbers, since squeue has words for none."""
    return sorted(
        (
            *(job.id, job.number, job.state, job.restarts, job.nodes, job.node_count, job.exit_code, job.requeue),
            *(job.batch, job.held, job.partition, job.user, job.het, job.comment, job.admin_comment, job.name),
            *map(parse.seconds, (job.start, job.submit)),
        )
        for job in jobs
    )


async def test_a_job_is_recovered_with_it(slurm: Cluster, restd: str, tmp_path: Path) -> None:
    site = SlurmSettings(poll_s=0.05, restd=restd)
    scheduler = SlurmScheduler(Commands(conf=str(slurm.conf)), tmp_path / "state", site)
    number = slurm.submit("srun sleep 600", "-N2", OPTED_IN)
    name = f"slurm-{number}"
    await seen(scheduler, is_start(1))
    assert (await scheduler.stop(stop(name))) is not None
    assert await scheduler.holds() == {name: "recovery"}
    assert (await scheduler.start(go(name, 2, "node2", "node3"))).attempt == 2
    await seen(scheduler, is_start(2))
    slurm.call("scancel", str(number))
    await seen(scheduler, is_end(2))
