"""Naming by majority, without processes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from medevac.torch import Guard
from medevac.torch.replica_check import Difference, ReplicaCheck, localise

Rows = dict[int, dict[str, int]]


def test_one_of_three_is_named_with_its_tensors() -> None:
    rows: Rows = {0: {"a": 1, "b": 2, "c": 3}, 4: {"a": 1, "b": 9, "c": 8}, 8: {"a": 1, "b": 2, "c": 3}}
    assert localise(rows) == Difference(tensors=("b", "c"), wrong={4: ("b", "c")})


def test_two_ranks_may_be_wrong_in_two_places() -> None:
    rows: Rows = {0: {"a": 1, "b": 7}, 1: {"a": 5, "b": 2}, 2: {"a": 1, "b": 2}, 3: {"a": 1, "b": 2}}
    assert localise(rows).wrong == {0: ("b",), 1: ("a",)}


@pytest.mark.parametrize("values", [(1, 2), (1, 2, 3), (1, 1, 2, 2), (1, 1, 2, 3)])
def test_without_a_majority_nobody_is_named(values: tuple[int, ...]) -> None:
    found = localise({rank: {"a": value} for rank, value in enumerate(values)})
    assert found == Difference(tensors=("a",))


def test_what_one_rank_does_not_have_is_missing_not_wrong() -> None:
    rows: Rows = {0: {"a": 1, "b": 2}, 1: {"a": 1}, 2: {"a": 1, "b": 2}}
    assert localise(rows) == Difference(missing=("b",))


@given(st.integers(3, 9), st.data())
def test_a_minority_is_always_named_and_nobody_else(ranks: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, ranks - 1), max_size=(ranks - 1) // 2))
    rows = {rank: {"a": 7, "b": 100 + rank if rank in bad else 5} for rank in range(ranks)}
    found = localise(rows)
    assert set(found.wrong) == bad
    assert found.tensors == (("b",) if bad else ())


def test_steps_between_checks_are_one_or_more() -> None:
    with pytest.raises(ValueError, match="every is 0: give 1 or more steps"):
        ReplicaCheck(0)


def test_one_process_has_nothing_to_compare() -> None:
    model = nn.Linear(2, 2)
    check = ReplicaCheck(1)
    Guard(model, torch.optim.SGD(model.parameters()), checks=(check,))
    check.restored(0)
    assert check.end_step(1) is None
    assert check.before_save(2) is None
