"""What people, jobs and a dying slurmctld do meanwhile, on a real cluster."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from tests.e2e.slurm.cluster import Cluster, until_async

from medevac.adapters.schedulers.slurm import Commands, SlurmScheduler, SlurmSettings
from medevac.adapters.schedulers.slurm.marks import drain_tag, hold_mark
from medevac.core.actions import (
    FinishJob,
    GiveBack,
    HoldJob,
    Isolate,
    ReleaseJob,
    RequestCheckpoint,
    StartAttempt,
    StopAttempt,
)
from medevac.core.events import AnyEvent, AttemptEnded, AttemptStarted, JobSubmitted, OrderGiven, RankPlace
from medevac.ports.errors import OutcomeUnknown, Refused, Unavailable, Unsupported

OPTED_IN = """--comment={"medevac": {"max_restarts": 3}}"""
SLEEP = "srun sleep 600"


@pytest.fixture
def scheduler(slurm: Cluster, tmp_path: Path) -> SlurmScheduler:
    site = SlurmSettings(poll_s=0.05, pointers=str(tmp_path / "pointers"))
    return SlurmScheduler(Commands(conf=str(slurm.conf)), tmp_path / "state", site)


def submit(slurm: Cluster, *options: str, script: str = SLEEP) -> tuple[int, str]:
    number = slurm.submit(script, "-N2", OPTED_IN, *options)
    slurm.wait_state(number, "RUNNING")
    return number, f"slurm-{number}"


async def seen(scheduler: SlurmScheduler, wanted: Callable[[AnyEvent], bool]) -> list[AnyEvent]:
    """All events, as soon as one of them is wanted."""
    events: list[AnyEvent] = []

    async def there() -> bool:
        events[:] = await scheduler.observe()
        return any(wanted(event) for event in events)

    await until_async(there, "the event is seen")
    return events


def is_end(attempt: int) -> Callable[[AnyEvent], bool]:
    return lambda event: isinstance(event, AttemptEnded) and event.attempt == attempt


def is_start(attempt: int) -> Callable[[AnyEvent], bool]:
    return lambda event: isinstance(event, AttemptStarted) and event.attempt == attempt


def one_end(events: list[AnyEvent], attempt: int = 1) -> AttemptEnded:
    (end,) = [event for event in events if isinstance(event, AttemptEnded) and event.attempt == attempt]
    return end


def go(job: str, attempt: int, *nodes: str, resume_from: int | None = None) -> StartAttempt:
    ranks = tuple(RankPlace(rank=rank, node=node) for rank, node in enumerate(nodes))
    return StartAttempt(id=f"{job}/start/{attempt}", job=job, attempt=attempt, ranks=ranks, resume_from=resume_from)


def stop(job: str, attempt: int = 1, grace_s: float = 0.0) -> StopAttempt:
    return StopAttempt(id=f"{job}/stop/{attempt}", cause="incident-1", job=job, attempt=attempt, grace_s=grace_s)


async def test_racks_are_the_lowest_switches(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    nodes = (await scheduler.cluster()).nodes
    assert {node.name: node.rack for node in nodes} == {
        "node0": "rack0", "node1": "rack0", "node2": "rack1", "node3": "rack1",
    }  # fmt: skip


async def test_a_job_comes_under_care_when_it_first_runs(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    slurm.submit(SLEEP, "-N2", OPTED_IN, "--begin=now+1day")
    slurm.submit(SLEEP, "-N1")
    assert await scheduler.observe() == ()
    _, name = submit(slurm)
    submitted, started = await seen(scheduler, is_start(1))
    assert isinstance(submitted, JobSubmitted)
    assert (submitted.job, submitted.ranks, submitted.policy.max_restarts) == (name, 2, 3)
    assert isinstance(started, AttemptStarted)
    assert len({place.node for place in started.ranks}) == 2


async def test_a_crashed_job_runs_on_other_nodes_and_keeps_the_users_exclusions(
    slurm: Cluster, scheduler: SlurmScheduler, tmp_path: Path
) -> None:
    number, name = submit(slurm, "--exclude=node3", "--gres=gpu:2", script="srun sh -c 'sleep 1; exit 9'")
    over = one_end(await seen(scheduler, is_end(1)))
    assert (over.code, over.why) == (9, "")
    (first,) = [e for e in await scheduler.observe() if isinstance(e, AttemptStarted)]
    left, kept = first.ranks[0].node, first.ranks[-1].node
    others = [node for node in slurm.nodes if node not in {left, "node3"}]
    again = await scheduler.start(go(name, 2, *others, resume_from=40))
    assert {place.node for place in again.ranks} == set(others)
    assert kept in others
    assert set(slurm.job(number)["ExcNodeList"].replace("[", "").replace("]", "").split(",")) == {left, "node3"}
    assert again.resume_from == 40
    assert "MEDEVAC_ATTEMPT=2" in (tmp_path / "pointers" / str(number)).read_text()


async def test_the_prolog_tells_the_next_attempt_what_to_load(
    slurm: Cluster, scheduler: SlurmScheduler, tmp_path: Path
) -> None:
    scheduler.site = msgspec.structs.replace(scheduler.site, pointers=str(slurm.pointers))
    script = f"""
        echo "batch $MEDEVAC_RESUME_FROM" >> {tmp_path}/told
        srun -n1 sh -c 'echo "step $MEDEVAC_ATTEMPT $MEDEVAC_RESUME_FROM" >> {tmp_path}/told'
        sleep 1; exit 1"""
    comment = json.dumps({"medevac": {"checkpoint_dir": "/shared/run 1"}})
    number = slurm.submit(script, f"--comment={comment}")
    name = f"slurm-{number}"
    await seen(scheduler, is_end(1))
    await scheduler.start(go(name, 2, "node0", resume_from=40))
    await seen(scheduler, is_end(2))
    first, *later = sorted((tmp_path / "told").read_text().splitlines())
    assert first == "batch "
    assert later == ["batch /shared/run 1/step_00000040", "step 1 ", "step 2 /shared/run 1/step_00000040"]


async def test_a_stop_is_quick_where_sigterm_is_trapped(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    trap = """trap '' TERM; srun bash -c "trap '' TERM; sleep 600" """
    number, name = submit(slurm, script=trap)
    await seen(scheduler, is_start(1))
    over = await scheduler.stop(stop(name))
    assert over is not None
    assert (over.why, over.attempt) == ("stopped", 1)
    assert await scheduler.holds() == {name: "recovery"}
    mark = hold_mark(admin_comment(slurm, number))
    assert mark is not None
    assert (mark.hold, mark.purpose) == ("incident-1", "recovery")
    again = await scheduler.start(go(name, 2, "node0", "node1"))
    assert again.attempt == 2
    assert await scheduler.holds() == {}
    assert hold_mark(admin_comment(slurm, number)) is None


async def test_a_stop_with_grace_lets_the_job_end_in_order(
    slurm: Cluster, scheduler: SlurmScheduler, tmp_path: Path
) -> None:
    saved, ready = tmp_path / "saved", tmp_path / "ready"
    script = f"""srun -n1 bash -c "trap 'touch {saved}; exit 0' TERM; touch {ready}; while :; do sleep 0.1; done" """
    _, name = submit(slurm, script=script)
    await seen(scheduler, is_start(1))
    await until_async(ready.exists, "its trap is set")
    over = await scheduler.stop(stop(name, grace_s=5.0))
    assert over is not None
    assert over.why == "stopped"
    assert saved.exists()


async def test_a_persons_requeue_is_the_next_attempt(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    number, name = submit(slurm)
    await seen(scheduler, is_start(1))
    slurm.call("scontrol", "requeue", str(number))
    assert one_end(await seen(scheduler, is_end(1))).why == "requeued"
    slurm.wait_state(number, "PENDING")
    slurm.call("scontrol", "update", f"JobId={number}", "StartTime=now")
    await seen(scheduler, is_start(2))
    assert (await scheduler.start(go(name, 2, "node0", "node1"))).attempt == 2


async def test_a_cancelled_job_stays_cancelled(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    number, name = submit(slurm)
    await seen(scheduler, is_start(1))
    slurm.call("scancel", str(number))
    events = await seen(scheduler, is_end(1))
    (order,) = [event for event in events if isinstance(event, OrderGiven)]
    assert (order.what, order.target) == ("stop", name)
    with pytest.raises(Refused, match="cancelled"):
        await scheduler.start(go(name, 2, "node0", "node1"))
    assert slurm.state(number) == "CANCELLED"


async def test_a_persons_hold_is_never_released(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    number, name = submit(slurm)
    await seen(scheduler, is_start(1))
    slurm.call("scontrol", "requeuehold", str(number))
    await seen(scheduler, is_end(1))
    assert await scheduler.holds() == {}
    with pytest.raises(Refused, match="held by a person"):
        await scheduler.start(go(name, 2, "node0", "node1"))
    await scheduler.hold(HoldJob(id="hold", job=name, purpose="person"))
    assert await scheduler.holds() == {name: "person"}
    await scheduler.release(ReleaseJob(id="release", job=name))
    assert await scheduler.holds() == {}
    assert slurm.job(number)["Priority"] == "0", "their hold stands"


async def test_a_job_that_ended_is_held_for_a_person_in_the_queue(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    number, name = submit(slurm, script="sleep 1; exit 3")
    await seen(scheduler, is_end(1))
    await scheduler.hold(HoldJob(id="hold", job=name, purpose="person"))
    assert slurm.state(number) == "PENDING"
    assert await scheduler.holds() == {name: "person"}
    await scheduler.release(ReleaseJob(id="release", job=name))
    assert (await scheduler.start(go(name, 2, "node0", "node1"))).attempt == 2


async def test_what_others_wrote_into_the_admin_comment_stays(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    for theirs in ('{"billing": 7}', "call Kim before you touch this"):
        number, name = submit(slurm)
        slurm.call("scontrol", "update", f"JobId={number}", f"AdminComment={theirs}")
        await scheduler.hold(HoldJob(id="hold", job=name, purpose="person"))
        assert hold_mark(admin_comment(slurm, number)) is not None
        await scheduler.release(ReleaseJob(id="release", job=name))
        assert admin_comment(slurm, number) == theirs


async def test_a_job_that_may_not_be_requeued_is_only_watched(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    number, name = submit(slurm, "--no-requeue")
    submitted = (await seen(scheduler, is_start(1)))[0]
    assert isinstance(submitted, JobSubmitted)
    assert not submitted.policy.enabled
    with pytest.raises(Unsupported, match="no-requeue"):
        await scheduler.stop(stop(name))
    assert slurm.state(number) == "RUNNING"


async def test_a_job_that_ends_while_we_decide_is_not_run_again(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    number, name = submit(slurm, script="sleep 1")
    await seen(scheduler, is_start(1))
    slurm.wait_state(number, "COMPLETED")
    over = await scheduler.stop(stop(name))
    assert over is not None
    assert (over.code, over.why) == (0, "")
    assert slurm.state(number) == "COMPLETED"


async def test_each_task_of_an_array_is_a_job(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    number = slurm.submit(
        "srun sleep $((SLURM_ARRAY_TASK_ID == 2 ? 1 : 600)); exit $SLURM_ARRAY_TASK_ID", "--array=1-3", OPTED_IN
    )
    name = f"slurm-{number}_2"
    events = await seen(scheduler, lambda e: isinstance(e, AttemptEnded) and e.job == name)
    over = one_end([event for event in events if getattr(event, "job", "") == name])
    assert over.code == 2
    assert (await scheduler.start(go(name, 2, "node0"))).job == name
    running = f"slurm-{number}_3"
    stopped = await scheduler.stop(stop(running))
    assert stopped is not None
    assert stopped.job == running
    assert await scheduler.holds() == {running: "recovery"}
    assert slurm.state(f"{number}_1") == "RUNNING"


async def test_without_nodes_enough_the_start_is_refused_and_nothing_changes(
    slurm: Cluster, scheduler: SlurmScheduler
) -> None:
    _, name = submit(slurm, script="sleep 1; exit 1")
    await seen(scheduler, is_end(1))
    for node in slurm.nodes[:3]:
        await scheduler.isolate(Isolate(id=f"out-{node}", node=node, mode="hard"))
    with pytest.raises(Refused, match="needs 2 nodes; 1"):
        await scheduler.start(go(name, 2, "node3"))


async def test_a_persons_drain_is_left_as_it_is(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    slurm.call("scontrol", "update", "NodeName=node1", "State=DRAIN", "Reason=fan tray, ticket 12")
    await scheduler.isolate(Isolate(id="out", node="node1", mode="hard"))
    assert await scheduler.isolated() == {}
    await scheduler.give_back(GiveBack(id="back", node="node1"))
    assert "fan tray, ticket 12" in slurm.call("scontrol", "-o", "show", "node", "node1").stdout


async def test_a_drain_says_whose_it_is_and_why(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    action = Isolate(id="out", node="node1", mode="hard", cause="incident-7", reason="Xid 79 [on GPU 3] @boot")
    await scheduler.isolate(action)
    tag = drain_tag((await scheduler.look.node("node1")).reason)
    assert tag is not None
    assert (tag.out, tag.incident, tag.why) == ({"node1": "hard"}, "incident-7", "Xid 79 (on GPU 3) at boot")


async def test_a_resume_by_a_person_stands(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    action = Isolate(id="out", node="node1", mode="hard")
    await scheduler.isolate(action)
    slurm.call("scontrol", "update", "NodeName=node1", "State=RESUME")
    assert await scheduler.isolated() == {}
    await scheduler.isolate(action)
    assert await scheduler.isolated() == {}


async def test_a_signal_reaches_the_steps(slurm: Cluster, scheduler: SlurmScheduler, tmp_path: Path) -> None:
    asked, ready = tmp_path / "asked", tmp_path / "ready"
    script = f"""srun -n1 bash -c "trap 'touch {asked}; exit 83' USR1; touch {ready}; while :; do sleep 0.1; done" """
    _, name = submit(slurm, script=script)
    await seen(scheduler, is_start(1))
    await until_async(ready.exists, "its trap is set")
    await scheduler.request_checkpoint(RequestCheckpoint(id="ask", job=name, attempt=1))
    assert one_end(await seen(scheduler, is_end(1))).code == 83
    assert asked.exists()


async def test_what_a_given_up_job_left_held_waits_for_a_person(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    _, name = submit(slurm)
    await seen(scheduler, is_start(1))
    await scheduler.stop(stop(name))
    await scheduler.finish(FinishJob(id="finish", job=name, code=4))
    assert await scheduler.holds() == {name: "person"}


async def test_a_dead_controller_is_unavailable_and_never_no_jobs(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    _, name = submit(slurm)
    before = await seen(scheduler, is_start(1))
    slurm.save()
    slurm.kill("slurmctld")
    impatient = SlurmScheduler(Commands(conf=str(slurm.conf), deadline_s=3.0), scheduler.memory.folder.parent)
    with pytest.raises(Unavailable):
        await impatient.observe()
    with pytest.raises(Unavailable):
        await impatient.holds()
    with pytest.raises(Unavailable):
        await impatient.cluster()
    slurm.start_controller()
    after = await seen(impatient, is_start(1))
    assert after[: len(before)] == before
    assert (await impatient.stop(stop(name))) is not None


async def test_a_job_that_slurm_has_lost_is_over(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    number, name = submit(slurm)
    scheduler.site = msgspec.structs.replace(scheduler.site, lost_after_s=0.2)
    await seen(scheduler, is_start(1))
    memory = msgspec.structs.replace(scheduler.memory.jobs()[name], name="slurm-999", slurm="999")
    memory = msgspec.json.decode(msgspec.json.encode(memory).replace(name.encode(), b"slurm-999"), type=type(memory))
    scheduler.memory.save(memory)
    events = await seen(scheduler, lambda e: isinstance(e, AttemptEnded) and e.job == "slurm-999")
    assert [e.why for e in events if isinstance(e, AttemptEnded)] == ["lost"]
    assert [e.target for e in events if isinstance(e, OrderGiven)] == ["slurm-999"]
    assert slurm.state(number) == "RUNNING"


async def test_monitor_mode_sends_nothing_that_changes_anything(slurm: Cluster, tmp_path: Path) -> None:
    _, name = submit(slurm)
    scheduler = SlurmScheduler(Commands(conf=str(slurm.conf), mode="monitor"), tmp_path / "state")
    await seen(scheduler, is_start(1))
    mark = len(slurm.log)
    orders: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: scheduler.isolate(Isolate(id="out", node="node0", mode="hard")),
        lambda: scheduler.stop(stop(name)),
        lambda: scheduler.hold(HoldJob(id="hold", job=name, purpose="person")),
        lambda: scheduler.request_checkpoint(RequestCheckpoint(id="ask", job=name, attempt=1)),
    )
    for order in orders:
        with pytest.raises(Refused, match="monitor mode"):
            await order()
    changes = [line for line in slurm.log[mark:].splitlines() if any(word in line for word in CHANGES)]
    assert changes == []
    assert "REQUEST_NODE_INFO" in slurm.log[mark:]


CHANGES = (
    "REQUEST_UPDATE",
    "REQUEST_KILL",
    "REQUEST_CANCEL",
    "REQUEST_SUSPEND",
    "REQUEST_JOB_REQUEUE",
    "REQUEST_SUBMIT",
)


def admin_comment(slurm: Cluster, number: int) -> str:
    """The job's AdminComment."""
    text = slurm.call("squeue", "-h", "-t", "all", "-j", str(number), "-O", "admin_comment:|").stdout
    comment = text.strip().removesuffix("|")
    return "" if comment == "(null)" else comment


async def test_a_start_that_waits_in_the_queue_keeps_its_place(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    number, name = submit(slurm, script="sleep 1; exit 1")
    await seen(scheduler, is_end(1))
    other = slurm.submit("sleep 600", "-N4", "--exclusive")
    slurm.wait_state(other, "RUNNING")
    scheduler.site = msgspec.structs.replace(scheduler.site, start_wait_s=1.0)
    with pytest.raises(OutcomeUnknown, match="waits in Slurm's queue"):
        await scheduler.start(go(name, 2, "node0", "node1"))
    place = slurm.job(number)["EligibleTime"]
    with pytest.raises(OutcomeUnknown):
        await scheduler.start(go(name, 2, "node0", "node1"))
    assert slurm.job(number)["EligibleTime"] == place
    slurm.call("scancel", str(other))
    await seen(scheduler, is_start(2))
    assert (await scheduler.start(go(name, 2, "node0", "node1"))).attempt == 2
