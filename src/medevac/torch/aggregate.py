"""Ways to make one gradient of many of which some are wrong: each keeps a wrong minority from deciding.

Rows are ranks. A method says how many ranks it needs to withstand `f` wrong ones, and which rows it left out. A value
that is not finite counts as the furthest there is. Sources: coordinate median and trimmed mean: Yin, Chen, Ramchandran
and Bartlett, "Byzantine-Robust Distributed Learning" (ICML 2018); Krum and multi-Krum: Blanchard, El Mhamdi, Guerraoui
and Stainer, "Machine Learning with Adversaries" (NeurIPS 2017); Bulyan: El Mhamdi, Guerraoui and Rouault, "The Hidden
Vulnerability of Distributed Learning in Byzantium" (ICML 2018).
"""

from __future__ import annotations

import torch
from torch import Tensor


class Aggregate:
    """The mean, which one wrong row is enough to spoil; the others are made from it. `f`: so many rows may be wrong."""

    name = "mean"
    by_distance = False
    """Whether `choose` is asked, with the squared distances between all pairs of rows."""

    def __init__(self, f: int = 0) -> None:
        if f < 0:
            raise ValueError(f"f is {f}: give the number of ranks that may be wrong, 0 or more")
        self.f = f

    def needs(self) -> int:
        """The least number of ranks with which `f` wrong ones are withstood."""
        return 1

    def check(self, ranks: int) -> None:
        """Raises ValueError where there are too few ranks for `f`."""
        if ranks < self.needs():
            raise ValueError(
                f"{self.name} with f={self.f} needs {self.needs()} ranks or more, there are {ranks}: "
                f"lower f or take another method"
            )

    def choose(self, distances: Tensor) -> list[int]:
        """The rows that are taken, from the squared distances [n, n]."""
        return list(range(len(distances)))

    def combine(self, rows: Tensor) -> Tensor:
        """[k] of the [n, k] rows that were taken."""
        return rows.mean(0)

    def __call__(self, rows: Tensor) -> Tensor:
        """[k] of [n, k], where one process has all of them. Raises ValueError: see `check`."""
        self.check(len(rows))
        return self.combine(rows[self.choose(distances(rows))] if self.by_distance else rows)


class Median(Aggregate):
    """Of each coordinate the middle value; of an even number of ranks the mean of the two in the middle."""

    name = "median"

    def needs(self) -> int:
        return 2 * self.f + 1

    def combine(self, rows: Tensor) -> Tensor:
        return middle_of(sorted_rows(rows))


class TrimmedMean(Aggregate):
    """Of each coordinate the mean without the `f` highest and the `f` lowest values."""

    name = "trimmed mean"

    def needs(self) -> int:
        return 2 * self.f + 1

    def combine(self, rows: Tensor) -> Tensor:
        return sorted_rows(rows)[self.f : len(rows) - self.f].mean(0)


class Krum(Aggregate):
    """The one row whose nearest n - f - 2 others are nearest to it."""

    name = "krum"
    by_distance = True

    def needs(self) -> int:
        return 2 * self.f + 3

    def choose(self, distances: Tensor) -> list[int]:
        return [nearest(distances, list(range(len(distances))), self.f)]


class MultiKrum(Krum):
    """The mean of the n - f - 2 rows that Krum finds best."""

    name = "multi-krum"

    def choose(self, distances: Tensor) -> list[int]:
        scores = krum_scores(distances, self.f)
        return sorted(scores.argsort(stable=True)[: len(distances) - self.f - 2].tolist())


class Bulyan(Aggregate):
    """The n - 2f rows that Krum takes one after the other; of each coordinate the mean of the n - 4f nearest to the
    median of those.
    """

    name = "bulyan"
    by_distance = True

    def needs(self) -> int:
        return 4 * self.f + 3

    def choose(self, distances: Tensor) -> list[int]:
        left, taken = list(range(len(distances))), list[int]()
        for _ in range(len(distances) - 2 * self.f):
            taken.append(nearest(distances, left, self.f))
            left.remove(taken[-1])
        return sorted(taken)

    def combine(self, rows: Tensor) -> Tensor:
        ordered = sorted_rows(rows)
        order = (ordered - middle_of(ordered)).abs().nan_to_num(nan=torch.inf).argsort(dim=0, stable=True)
        return ordered.gather(0, order[: len(rows) - 2 * self.f]).mean(0)


METHODS: dict[str, type[Aggregate]] = {one.name: one for one in (Median, TrimmedMean, Krum, MultiKrum, Bulyan)}


def sorted_rows(rows: Tensor) -> Tensor:
    """Each coordinate's values in order; what is no number comes last, as an infinity."""
    return rows.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf).sort(dim=0).values


def middle_of(ordered: Tensor) -> Tensor:
    """Of each coordinate the middle value, of rows as `sorted_rows` has them."""
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    lower, upper = ordered[middle - 1], ordered[middle]
    return torch.where(torch.isfinite(upper), (lower + upper) / 2, lower)


def distances(rows: Tensor) -> Tensor:
    """The squared distances between all pairs of rows, [n, n] float32: by differences, which lose nothing to rounding.

    Not finite values are infinitely far from all others.
    """
    found = rows.new_zeros((len(rows), len(rows)), dtype=torch.float32)
    for one in range(len(rows)):
        for other in range(one):
            apart = (rows[one] - rows[other]).float()
            found[one, other] = found[other, one] = torch.dot(apart, apart)
    return finite_or_far(found)


def finite_or_far(found: Tensor) -> Tensor:
    """Squared distances with infinity for what is no number, and 0 from each row to itself."""
    return found.nan_to_num(nan=torch.inf, posinf=torch.inf).fill_diagonal_(0)


def krum_scores(distances: Tensor, f: int) -> Tensor:
    """For each row the sum of the squared distances to its n - f - 2 nearest others (at least one)."""
    near = max(len(distances) - f - 2, 1)
    return distances.sort(dim=1).values[:, 1 : near + 1].sum(dim=1)


def nearest(distances: Tensor, rows: list[int], f: int) -> int:
    """Krum's choice among some of the rows; of equals (a pair's distance is that of both) the one nearest to all."""
    scores = krum_scores(distances[rows][:, rows], f).tolist() if len(rows) > 1 else [0.0]
    everything = distances[rows].sum(dim=1).tolist()
    return min(zip(scores, everything, rows, strict=True))[2]
