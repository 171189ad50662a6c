"""A person who resumes a node at the scheduler itself has given it back."""

from __future__ import annotations

import pytest
from tests.unit.core.builders import CLUSTER, DEMO, Told, xid

from medevac.controller.resumed import BY, Resumed
from medevac.core import events as ev


@pytest.fixture
def told() -> Told:
    told = Told(DEMO)
    told.tell(CLUSTER, xid(79, "g00", 5.0))
    told.settle(6.0)
    assert told.view.device("g00").state == "isolated"
    return told


def test_what_was_out_and_twice_is_not_is_given_back(told: Told) -> None:
    resumed = Resumed()
    assert resumed.look(told.view, {"g00": "hard"}, 10.0) == ()
    assert resumed.look(told.view, {}, 25.0) == ()
    (order,) = resumed.look(told.view, {}, 40.0)
    assert (order.what, order.target, order.who, order.at) == ("return", "g00", BY, 40.0)
    told.tell(order)
    told.settle(41.0)
    assert told.view.device("g00").state == "healthy"
    assert resumed.look(told.view, {}, 55.0) == ()


def test_one_look_that_misses_it_says_nothing(told: Told) -> None:
    resumed = Resumed()
    looks: list[dict[str, str]] = [{"g00": "hard"}, {}, {"g00": "hard"}, {}]
    assert [resumed.look(told.view, out, at) for at, out in enumerate(looks, 10)] == [(), (), (), ()]


def test_what_was_never_out_by_our_hand_is_a_persons(told: Told) -> None:
    resumed = Resumed()
    assert [resumed.look(told.view, {}, at) for at in (10.0, 25.0, 40.0)] == [(), (), ()]


def test_what_we_give_back_ourselves_is_no_order(told: Told) -> None:
    resumed = Resumed()
    resumed.look(told.view, {"g00": "hard"}, 10.0)
    told.tell(ev.OrderGiven(at=11.0, what="return", target="g00", who="root"))
    assert [resumed.look(told.view, {}, at) for at in (25.0, 40.0)] == [(), ()]
