"""Robust aggregation: what each method withstands, on rows in one process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from medevac.torch.aggregate import METHODS, Aggregate, Bulyan, Krum, Median, MultiKrum, TrimmedMean, distances

NEEDS = {"median": 2, "trimmed mean": 2, "krum": 2, "multi-krum": 2, "bulyan": 4}
MORE = {"median": 1, "trimmed mean": 1, "krum": 3, "multi-krum": 3, "bulyan": 3}

ATTACKS: dict[str, Callable[[Tensor], Tensor]] = {
    "sign flip": lambda good: -good.mean(0),
    "scaled": lambda good: good.mean(0) * 1e4,
    "nan": lambda good: torch.full_like(good[0], torch.nan),
    "infinity": lambda good: torch.full_like(good[0], -torch.inf),
    "zeros": lambda good: torch.zeros_like(good[0]),
}


def rows_of(ranks: int, *, wrong: int = 0, attack: str = "nan", seed: int = 0) -> tuple[Tensor, Tensor]:
    """Gradients around one direction, the last `wrong` of them replaced; and the good ones alone."""
    torch.manual_seed(seed)
    rows = torch.randn(40) + 0.2 * torch.randn(ranks, 40)
    good = rows[: ranks - wrong].clone()
    for rank in range(ranks - wrong, ranks):
        rows[rank] = ATTACKS[attack](good)
    return rows, good


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("f", [1, 2, 3])
def test_as_many_ranks_as_are_published_are_needed(name: str, f: int) -> None:
    method = METHODS[name](f)
    assert method.needs() == NEEDS[name] * f + MORE[name]
    with pytest.raises(ValueError, match=f"{name} with f={f} needs {method.needs()} ranks or more, there are"):
        method.check(method.needs() - 1)
    method.check(method.needs())


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("f", [1, 2])
def test_the_wrong_ones_do_not_move_it_far(name: str, attack: str, f: int) -> None:
    method = METHODS[name](f)
    rows, good = rows_of(method.needs(), wrong=f, attack=attack)
    found = method(rows)
    furthest = (good - good.mean(0)).abs().amax()
    assert torch.isfinite(found).all()
    assert (found - good.mean(0)).abs().amax() <= 2 * furthest


@pytest.mark.parametrize("attack", ["scaled", "nan", "infinity"])
def test_the_mean_is_spoilt_by_one(attack: str) -> None:
    rows, good = rows_of(9, wrong=1, attack=attack)
    found = Aggregate()(rows)
    assert not bool(torch.isfinite(found).all()) or bool((found - good.mean(0)).abs().amax() > 100)


@pytest.mark.parametrize("method", [Krum(2), MultiKrum(2), Bulyan(1)])
def test_equal_wrong_rows_are_not_taken_for_agreement(method: Aggregate) -> None:
    """Colluders whose rows are all the same are as near to each other as can be."""
    f = method.f
    rows, good = rows_of(method.needs(), wrong=f, attack="sign flip")
    taken = method.choose(distances(rows))
    assert set(taken) <= set(range(len(good)))


def test_krum_takes_one_row_as_it_is() -> None:
    rows, _ = rows_of(7, wrong=2, attack="scaled")
    found = Krum(2)(rows)
    assert any(torch.equal(found, row) for row in rows[:5])


def test_the_middle_of_an_even_number_is_between_two() -> None:
    rows = torch.tensor([[1.0], [2.0], [4.0], [100.0]])
    assert Median(1)(rows).item() == 3.0
    assert TrimmedMean(1)(rows).item() == 3.0


def test_a_negative_f_is_refused() -> None:
    with pytest.raises(ValueError, match="f is -1: give the number of ranks that may be wrong"):
        Median(-1)


@given(st.integers(0, 10_000), st.sampled_from(sorted(METHODS)), st.integers(1, 2))
def test_the_order_of_ranks_does_not_matter(seed: int, name: str, f: int) -> None:
    method = METHODS[name](f)
    rows, _ = rows_of(method.needs() + 1, wrong=f, attack="scaled", seed=seed)
    shuffled = rows[torch.randperm(len(rows))]
    torch.testing.assert_close(method(rows), method(shuffled), rtol=1e-5, atol=1e-6)


@given(st.integers(0, 10_000))
def test_coordinate_methods_stay_between_the_good_values(seed: int) -> None:
    rows, good = rows_of(5, wrong=2, attack="sign flip", seed=seed)
    for method in (Median(2), TrimmedMean(2)):
        found = method(rows)
        assert bool((found >= good.amin(0) - 1e-6).all())
        assert bool((found <= good.amax(0) + 1e-6).all())
