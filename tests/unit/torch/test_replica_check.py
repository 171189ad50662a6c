"""Naming by majority, without processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_map

from medevac.torch import Guard
from medevac.torch.replica_check import Difference, ReplicaCheck, localise
from medevac.torch.replica_hash import hash_tensor
from medevac.torch.replicas import copies

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


class InEightBits(torch.Tensor):
    """A wrapper around codes and a scale, as low-bit optimizers keep their state: it has no memory of its own."""

    scale: torch.Tensor
    codes: torch.Tensor

    def __new__(cls, value: torch.Tensor) -> Self:
        made = torch.Tensor._make_wrapper_subclass(cls, value.shape, dtype=value.dtype)
        made.scale = value.abs().max()
        made.codes = (value / made.scale * 127).to(torch.int8)
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        def opened(one: Any) -> Any:
            return one.codes * one.scale / 127 if isinstance(one, cls) else one

        return func(*tree_map(opened, args), **tree_map(opened, kwargs or {}))


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process as one of two; the other says what this one says."""

    def echoed(out: list[Any], mine: Any, **_: Any) -> None:
        out[:] = [mine] * len(out)

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    monkeypatch.setattr(dist, "all_gather_object", echoed)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_ranks")
def test_a_wrapper_in_the_optimizer_state_is_left_out_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    check = ReplicaCheck(1, group=dist.group.WORLD)
    Guard(model, optimizer, checks=(check,))
    optimizer.state[model.weight] = {"exp_avg": InEightBits(torch.ones(2, 2)), "step": torch.tensor(1.0)}
    caplog.clear()
    assert [check.end_step(1), check.end_step(2), check.before_save(3)] == [None] * 3
    assert check.proven == 3
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("so not compared: weight/exp_avg")
    assert [one.name for one in copies(model, optimizer, dist.group.WORLD)] == ["weight", "bias", "weight/step"]


def test_a_wrapper_has_no_memory_to_be_hashed() -> None:
    with pytest.raises(TypeError, match="no plain memory cannot be hashed: InEightBits"):
        hash_tensor(InEightBits(torch.ones(3)))
    assert hash_tensor(nn.Parameter(torch.ones(3))) == hash_tensor(torch.ones(3))
