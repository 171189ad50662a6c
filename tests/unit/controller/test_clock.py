"""The controller's clock against one that is set forward and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from medevac.adapters.clock import SystemClock


class Machine:
    """A wall clock that is set, and a monotonic one that goes on."""

    def __init__(self) -> None:
        self.wall = 1_800_000_000.0
        self.monotonic = 1000.0

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds

    def clock(self, floor: float = 0.0) -> SystemClock:
        return SystemClock(floor, wall=lambda: self.wall, monotonic=lambda: self.monotonic)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(-1e6, 1e6))))
def test_time_goes_on_by_what_passed_whatever_the_wall_clock_does(moves: list[tuple[float, float]]) -> None:
    machine = Machine()
    clock = machine.clock()
    for passed, jump in moves:
        before = clock.now()
        machine.wall += jump
        machine.passes(passed)
        assert abs(clock.now() - before - passed) < 1e-3


def test_it_begins_with_the_wall_clock() -> None:
    machine = Machine()
    assert machine.clock().now() == machine.wall


def test_a_clock_that_was_set_back_goes_on_from_the_logs_newest() -> None:
    machine = Machine()
    newest = machine.clock().now()
    machine.wall -= 3600
    clock = machine.clock()
    clock.at_least(newest)
    assert clock.now() == newest
    machine.passes(5)
    assert clock.now() == newest + 5
    clock.at_least(newest)
    assert clock.now() == newest + 5
    assert machine.clock(floor=newest).now() == newest
