"""What looks at gradients: who is named from what ranks told each other; sketches; digests of memory."""

from __future__ import annotations

import math
import random
import zlib

import pytest
import torch
from torch import nn

from medevac.torch import Guard
from medevac.torch.bridge import square
from medevac.torch.checks import Finding
from medevac.torch.gradient_crc import CHANGED, LAUNCH, GradientCrc, digest, judged
from medevac.torch.sketch import EXTREME, PROJECTIONS, WARM_UP, WINDOW, Judge, SketchWatch, agreement, sketch

# --- CRC --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "where", "ranks"),
    [
        ([(0, 5, 6)] * 3, "", []),
        ([(LAUNCH, 5, 6), (0, 5, 6), (0, 5, 6)], "its reduction", [0]),
        ([(0, 5, 6), (0, 5, 6), (0, 8, 6)], "not the same on all ranks", [2]),
        ([(0, 5, 6), (0, 8, 6)], "not the same on all ranks", []),
        ([(0, 5, 5), (0, 5, 5), (0, 8, 8), (0, 8, 8)], "not the same on all ranks", []),  # averaged in sub-groups
        ([(0, 5, 5), (0, 5, 5), (0, 8, 8)], "not the same on all ranks", [2]),  # unequal ones
        ([(0, 5, 6), (CHANGED, 5, 7), (0, 5, 6)], "and the optimizer", [1]),
        ([(0, 5, 6), (CHANGED, 5, 7)], "and the optimizer", [1]),
        ([(CHANGED, 5, 9)] * 4, "", []),
        ([(CHANGED, 5, 9), (CHANGED, 5, 9), (CHANGED, 5, 4)], "and the optimizer", [2]),
        ([(CHANGED, 5, 9), (CHANGED, 5, 4)], "and the optimizer", []),
    ],
)
def test_where_gradients_changed_and_on_whose_side(rows: list[tuple[int, ...]], where: str, ranks: list[int]) -> None:
    found, wrong = judged(rows)
    assert found.endswith(where)
    assert bool(found) == bool(where)
    assert wrong == ranks


def test_a_digest_is_the_crc_of_the_memory() -> None:
    parts = [torch.randn(3, 5), torch.randn(7)]
    whole = torch.cat([part.reshape(-1) for part in parts])
    assert digest([whole]).item() == zlib.crc32(whole.numpy().tobytes())
    assert digest(parts).item() == digest([whole]).item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int8])
def test_any_dtype_has_a_digest(dtype: torch.dtype) -> None:
    one = torch.ones(9).to(dtype)
    other = one.clone()
    other[4] += 1
    assert digest([one]).item() != digest([other]).item()


def test_memory_order_is_that_of_the_bucket() -> None:
    plain = torch.randn(2, 3, 4, 5)
    last = plain.to(memory_format=torch.channels_last)
    assert digest([last]).item() == digest([last.permute(0, 2, 3, 1).contiguous()]).item()
    assert digest([last]).item() != digest([plain]).item()
    assert digest([plain[:, 1:]]).item() == digest([plain[:, 1:].contiguous()]).item()


def test_no_flip_of_a_single_bit_is_missed() -> None:
    data = torch.randn(64)
    sound = digest([data]).item()
    for bit in range(64 * 32):
        data.view(torch.int32)[bit // 32] ^= 1 << bit % 32 if bit % 32 < 31 else -(1 << 31)
        assert digest([data]).item() != sound
        data.view(torch.int32)[bit // 32] ^= 1 << bit % 32 if bit % 32 < 31 else -(1 << 31)


@pytest.mark.parametrize("kind", [GradientCrc, SketchWatch])
def test_looks_are_one_or_more_apart(kind: type[GradientCrc | SketchWatch]) -> None:
    with pytest.raises(ValueError, match="every is 0: give 1 or more"):
        kind(0)


def test_one_process_has_nobody_to_compare_with() -> None:
    model = nn.Linear(2, 2)
    checks = (GradientCrc(1), SketchWatch(1))
    guard = Guard(model, torch.optim.SGD(model.parameters()), checks=checks)
    for _ in guard.steps(0, 2):
        model(torch.ones(1, 2)).sum().backward()
        assert guard.backward_done()
        assert [check.backward_done(0) for check in checks] == [None, None]
        guard.end_step()


class Once(GradientCrc):
    """Finds something in step 2, the first time."""

    left = 1

    def backward_done(self, step: int) -> Finding | None:
        if step != 2 or not self.left:
            return None
        self.left -= 1
        return Finding(why="a test", want="again", ranks=(0,))


def test_a_step_that_is_done_again_ends_as_if_nothing_had_been() -> None:
    def trained(*checks: GradientCrc) -> tuple[list[int], torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        optimizer = torch.optim.Adam(model.parameters())
        guard = Guard(model, optimizer, checks=checks, seed=3)
        begun = []
        for step in guard.steps(0, 4):
            begun.append(step)
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().sum().backward()
            guard.backward_done()
            optimizer.step()
            guard.end_step()
        return begun, next(model.parameters()).detach()

    begun, after = trained(Once())
    plain, undisturbed = trained()
    assert begun == [0, 1, 2, 2, 3]
    assert plain == [0, 1, 2, 3]
    assert torch.equal(after, undisturbed)


# --- sketches ---------------------------------------------------------------------------------------------------------


def rows_of(ranks: int, *, seed: int, size: float = 1.0) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    direction = torch.randn(5000, generator=torch.Generator().manual_seed(1))
    return [size * direction + torch.randn(5000) for _ in range(ranks)]


def sketches(rows: list[torch.Tensor]) -> list[list[list[float]]]:
    return [[sketch(row).tolist()] for row in rows]


def warm(ranks: int = 4) -> Judge:
    judge = Judge()
    for seed in range(WARM_UP):
        assert judge.look(sketches(rows_of(ranks, seed=seed))) == {}
    return judge


def test_a_sketch_holds_norm_largest_and_what_is_not_finite() -> None:
    found = sketch(torch.tensor([3.0, -4.0, 0.0]))
    assert len(found) == 3 + PROJECTIONS
    assert found[:3].tolist() == [5.0, 4.0, 0.0]
    assert {abs(value) for value in found[3:].tolist()} <= {1.0, 7.0}
    assert sketch(torch.tensor([3.0, torch.nan, torch.inf]))[:3].tolist() == [3.0, 3.0, 2.0]
    assert sketch(torch.empty(0)).tolist() == [0.0] * (3 + PROJECTIONS)


def test_signed_sums_keep_length_on_the_average() -> None:
    torch.manual_seed(0)
    rows = torch.randn(300, 9000)
    squares = [sketch(row)[3:].square().mean().item() for row in rows]
    assert 0.9 < sum(squares) / len(squares) / 9000 < 1.1


@pytest.mark.parametrize("ranks", [3, 4, 8])
@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_a_rank_of_another_size_is_named(ranks: int, factor: float) -> None:
    judge = warm(ranks)
    rows = rows_of(ranks, seed=99)
    rows[1] *= factor
    assert list(judge.look(sketches(rows))) == [1]
    assert judge.look(sketches(rows_of(ranks, seed=100))) == {}


def test_a_flipped_exponent_is_seen_at_the_first_step_of_all() -> None:
    rows = rows_of(4, seed=0)
    rows[3][17] = 2.0 ** (EXTREME + 10)
    assert list(Judge().look(sketches(rows))) == [3]


def test_who_points_the_other_way_is_named_after_a_window() -> None:
    judge, found = Judge(), []
    for seed in range(WINDOW):
        rows = rows_of(5, seed=seed)
        rows[2].neg_()
        found.append(judge.look(sketches(rows)))
    assert not any(found[:-1])
    assert list(found[-1]) == [2]
    assert "points against the others" in found[-1][2]


def test_noise_without_a_direction_names_nobody() -> None:
    judge = Judge()
    for seed in range(3 * WINDOW):
        assert judge.look(sketches(rows_of(4, seed=seed, size=0.0))) == {}


def test_two_ranks_and_values_that_are_not_finite_name_nobody() -> None:
    rows = rows_of(2, seed=0)
    rows[0] *= 1e9
    assert warm(2).look(sketches(rows)) == {}
    rows = rows_of(4, seed=0)
    rows[0][3] = torch.nan
    assert warm().look(sketches(rows)) == {}


def test_agreement_is_one_where_all_are_alike() -> None:
    row = [[random.Random(1).uniform(-1, 1) for _ in range(3 + PROJECTIONS)]]
    assert agreement([row] * 3) == pytest.approx([1.0] * 3)


def test_a_rank_without_a_gradient_in_some_bucket_is_no_outlier() -> None:
    """Parameters it has not used; or that it alone has used."""
    judge, nothing = warm(), torch.zeros(5000)
    for seed in range(20):
        rows = rows_of(4, seed=100 + seed)
        assert judge.look(sketches([*rows[:3], nothing])) == {}
        assert judge.look(sketches([rows[0], nothing, nothing, nothing])) == {}


def test_sums_that_overflow_are_no_error() -> None:
    rows = [[[math.inf, 1.0, 0.0, *[math.inf] * PROJECTIONS]]] * 3
    assert Judge().look([*rows, [[0.0] * (3 + PROJECTIONS)]]) == {}


def test_sparse_and_complex_gradients_are_looked_at_too() -> None:
    plain = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    for one in (plain.to_sparse(), torch.view_as_complex(plain), torch.view_as_complex(plain).conj()):
        assert float(square(one)) == 25.0
        assert float(sketch(one)[0]) == 5.0
        before = digest([one]).item()
        assert digest([one * 2]).item() != before
