"""The loop, the performer and what they listen to, in virtual time: errors, lost answers, slow calls, restarts."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest
from tests.unit.controller.worlds import EPOCH, POLICY, ListSource, World

from medevac.controller.runtime import Runtime
from medevac.core.actions import ExamineAttempt, StartAttempt, StopAttempt
from medevac.core.diagnose_case import Clue
from medevac.core.events import (
    ActionSettled,
    AttemptEnded,
    AttemptExamined,
    CheckpointSealed,
    ClusterSeen,
    FaultSeen,
    Gpu,
    JobSubmitted,
    Node,
    OrderGiven,
    StepReported,
    TimePassed,
    WatchBegan,
)
from medevac.ports.errors import BadReply, ConfigError, FencedOff, OutcomeUnknown, Refused, Unavailable, Unsupported
from medevac.ports.store import EventRecord

pytestmark = pytest.mark.looptime


@pytest.fixture
async def world() -> World:
    return World()


def lost(world: World, gpu: str = "g00", at: float | None = None) -> FaultSeen:
    """Xid 79."""
    node = f"n{gpu[1]}"
    return FaultSeen(at=at or world.clock.now(), id=f"xid/{gpu}", kind="xid", code=79, node=node, gpu=gpu)


async def trains(world: World, job: str = "train", attempt: int = 1) -> None:
    """The attempt runs, moves on and saves."""
    await world.started(attempt, job)
    for step in range(1, 4):
        await world.step(step, attempt, job=job)
    world.seal(3 * attempt, attempt, job)


# --- a life -----------------------------------------------------------------------------------------------------------


async def test_a_job_runs_to_its_end(world: World) -> None:
    await world.submit()
    running = asyncio.create_task(world.run())
    await trains(world)
    world.cluster.end("train", 1)
    await running
    assert [type(action).__name__ for action in await world.actions()] == ["StartAttempt", "PointClean", "FinishJob"]
    assert {event.outcome for event in await world.events(ActionSettled)} == {"done"}
    assert world.ended == ["train"]


async def test_a_lost_gpu_moves_the_job(world: World) -> None:
    await world.submit()
    running = asyncio.create_task(world.run())
    await trains(world)
    await world.tell(lost(world))
    await trains(world, attempt=2)
    await world.step(9, 2)
    world.cluster.end("train", 2)
    runtime = await running
    assert world.cluster.out == {"g00": "hard"}
    assert world.cluster.started["train", 2].resume_from == 3
    assert "g00" not in {gpu for place in world.cluster.started["train", 2].ranks for gpu in place.gpus}
    assert world.files.clean == max(sealed.step for sealed in world.files.sealed["train"])
    assert not runtime.loop.view.pending


# --- what comes in ----------------------------------------------------------------------------------------------------


async def test_the_folder_is_read_before_anything_is_decided_on_the_job(world: World) -> None:
    """A checkpoint that is there from the beginning is not passed over."""
    await world.submit()
    world.files.sealed["train"] = [CheckpointSealed(at=EPOCH, id="old", job="train", attempt=0, step=40)]
    running = asyncio.create_task(world.run())
    await world.started()
    assert world.cluster.started["train", 1].resume_from == 40
    world.cluster.end("train", 1)
    await running
    kinds = [type(r.event) for r in await world.log() if isinstance(r, EventRecord)]
    assert kinds[kinds.index(JobSubmitted) + 1] is CheckpointSealed
    assert kinds.index(ClusterSeen) < kinds.index(JobSubmitted) < kinds.index(TimePassed)


async def test_an_unreadable_folder_is_waited_for_not_taken_for_empty(world: World) -> None:
    await world.submit()
    world.files.sealed["train"] = [CheckpointSealed(at=EPOCH, id="old", job="train", attempt=0, step=40)]
    world.faulty["checkpoints"].before["scan"] = [Unavailable("the file system is away")] * 8
    running = asyncio.create_task(world.run())
    await world.started()
    assert world.cluster.started["train", 1].resume_from == 40
    world.cluster.end("train", 1)
    await running


async def test_a_checkpoint_sealed_just_before_the_end_is_seen_before_the_end(world: World) -> None:
    await world.submit()
    running = asyncio.create_task(world.run())
    await trains(world)
    world.seal(7)
    world.cluster.end("train", 1, (1,))
    await world.started(2)
    assert world.cluster.started["train", 2].resume_from == 7
    kinds = [(type(r.event), getattr(r.event, "step", 0)) for r in await world.log() if isinstance(r, EventRecord)]
    assert kinds.index((CheckpointSealed, 7)) < kinds.index((AttemptEnded, 0))
    await world.step(9, 2)
    world.cluster.end("train", 2)
    await running


async def test_a_source_that_cannot_be_read_stops_no_other(world: World) -> None:
    broken, well = ListSource("broken", broken=10**6), ListSource("well")
    world.nodes = [broken, well]
    await world.submit()
    running = asyncio.create_task(world.run())
    await trains(world)
    await well.queue.put(lost(world))
    await trains(world, attempt=2)
    world.cluster.end("train", 2)
    await running
    assert world.cluster.out == {"g00": "hard"}
    assert await world.memory.cursor("well") == "xid/g00"


async def test_events_are_stamped_with_the_controllers_time(world: World) -> None:
    source = ListSource()
    world.nodes = [source]
    await world.submit()
    running = asyncio.create_task(world.run())
    await world.started()
    await source.queue.put(lost(world, "g12", at=5.0))
    await world.until(lambda: "g12" in world.cluster.out)
    (seen,) = await world.events(FaultSeen)
    assert seen.at == 5.0
    assert seen.seen_at >= EPOCH
    world.cluster.end("train", 1)
    await running


# --- outcomes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["start", "isolate", "stop"])
@pytest.mark.parametrize("problem", [OutcomeUnknown("no answer"), BadReply("garbled")])
async def test_a_lost_answer_is_read_back_and_not_done_again(world: World, method: str, problem: Exception) -> None:
    scheduler = world.faulty["scheduler"]
    scheduler.after[method] = [problem]
    await world.submit()
    running = asyncio.create_task(world.run())
    await trains(world)
    await world.tell(lost(world))
    await trains(world, attempt=2)
    await world.step(9, 2)
    world.cluster.end("train", 2)
    await running
    assert scheduler.calls.count(method) == (2 if method == "start" else 1)
    name = {"start": "/start/1", "isolate": "/isolate-hard/", "stop": "/stop/"}[method]
    assert await world.outcomes(name) == ["unknown", "done"]


async def test_what_was_never_done_is_tried_until_it_is_and_said_once(world: World) -> None:
    world.faulty["scheduler"].before["start"] = [Unavailable("down")] * 20
    await world.submit()
    running = asyncio.create_task(world.run())
    await world.started()
    await world.until(lambda: not world.faulty["scheduler"].before["start"])
    world.cluster.end("train", 1)
    await running
    assert await world.outcomes("/start/1") == ["unknown", "done"]


@pytest.mark.parametrize(("problem", "outcome"), [(Refused("no"), "refused"), (Unsupported("cannot"), "unsupported")])
async def test_a_refusal_is_settled_and_decided_on(world: World, problem: Exception, outcome: str) -> None:
    world.faulty["scheduler"].before["start"] = [problem]
    await world.submit()
    running = asyncio.create_task(world.run())
    await world.started()
    world.cluster.end("train", 1)
    await running
    assert await world.outcomes("/start/1") == [outcome, "done"]


async def test_an_attempt_that_never_ran_is_stopped_by_saying_so(world: World) -> None:
    """Its start was refused after its stop was ordered: the job must go on all the same."""
    scheduler = world.faulty["scheduler"]
    scheduler.slow["start"] = 5.0
    scheduler.before["start"] = [Refused("no")]
    await world.submit()
    running = asyncio.create_task(world.run())
    await world.until(lambda: "start" in scheduler.calls)
    await world.tell(lost(world))
    await world.started(2)
    world.cluster.end("train", 2)
    await running
    assert "g00" not in {gpu for place in world.cluster.started["train", 2].ranks for gpu in place.gpus}


async def test_a_checkpoint_that_is_gone_is_not_resumed_from(world: World) -> None:
    await world.submit()
    running = asyncio.create_task(world.run())
    await trains(world)
    world.seal(5)
    await asyncio.sleep(2)
    world.faulty["checkpoints"].before["verify"] = [Refused("step 5: there is no such checkpoint")]
    world.cluster.end("train", 1, (1,))
    await world.started(2)
    assert world.cluster.started["train", 2].resume_from == 3
    await world.step(9, 2)
    world.cluster.end("train", 2)
    await running


async def test_a_slow_stop_delays_no_other_job(world: World) -> None:
    scheduler = world.faulty["scheduler"]
    scheduler.slow["stop"] = 300.0
    await world.submit("train", ranks=2)
    await world.submit("other", ranks=1)
    running = asyncio.create_task(world.run())
    await trains(world)
    await trains(world, "other")
    (mine,) = set(gpus_of(world, "train")) - set(gpus_of(world, "other"))
    began = world.clock.now()
    await world.tell(lost(world, mine))
    await world.until(lambda: mine in world.cluster.out)
    world.cluster.end("other", 1, (1,))
    await world.started(2, "other")
    assert world.clock.now() - began < 60
    assert ("train", 1) not in world.cluster.ended
    world.cluster.end("other", 2)
    await world.until(lambda: ("train", 2) in world.cluster.started)
    world.cluster.end("train", 2)
    await running


def gpus_of(world: World, job: str) -> list[str]:
    return [gpu for place in world.cluster.started[job, 1].ranks for gpu in place.gpus]


async def test_an_unwritable_lineage_does_not_hold_up_the_stop(world: World) -> None:
    world.faulty["checkpoints"].before["judge"] = [Unavailable("disk full")] * 50
    await world.submit()
    running = asyncio.create_task(world.run())
    await trains(world)
    await asyncio.sleep(1)
    fault = msgspec.structs.replace(lost(world), code=48)
    began = world.clock.now()
    await world.tell(fault)
    await world.until(lambda: ("train", 1) in world.cluster.ended)
    assert world.clock.now() - began < 5
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_full_disk_stops_all_doing(world: World) -> None:
    """Nothing is done that is not written down."""
    store = world.faulty["store"]
    await world.submit()
    running = asyncio.create_task(world.run())
    await trains(world)
    await asyncio.sleep(1)
    store.before["append_decision"] = [Unavailable("disk full")] * 10
    await world.tell(lost(world))
    await asyncio.sleep(5)
    assert world.cluster.out == {}
    await world.until(lambda: "g00" in world.cluster.out)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_fenced_controller_stops_acting(world: World) -> None:
    await world.submit()
    running = asyncio.create_task(world.run())
    await trains(world)
    world.fenced = FencedOff("another")
    await world.tell(lost(world))
    with pytest.raises(ExceptionGroup) as caught:
        await running
    assert caught.group_contains(FencedOff)
    assert world.cluster.out == {}
    assert ("train", 1) not in world.cluster.ended


# --- restarts ---------------------------------------------------------------------------------------------------------


async def test_a_controller_that_takes_over_decides_nothing_anew(world: World) -> None:
    await world.submit()
    first = asyncio.create_task(world.run())
    await trains(world)
    await world.tell(lost(world))
    await trains(world, attempt=2)
    await world.step(9, 2)
    await asyncio.sleep(1)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    before = await world.decisions()
    second = asyncio.create_task(world.run())
    await asyncio.sleep(5)
    assert (await world.decisions())[: len(before)] == before
    assert not [d for d in (await world.decisions())[len(before) :] if d.actions]
    world.cluster.end("train", 2)
    runtime = await second
    assert runtime.loop.view.jobs["train"].state == "finished"
    assert len([action for action in await world.actions() if isinstance(action, StartAttempt)]) == 2


async def test_an_event_without_its_decision_is_decided_on_by_the_next_controller(world: World) -> None:
    await world.submit()
    first = asyncio.create_task(world.run())
    await trains(world)
    await asyncio.sleep(1)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await world.tell(lost(world))
    second = asyncio.create_task(world.run())
    await world.started(2)
    assert world.cluster.out == {"g00": "hard"}
    world.cluster.end("train", 2)
    await second


async def test_what_was_ordered_and_not_settled_is_read_back_first(world: World) -> None:
    scheduler = world.faulty["scheduler"]
    await world.submit()
    first = asyncio.create_task(world.run())
    await world.started()
    await world.step(1)
    await asyncio.sleep(1)
    world.faulty["store"].slow["append_events"] = 1000.0
    await world.tell(lost(world))
    await world.until(lambda: ("train", 1) in world.cluster.ended)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert await world.outcomes("/stop/") == []
    world.faulty["store"].slow.clear()
    scheduler.calls.clear()
    second = asyncio.create_task(world.run())
    await world.started(2)
    assert "stop" not in scheduler.calls
    assert "isolate" not in scheduler.calls
    assert await world.outcomes("/stop/") == ["done"]
    world.cluster.end("train", 2)
    await second


# --- time -------------------------------------------------------------------------------------------------------------


def stopped_rank() -> AttemptExamined:
    clue = Clue(signature="process-stopped", role="symptom", symptom="hang", text="rank 1 is stopped", rank=1)
    return AttemptExamined(at=EPOCH, id="train/1/examined", job="train", attempt=1, clues=(clue,))


async def hangs(world: World) -> None:
    await world.started()
    for step in range(1, 30):
        await world.step(step)
        await asyncio.sleep(1)


async def test_a_job_that_hangs_is_stopped_at_its_limit(world: World) -> None:
    world.seen = [stopped_rank()]
    await world.submit()
    running = asyncio.create_task(world.run())
    await hangs(world)
    began = world.clock.now()
    await world.until(lambda: ("train", 1) in world.cluster.ended)
    assert 2 < world.clock.now() - began < 8
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_hang_that_nothing_confirms_is_given_time(world: World) -> None:
    await world.submit()
    running = asyncio.create_task(world.run())
    await hangs(world)
    began = world.clock.now()
    await world.until(lambda: ("train", 1) in world.cluster.ended)
    assert 300 < world.clock.now() - began < 320
    assert len([a for a in await world.actions() if isinstance(a, ExamineAttempt)]) > 5
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_stall_is_named_and_not_acted_on(world: World) -> None:
    await world.submit()
    running = asyncio.create_task(world.run())
    await hangs(world)
    await asyncio.sleep(200)
    for step in range(1000, 1010):
        await asyncio.sleep(1)
        await world.step(step)
    assert not world.cluster.ended
    assert [f.rule for d in await world.decisions() for f in d.findings] == ["hang"]
    world.cluster.end("train", 1)
    await running


async def test_silence_while_nobody_listened_is_no_hang(world: World) -> None:
    await world.submit()
    first = asyncio.create_task(world.run())
    await hangs(world)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.sleep(1000)
    second = asyncio.create_task(world.run())
    for step in range(1000, 1010):
        await asyncio.sleep(1)
        await world.step(step)
    assert not world.cluster.ended
    world.cluster.end("train", 1)
    await second
    assert len(await world.events(WatchBegan)) == 2


async def test_time_is_not_told_again_and_again_for_nothing(world: World) -> None:
    """A deadline that a pause keeps from coming true."""
    await world.submit()
    await world.tell(OrderGiven(at=EPOCH, what="pause", who="alex"))
    running = asyncio.create_task(world.run())
    await trains(world)
    world.cluster.end("train", 1, (1,))
    await asyncio.sleep(600)
    assert len(await world.events(TimePassed)) < 200
    await world.tell(OrderGiven(at=EPOCH, what="resume", who="alex"))
    await world.started(2)
    world.cluster.end("train", 2)
    await running


async def test_a_stop_by_order_ends_the_job(world: World) -> None:
    await world.submit()
    running = asyncio.create_task(world.run())
    await trains(world)
    await world.tell(OrderGiven(at=world.clock.now(), what="stop", who="alex", target="train"))
    runtime = await running
    assert runtime.loop.view.jobs["train"].state == "ended"
    assert [action for action in await world.actions() if isinstance(action, StopAttempt)]
    assert ("train", 1) in world.cluster.ended


async def test_many_reports_are_taken_in_order(world: World) -> None:
    source = ListSource()
    world.nodes = [source]
    await world.submit()
    running = asyncio.create_task(world.run())
    await world.started()
    for step in range(500):
        await source.queue.put(StepReported(at=EPOCH, job="train", attempt=1, step=step))
    await world.until(source.queue.empty)
    await asyncio.sleep(1)
    assert [event.step for event in await world.events(StepReported)] == list(range(500))
    world.cluster.end("train", 1)
    await running


def test_the_policy_here_is_the_one_for_a_single_machine() -> None:
    assert POLICY.name == "local"


# --- nodes that come later --------------------------------------------------------------------------------------------


async def test_of_a_node_that_people_take_out_the_log_hears_once(world: World) -> None:
    """And of no other node: a big cluster's list is long."""
    before = world.cluster.nodes
    runtime = Runtime(world, world.policy, endless=True, look_around_s=5.0)
    running = asyncio.create_task(runtime.run())
    await asyncio.sleep(12)
    gone = msgspec.structs.replace(before[0], out=True)
    world.cluster.nodes = (gone, *before[1:])
    await asyncio.sleep(30)
    assert [(seen.nodes, seen.whole) for seen in await world.events(ClusterSeen)] == [(before, True), ((gone,), False)]
    assert tuple(runtime.loop.view.nodes.values()) == (gone, *before[1:])
    assert set(runtime.loop.view.owners) == {gpu.uuid for node in before for gpu in node.gpus}
    world.cluster.nodes = before
    await asyncio.sleep(12)
    assert tuple(runtime.loop.view.nodes.values()) == before
    running.cancel()


async def test_nodes_that_come_later_are_taken_in_and_listened_to(world: World) -> None:
    """Without a new controller; what cannot be read meanwhile is read later, and each source is followed once."""
    first, later = ListSource("n0"), ListSource("n9")
    world.nodes = [first]
    runtime = Runtime(world, world.policy, endless=True, look_around_s=5.0)
    running = asyncio.create_task(runtime.run())
    await asyncio.sleep(12)
    assert len(await world.events(ClusterSeen)) == 1
    world.cluster.nodes = (*world.cluster.nodes, Node(name="n9", gpus=(Gpu(index=0, uuid="g90"),)))
    world.nodes = [ListSource("n0"), later]
    world.faulty["scheduler"].before["cluster"] = [Unavailable("not now"), ConfigError("topology.toml", "no TOML")]
    await asyncio.sleep(20)
    assert len(await world.events(ClusterSeen)) == 2
    assert "n9" in runtime.loop.view.nodes
    for source, node in ((first, "n0"), (later, "n9")):
        source.queue.put_nowait(FaultSeen(at=world.clock.now(), id=f"f/{node}", kind="xid", code=13, node=node))
    await asyncio.sleep(5)
    assert [event.node for event in await world.events(FaultSeen)] == ["n0", "n9"]
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
