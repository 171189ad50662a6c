"""Jobs that run on less than they want: how they shrink, when they grow back, and whom a launcher's end blames."""

from __future__ import annotations

import pytest
from tests.unit.core.builders import CLUSTER, DEMO, NODES, Told, kinds, sealed, xid
from tests.unit.core.test_recovery import again, end

from medevac.core import events as ev
from medevac.core.actions import RequestCheckpoint, StartAttempt
from medevac.core.placement import place


def started(*, ranks: int = 3, gpus_per_rank: int = 0, least: int | None = 1, source: str = "local") -> Told:
    """A job, by default torchrun's agents on three nodes, at step 1."""
    told = Told(DEMO)
    policy = ev.JobPolicy(checkpoint_dir="/c", min_ranks=least)
    submitted = ev.JobSubmitted(
        at=1.0, job="job", ranks=ranks, gpus_per_rank=gpus_per_rank, policy=policy, source=source
    )
    told.tell(CLUSTER, submitted, ev.TimePassed(at=1.0))
    goes_on(told, 1.0, 1)
    return told


def goes_on(told: Told, at: float, step: int) -> None:
    job = told.view.jobs["job"]
    told.tell(ev.AttemptStarted(at=at, job="job", attempt=job.attempt, ranks=job.ranks))
    told.settle(at)
    told.tell(ev.StepReported(at=at + 1, job="job", attempt=job.attempt, step=step))


def gpus(told: Told) -> list[int]:
    return [len(place.gpus) for place in told.view.jobs["job"].ranks]


def shrunk(told: Told) -> Told:
    """A GPU of the first node has failed, and the job runs again, without it."""
    told.tell(sealed(told, 10, 3.0), xid(79, "g00", 5.0))
    told.settle(5.5)
    end(told, 6.0, why="stopped")
    told.tell(ev.TimePassed(at=told.view.deadline() or 0.0))
    told.tell(ev.CheckpointVerified(at=8.0, job="job", step=10, ok=True))
    goes_on(told, 9.0, 20)
    return told


def test_agents_take_what_their_nodes_have_left() -> None:
    told = started()
    assert gpus(told) == [3, 3, 3]
    assert gpus(shrunk(told)) == [2, 3, 3]
    assert told.view.jobs["job"].state == "running"


def test_it_grows_back_at_once_when_what_it_lost_is_back() -> None:
    told = shrunk(started())
    told.tell(ev.OrderGiven(at=20.0, what="return", target="g00", who="a person"))
    told.settle(21.0)
    asked = [action for decision in told.decisions for action in decision.actions]
    assert [a.attempt for a in asked if isinstance(a, RequestCheckpoint)] == [2]
    job = told.view.jobs["job"]
    assert (job.state, job.on) == ("leaving", "room")
    end(told, 22.0, code=83)
    told.tell(ev.TimePassed(at=told.view.deadline() or 0.0))
    decision = told.tell(ev.CheckpointVerified(at=24.0, job="job", step=10, ok=True))
    start = next(action for action in decision.actions if isinstance(action, StartAttempt))
    assert [len(place.gpus) for place in start.ranks] == [3, 3, 3]


@pytest.mark.parametrize("source", ["slurm", ""])
def test_where_others_place_it_nothing_is_asked_of_it(source: str) -> None:
    told = shrunk(started(source=source))
    told.tell(ev.OrderGiven(at=20.0, what="return", target="g00", who="a person"))
    told.settle(21.0)
    assert told.view.jobs["job"].state == "running"


def test_too_few_agents_wait() -> None:
    told = started(ranks=4, least=4)
    told.tell(ev.CheckpointSealed(at=3.0, job="job", attempt=1, step=10))
    for gpu in ("g00", "g01", "g02"):
        told.tell(xid(79, gpu, 5.0))
        told.settle(5.5)
    decision = None
    for at in range(6, 60):
        job = told.view.jobs["job"]
        if job.ended is None:
            end(told, float(at), why="stopped")
        told.tell(ev.TimePassed(at=float(at)))
        decision = told.tell(ev.CheckpointVerified(at=float(at), job="job", step=10, ok=True))
    assert decision is not None
    assert told.view.jobs["job"].state == "backing-off"
    assert "Page" in kinds([action for decision in told.decisions for action in decision.actions])


def test_a_launcher_that_crashes_twice_keeps_its_gpus() -> None:
    """Which of its ranks failed is not known: none of its GPUs is left out for it, as one rank's own would be."""
    told = started()
    for at in (10.0, 20.0):
        attempt = told.view.jobs["job"].attempt
        exits = (ev.RankExit(rank=0, code=1, at=at),)
        told.tell(ev.AttemptEnded(at=at, job="job", attempt=attempt, code=1, exits=exits))
        again(told)
    assert told.view.jobs["job"].attempt == 3
    assert gpus(told) == [3, 3, 3]


def test_one_agent_a_node() -> None:
    assert [(one.rank, one.node, len(one.gpus)) for one in place(NODES, 2, 0) or ()] == [(0, "n0", 3), (1, "n1", 3)]
    assert [one.node for one in place(NODES, 2, 0, out={"n0", "g10"}) or ()] == ["n1", "n2"]
    before = place(NODES, 2, 0, out={"n0", "n2"})
    assert [one.node for one in place(NODES, 2, 0, before=before or ()) or ()] == ["n1", "n3"]
    bare = tuple(ev.Node(name=name) for name in "ab")
    assert [one.node for one in place(bare, 5, 0) or ()] == ["a", "b"]
    assert place(NODES, 4, 0, out={"n0"}, least=4) is None


def test_only_ranks_of_our_own_have_gpus_to_be_blamed() -> None:
    agents, ranks = started().view.jobs["job"], started(gpus_per_rank=1).view.jobs["job"]
    assert [agents.own_gpus(rank) for rank in (0, 1, None)] == [(), (), ()]
    assert [ranks.own_gpus(rank) for rank in (0, 9, None)] == [ranks.ranks[0].gpus, (), ()]


def test_what_a_person_gave_back_is_not_blamed_for_the_job_any_more() -> None:
    told = started(gpus_per_rank=1)
    told.tell(sealed(told, 10, 3.0), xid(79, "g00", 5.0))
    told.settle(5.5)
    told.tell(ev.AttemptEnded(at=6.0, job="job", attempt=1, code=84, exits=(ev.RankExit(rank=0, code=84, at=6.0),)))
    assert "g00" in told.view.jobs["job"].culprits
    told.tell(ev.OrderGiven(at=20.0, what="return", target="g00", who="a person"))
    told.settle(21.0)
    assert told.view.device("g00").state == "healthy"
    assert "g00" not in told.view.jobs["job"].culprits


def test_after_starts_that_found_no_room_it_goes_back_to_where_it_ran() -> None:
    told = started(gpus_per_rank=1)
    had = [place.gpus for place in told.view.jobs["job"].ranks]
    told.tell(sealed(told, 10, 3.0), xid(79, "g00", 5.0))
    told.settle(5.5)
    end(told, 6.0, why="stopped")
    told.tell(ev.TimePassed(at=told.view.deadline() or 0.0))
    told.tell(ev.CheckpointVerified(at=8.0, job="job", step=10, ok=True))
    start = next(a for a in told.view.pending.values() if isinstance(a, StartAttempt))
    assert [place.gpus for place in start.ranks] != had
    told.tell(ev.ActionSettled(at=9.0, action=start.id, outcome="no-room", why="too few nodes"))
    told.tell(ev.OrderGiven(at=10.0, what="return", target="g00", who="a person"))
    told.settle(11.0)
    for at in (told.view.deadline() or 0.0, 400.0):
        told.tell(ev.TimePassed(at=at))
        told.tell(ev.CheckpointVerified(at=at, job="job", step=10, ok=True))
    start = next(a for a in told.view.pending.values() if isinstance(a, StartAttempt))
    assert [place.gpus for place in start.ranks] == had
