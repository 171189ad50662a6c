"""The two tables: every state is reached, none is a trap, and what each row asks for exists."""

from __future__ import annotations

from itertools import product

import pytest

from medevac.core.job_recovery import ALIVE, JOB, RUNS, WAITS
from medevac.core.machine import Machine
from medevac.core.node_lifecycle import DEVICE, HARD, IN_SERVICE, OUT, SOFT
from medevac.core.recover import ACTS

MACHINES = (JOB, DEVICE)
CALLS_FOR_A_PERSON = {"held", "gave-up"}


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_state_is_reached(machine: Machine) -> None:
    reached, before = {machine.initial}, set[str]()
    while reached != before:
        before = set(reached)
        reached |= {t.target for t in machine.table if t.source in reached}
    assert set(machine.states()) == reached


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_state_that_is_not_final_has_a_way_out(machine: Machine) -> None:
    leaves = {t.source for t in machine.table if t.target != t.source}
    assert set(machine.states()) - set(machine.final) == leaves
    assert not {t.source for t in machine.table} & set(machine.final)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_trigger_has_one_meaning_in_a_state(machine: Machine) -> None:
    rows = [(t.source, t.on) for t in machine.table]
    assert len(rows) == len(set(rows))
    assert all(t.says for t in machine.table)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_what_is_no_row_means_nothing(machine: Machine) -> None:
    rows = {(t.source, t.on): t for t in machine.table}
    triggers = sorted({t.on for t in machine.table})
    for state, on in product(machine.states(), triggers):
        assert machine.step(state, on) is rows.get((state, on))


def test_every_act_of_a_job_is_known() -> None:
    assert {t.act for t in JOB.table} == set(ACTS)


def test_the_end_of_an_attempt_always_means_something() -> None:
    ends = ("completed", "failed", "no-progress", "too-many", "user-code", "only-watched")
    assert all(JOB.step(state, on) for state, on in product(ALIVE, ends))


def test_a_job_that_waits_for_a_person_can_be_released() -> None:
    assert all(JOB.step(state, "order-release") for state in CALLS_FOR_A_PERSON)


def test_a_fault_stops_whatever_runs() -> None:
    assert all(JOB.step(state, "critical") for state in (*RUNS, "starting", "leaving"))


def test_states_of_the_groups_exist() -> None:
    assert {*ALIVE, *RUNS, *WAITS} <= set(JOB.states())
    assert {*IN_SERVICE, *SOFT, *HARD, *OUT} == set(DEVICE.states())
