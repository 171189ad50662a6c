"""The columns of the matrix. To add one: a class with a `name` and `look(step, before)`, listed in `METHODS`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from corruption.replicas import Replicas, Step, words_of
from medevac.torch.gradient_crc import CHANGED, LAUNCH, digest, judged
from medevac.torch.replica_check import localise
from medevac.torch.replica_hash import hash_tensors
from medevac.torch.sketch import WARM_UP, Judge, sketch


class Seen(NamedTuple):
    """Whether a method found something, and whom it names."""

    found: bool
    ranks: tuple[int, ...] = ()


class Method(Protocol):
    """A column of the matrix."""

    name: str

    def look(self, step: Step, before: Step) -> Seen:
        """At a step that may be spoilt; `before` is the one before it, which is not."""


class Agreement:
    """Compares a digest of each replica's state."""

    def __init__(self, name: str, digest: Callable[[Tensor], int]) -> None:
        self.name, self._digest = name, digest

    def look(self, step: Step, before: Step) -> Seen:
        names = ("parameter", "exp_avg", "exp_avg_sq")
        rows = {
            rank: dict(zip(names, map(self._digest, tensors), strict=True)) for rank, tensors in enumerate(step.state)
        }
        found = localise(rows)
        return Seen(bool(found.tensors), tuple(found.wrong))


class NonFinite:
    """The check that rides on the gradient norm."""

    name = "non-finite"

    def look(self, step: Step, before: Step) -> Seen:
        bad = tuple(rank for rank, sent in enumerate(step.sent) if not bool(torch.isfinite(sent).all()))
        return Seen(bool(bad) or not all(bool(torch.isfinite(one).all()) for one in step.used), bad)


class Crc:
    """Compares a gradient's bytes at each hand-over point (`GradientCrc`)."""

    name = "gradient CRC"

    def look(self, step: Step, before: Step) -> Seen:
        rows = []
        for own, sent, result, used in zip(step.own, step.sent, step.result, step.used, strict=True):
            ready, launched, reduced, found = (digest([one]).item() for one in (own, sent, result, used))
            rows.append((LAUNCH * (ready != launched) + CHANGED * (reduced != found), int(reduced), int(found)))
        where, ranks = judged(rows)
        return Seen(bool(where), tuple(ranks))


class Sketch:
    """Compares a few floats of each rank's gradient with those of the others (`SketchWatch`)."""

    name = "sketch"

    def __init__(self) -> None:
        self._judge = Judge()
        replicas = Replicas(2)
        for _ in range(2 * WARM_UP):
            self._judge.look(self._rows(replicas.step()))

    @staticmethod
    def _rows(step: Step) -> list[list[list[float]]]:
        return [[sketch(one).tolist()] for one in step.sent]

    def look(self, step: Step, before: Step) -> Seen:
        unlike = copy.deepcopy(self._judge).look(self._rows(step))
        return Seen(bool(unlike), tuple(unlike))


METHODS: tuple[Method, ...] = (
    Agreement("replica hash", lambda tensor: hash_tensors([tensor])[0]),
    Agreement("xor of words", lambda tensor: int(np.bitwise_xor.reduce(words_of(tensor)))),
    Agreement("sum of words", lambda tensor: int(np.add.reduce(words_of(tensor)))),
    NonFinite(),
    Crc(),
    Sketch(),
)
