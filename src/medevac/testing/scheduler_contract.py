"""What every scheduler must do; subclass, and give a fixture `world` with nodes, GPUs and no jobs.

    class TestMyScheduler(SchedulerContract):
        @pytest.fixture
        def world(self):
            return MyWorld()

Each check opens the scheduler anew for every call: a controller may be killed between any two.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

import pytest

from medevac.core.actions import (
    GiveBack,
    HoldJob,
    Isolate,
    ReleaseJob,
    Repair,
    RequestCheckpoint,
    Restrict,
    StartAttempt,
    StopAttempt,
)
from medevac.core.events import AttemptEnded, AttemptStarted, Node, RankPlace
from medevac.ports.errors import Refused, Unsupported
from medevac.ports.scheduler import Scheduler

LONG_S = 60.0
JOB = "train"


class SchedulerWorld(Protocol):
    """The outside of a scheduler: a cluster of at least two nodes with two GPUs each."""

    def scheduler(self) -> Scheduler:
        """A new scheduler object on this world."""
        ...

    async def submit(self, job: str, ranks: int) -> None:
        """A job whose ranks run until they are told to end."""
        ...

    async def end(self, job: str, attempt: int, code: int) -> None:
        """Have rank 0 end with this code, and the others with 0."""
        ...

    async def freeze(self, job: str, attempt: int) -> None:
        """Stop the processes of the attempt so that they take no signal but SIGKILL; nothing where there are none."""
        ...


def places(nodes: tuple[Node, ...], ranks: int = 2) -> tuple[RankPlace, ...]:
    """One GPU of each node in turn."""
    found = []
    for rank in range(ranks):
        node = nodes[rank % len(nodes)]
        local = rank // len(nodes)
        found.append(RankPlace(rank=rank, node=node.name, gpus=(node.gpus[local].uuid,), local_rank=local))
    return tuple(found)


def stop(attempt: int = 1, id_: str = "stop") -> StopAttempt:
    """An order to end it at once."""
    return StopAttempt(id=f"{id_}{attempt}", job=JOB, attempt=attempt)


async def start(world: SchedulerWorld, attempt: int = 1, resume_from: int | None = None) -> StartAttempt:
    """Submit the job and order its start; returns the order."""
    nodes = (await world.scheduler().cluster()).nodes
    await world.submit(JOB, 2)
    action = StartAttempt(id=f"start{attempt}", job=JOB, attempt=attempt, ranks=places(nodes), resume_from=resume_from)
    await world.scheduler().start(action)
    return action


async def ended(world: SchedulerWorld, attempt: int = 1) -> AttemptEnded:
    """Wait until the scheduler says that the attempt has ended."""
    async with asyncio.timeout(LONG_S):
        while True:
            for event in await world.scheduler().observe():
                if isinstance(event, AttemptEnded) and event.attempt == attempt:
                    return event
            await asyncio.sleep(0.05)


class SchedulerContract:
    """See `medevac.ports.scheduler.Scheduler`, sentence by sentence."""

    # --- the cluster ------------------------------------------------------------------------------------------------

    async def test_the_cluster_is_told_whole(self, world: SchedulerWorld) -> None:
        nodes = (await world.scheduler().cluster()).nodes
        assert len(nodes) >= 2
        uuids = [gpu.uuid for node in nodes for gpu in node.gpus]
        assert len(uuids) >= 4
        assert len(set(uuids)) == len(uuids)

    async def test_nothing_runs_is_out_or_is_held_at_first(self, world: SchedulerWorld) -> None:
        assert await world.scheduler().observe() == ()
        assert await world.scheduler().isolated() == {}
        assert await world.scheduler().holds() == {}

    # --- isolation --------------------------------------------------------------------------------------------------

    async def test_a_gpu_is_out_until_it_is_given_back(self, world: SchedulerWorld) -> None:
        node = (await world.scheduler().cluster()).nodes[0]
        gpu = node.gpus[0].uuid
        out = Isolate(id="out", node=node.name, gpu=gpu, mode="soft")
        for _ in range(2):
            await world.scheduler().isolate(out)
            assert await world.scheduler().isolated() == {gpu: "soft"}
        for _ in range(2):
            await world.scheduler().give_back(GiveBack(id="back", node=node.name, gpu=gpu))
            assert await world.scheduler().isolated() == {}

    async def test_a_node_is_out_by_its_name(self, world: SchedulerWorld) -> None:
        node = (await world.scheduler().cluster()).nodes[0]
        await world.scheduler().isolate(Isolate(id="out", node=node.name, mode="hard"))
        assert await world.scheduler().isolated() == {node.name: "hard"}

    async def test_soft_becomes_hard_and_never_the_other_way(self, world: SchedulerWorld) -> None:
        node = (await world.scheduler().cluster()).nodes[0]
        for id_, mode, then in (("a", "soft", "soft"), ("b", "hard", "hard"), ("c", "soft", "hard")):
            action = Isolate(id=id_, node=node.name, mode=mode)  # type: ignore[arg-type]
            await world.scheduler().isolate(action)
            assert await world.scheduler().isolated() == {node.name: then}

    async def test_an_isolation_repeated_after_the_return_changes_nothing(self, world: SchedulerWorld) -> None:
        node = (await world.scheduler().cluster()).nodes[0]
        out = Isolate(id="out", node=node.name, mode="hard")
        await world.scheduler().isolate(out)
        await world.scheduler().give_back(GiveBack(id="back", node=node.name))
        await world.scheduler().isolate(out)
        assert await world.scheduler().isolated() == {}

    async def test_what_does_not_exist_cannot_be_isolated(self, world: SchedulerWorld) -> None:
        node = (await world.scheduler().cluster()).nodes[0]
        with pytest.raises(Refused):
            await world.scheduler().isolate(Isolate(id="a", node="no-such-node", mode="soft"))
        with pytest.raises(Refused):
            await world.scheduler().isolate(Isolate(id="b", node=node.name, gpu="GPU-none", mode="soft"))
        assert await world.scheduler().isolated() == {}

    async def test_a_restriction_or_a_repair_takes_nothing_out(self, world: SchedulerWorld) -> None:
        """Done, or said to be what this scheduler cannot do; given back, it may all run again."""
        node = (await world.scheduler().cluster()).nodes[0]
        gpu = node.gpus[0].uuid
        with contextlib.suppress(Unsupported):
            await world.scheduler().restrict(Restrict(id="low", node=node.name, gpu=gpu))
        with pytest.raises((Unsupported, Refused)):
            await world.scheduler().repair(Repair(id="mend", node=node.name, gpu=gpu, how="reset"))
        assert await world.scheduler().isolated() == {}
        for _ in range(2):
            await world.scheduler().give_back(GiveBack(id="back", node=node.name, gpu=gpu))
        assert await world.scheduler().isolated() == {}

    async def test_what_is_not_out_may_be_given_back(self, world: SchedulerWorld) -> None:
        node = (await world.scheduler().cluster()).nodes[0]
        await world.scheduler().give_back(GiveBack(id="back", node=node.name))
        assert await world.scheduler().isolated() == {}

    @pytest.mark.parametrize("mode", ["soft", "hard"])
    @pytest.mark.parametrize("whole_node", [False, True])
    async def test_what_is_out_gets_no_work(self, world: SchedulerWorld, mode: str, whole_node: bool) -> None:  # noqa: FBT001
        nodes = (await world.scheduler().cluster()).nodes
        await world.submit(JOB, 2)
        gpu = "" if whole_node else places(nodes)[0].gpus[0]
        out = Isolate(id="out", node=nodes[0].name, gpu=gpu, mode=mode)  # type: ignore[arg-type]
        await world.scheduler().isolate(out)
        with pytest.raises(Refused):
            await world.scheduler().start(StartAttempt(id="s", job=JOB, attempt=1, ranks=places(nodes)))
        assert await world.scheduler().observe() == ()
        await world.scheduler().give_back(GiveBack(id="back", node=nodes[0].name, gpu=gpu))
        await world.scheduler().start(StartAttempt(id="s", job=JOB, attempt=1, ranks=places(nodes)))
        await world.scheduler().stop(stop())

    # --- attempts ---------------------------------------------------------------------------------------------------

    async def test_an_attempt_starts_once(self, world: SchedulerWorld) -> None:
        action = await start(world, resume_from=40)
        first, again = await world.scheduler().start(action), await world.scheduler().start(action)
        assert first == again
        assert isinstance(first, AttemptStarted)
        assert (first.job, first.attempt, first.ranks, first.resume_from) == (JOB, 1, action.ranks, 40)
        assert first.id
        assert await world.scheduler().observe() == (first,)
        await world.scheduler().stop(stop())

    async def test_an_attempt_that_ended_is_not_started_again(self, world: SchedulerWorld) -> None:
        action = await start(world)
        await world.end(JOB, 1, 3)
        over = await ended(world)
        assert await world.scheduler().start(action) == (await world.scheduler().observe())[0]
        assert await ended(world) == over

    async def test_the_end_tells_the_first_failure(self, world: SchedulerWorld) -> None:
        await start(world)
        await world.end(JOB, 1, 7)
        over = await ended(world)
        failed = [one.rank for one in over.exits if one.code == 7]
        assert (over.code, over.why, failed, len(over.exits)) == (7, "", [0], 2)

    async def test_an_end_without_failure(self, world: SchedulerWorld) -> None:
        await start(world)
        await world.end(JOB, 1, 0)
        over = await ended(world)
        assert (over.code, over.why, {one.code for one in over.exits}) == (0, "", {0})

    async def test_what_is_observed_has_the_same_ids_each_time(self, world: SchedulerWorld) -> None:
        await start(world)
        await world.end(JOB, 1, 0)
        await ended(world)
        seen = await world.scheduler().observe()
        assert await world.scheduler().observe() == seen
        assert len({event.id for event in seen}) == len(seen) == 2

    async def test_one_attempt_of_a_job_runs_at_a_time(self, world: SchedulerWorld) -> None:
        action = await start(world)
        second = StartAttempt(id="start2", job=JOB, attempt=2, ranks=action.ranks)
        with pytest.raises(Refused):
            await world.scheduler().start(second)
        await world.scheduler().stop(stop())
        started = await world.scheduler().start(second)
        assert isinstance(started, AttemptStarted)
        assert started.attempt == 2
        await world.scheduler().stop(stop(2))

    @pytest.mark.parametrize("frozen", [False, True])
    async def test_a_stop_leaves_nothing_and_tells_how_it_ended(self, world: SchedulerWorld, frozen: bool) -> None:  # noqa: FBT001
        await start(world)
        if frozen:
            await world.freeze(JOB, 1)
        over = await world.scheduler().stop(stop())
        assert isinstance(over, AttemptEnded)
        assert (over.job, over.attempt, over.why) == (JOB, 1, "stopped")
        assert over.code != 0
        assert await world.scheduler().stop(stop()) == over
        assert await world.scheduler().stop(stop(id_="another")) == over
        assert over in await world.scheduler().observe()

    async def test_a_stop_of_what_ended_by_itself_tells_that_end(self, world: SchedulerWorld) -> None:
        await start(world)
        await world.end(JOB, 1, 5)
        over = await ended(world)
        assert await world.scheduler().stop(stop()) == over
        assert over.why == ""

    async def test_a_stop_of_what_never_ran_is_none(self, world: SchedulerWorld) -> None:
        await world.submit(JOB, 2)
        assert await world.scheduler().stop(stop()) is None
        assert await world.scheduler().observe() == ()

    async def test_a_job_that_was_not_submitted_is_refused(self, world: SchedulerWorld) -> None:
        nodes = (await world.scheduler().cluster()).nodes
        with pytest.raises(Refused):
            await world.scheduler().start(StartAttempt(id="a", job="none", attempt=1, ranks=places(nodes)))
        with pytest.raises(Refused):
            await world.scheduler().stop(StopAttempt(id="b", job="none", attempt=1))
        with pytest.raises(Refused):
            await world.scheduler().hold(HoldJob(id="c", job="none", purpose="recovery"))

    async def test_places_that_do_not_exist_are_refused(self, world: SchedulerWorld) -> None:
        await world.submit(JOB, 2)
        node = (await world.scheduler().cluster()).nodes[0].name
        for ranks in ((), (RankPlace(rank=0, node="none"),), (RankPlace(rank=0, node=node, gpus=("GPU-none",)),)):
            with pytest.raises(Refused):
                await world.scheduler().start(StartAttempt(id="a", job=JOB, attempt=1, ranks=ranks))
        assert await world.scheduler().observe() == ()

    async def test_a_checkpoint_is_asked_only_of_what_runs(self, world: SchedulerWorld) -> None:
        ask = RequestCheckpoint(id="ask", job=JOB, attempt=1)
        await world.submit(JOB, 2)
        with pytest.raises(Refused):
            await world.scheduler().request_checkpoint(ask)
        await start(world)
        await world.scheduler().request_checkpoint(ask)
        await world.scheduler().request_checkpoint(ask)
        await world.scheduler().stop(stop())
        with pytest.raises(Refused):
            await world.scheduler().request_checkpoint(RequestCheckpoint(id="later", job=JOB, attempt=1))

    # --- holds ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("purpose", ["recovery", "person"])
    async def test_a_held_job_does_not_start_until_it_is_released(self, world: SchedulerWorld, purpose: str) -> None:
        nodes = (await world.scheduler().cluster()).nodes
        await world.submit(JOB, 2)
        action = StartAttempt(id="s", job=JOB, attempt=1, ranks=places(nodes))
        hold = HoldJob(id="hold", job=JOB, purpose=purpose)  # type: ignore[arg-type]
        for _ in range(2):
            await world.scheduler().hold(hold)
            assert await world.scheduler().holds() == {JOB: purpose}
        with pytest.raises(Refused):
            await world.scheduler().start(action)
        for _ in range(2):
            await world.scheduler().release(ReleaseJob(id="release", job=JOB))
            assert await world.scheduler().holds() == {}
        await world.scheduler().hold(hold)
        assert await world.scheduler().holds() == {}, "the same hold, repeated late"
        await world.scheduler().start(action)
        await world.scheduler().stop(stop())

    async def test_a_hold_for_a_person_is_not_weakened(self, world: SchedulerWorld) -> None:
        await world.submit(JOB, 2)
        for id_, purpose in (("a", "recovery"), ("b", "person"), ("c", "recovery")):
            await world.scheduler().hold(HoldJob(id=id_, job=JOB, purpose=purpose))  # type: ignore[arg-type]
        assert await world.scheduler().holds() == {JOB: "person"}

    async def test_a_hold_lets_the_running_attempt_be(self, world: SchedulerWorld) -> None:
        await start(world)
        await world.scheduler().hold(HoldJob(id="hold", job=JOB, purpose="recovery"))
        assert [type(event) for event in await world.scheduler().observe()] == [AttemptStarted]
        await world.scheduler().stop(stop())
