"""Heterogeneous jobs on a real cluster."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.test_edges import OPTED_IN, go, is_start, seen, stop

from medevac.adapters.schedulers.slurm import Commands, SlurmScheduler, SlurmSettings
from medevac.core.events import AttemptEnded, AttemptStarted, JobSubmitted


async def test_a_heterogeneous_job_is_recovered_as_one(slurm: Cluster, tmp_path: Path) -> None:
    scheduler = SlurmScheduler(Commands(conf=str(slurm.conf)), tmp_path / "state", SlurmSettings(poll_s=0.05))
    parts = (OPTED_IN, "-N1", "--nodelist=node0", "--gres=gpu:2", ":", "-N2", "--gres=gpu:1")
    number = slurm.submit("srun --het-group=0,1 sh -c 'trap \"\" TERM; sleep 600'", *parts)
    slurm.wait_state(number, "RUNNING")
    name = f"slurm-{number}"
    events = await seen(scheduler, is_start(1))
    assert {event.job for event in events if isinstance(event, JobSubmitted)} == {name}
    (first,) = [event for event in events if isinstance(event, AttemptStarted)]
    nodes = {place.node for place in first.ranks}
    assert len(nodes) == 3
    over = await scheduler.stop(stop(name))
    assert over is not None
    assert (over.job, over.why) == (name, "stopped")
    assert await scheduler.holds() == {name: "recovery"}
    left = min(nodes - {"node0"})
    again = await scheduler.start(go(name, 2, *sorted(set(slurm.nodes) - {left})))
    assert {place.node for place in again.ranks} == set(slurm.nodes) - {left}
    ended = [event for event in await scheduler.observe() if isinstance(event, AttemptEnded)]
    assert [(event.job, event.attempt) for event in ended] == [(name, 1)]
    for part in (number, number + 1):
        assert slurm.job(part)["Restarts"] == "1"
