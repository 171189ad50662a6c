"""Whose gradients were not finite: known before the optimizer step, by all ranks alike.

Each rank reads its own gradients once, bucket by bucket, as they go into the reduction (a sum of squares, no waiting).
One small vector then follows the last bucket: each rank writes its own word in its own place, so that the sum tells
every rank everything. Requests from outside ride on it too. FSDP2 has no last bucket: there the vector carries the
gradient norm as well, in `settle`.
"""

from __future__ import annotations

import functools
import math
import operator
import time
from collections.abc import Iterable

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from medevac.torch.links import Link

BAD, SPIKE, CHECKPOINT, STOP, DUE = 1, 2, 4, 8, 16
"""Bits of a rank's word: gradients not finite; the step before was far from the usual; a checkpoint was asked for; to
stop was asked for; a checkpoint is due (by rank 0's clock)."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What all ranks know after a step's reduction. `words` by rank; `norm` of the gradients, None where not read."""

    words: tuple[int, ...]
    norm: float | None = None
    agreed: bool = False
    """Whether all ranks have the same `norm` for certain."""

    def ranks(self, bit: int) -> tuple[int, ...]:
        """The ranks whose word has the bit."""
        return tuple(rank for rank, word in enumerate(self.words) if word & bit)


class Bridge(Link):
    """The link that looks, and the vector that tells. `say` sets a bit of this rank's next word."""

    def __init__(self, rank: int, world: int, device: torch.device) -> None:
        self._rank, self._world, self._device = rank, world, device
        self._squares: list[Tensor] = []
        self._sent: list[tuple[Tensor, dist.Work | None]] = []
        self._word = 0
        self.follows = True
        """Whether the vector is sent behind the last bucket. Not where the buckets' reduction is a user's own: it may
        send more in its callbacks, in an order that differs from rank to rank."""
        self.ready_at: float | None = None
        """When this rank's own last bucket of the step was ready (time.perf_counter). None on a GPU, where the host's
        clock says nothing of it."""
        self._host = device.type == "cpu"

    def say(self, bit: int) -> None:
        self._word |= bit

    def before(self, gradients: Tensor, index: int) -> None:
        self.ready_at = time.perf_counter() if self._host else None
        self._squares.append(square(gradients))

    def last(self) -> None:
        if not self.follows:
            return
        vector = torch.zeros(self._world, device=self._device)
        self._fill(vector)
        self._sent.append((vector, dist.all_reduce(vector, async_op=True)))

    def _fill(self, vector: Tensor) -> None:
        word = torch.full((), float(self._word), device=self._device)
        if self._squares:
            total = torch.stack(self._squares).sum()
            word = word + BAD * (~torch.isfinite(total)).float()
        vector[self._rank] = word
        self._word = 0
        self._squares = []

    @torch.no_grad()
    def settle(self, parameters: Iterable[Tensor], *, want_norm: bool, agree: bool) -> Told:
        """Wait for the step's reduction. `agree`: the vector has not been sent with the buckets and is sent here.

        Without the vector (one process) the word is this process's own.
        """
        sent, self._sent = self._sent, []
        for _, work in sent:
            if work is not None:
                work.wait()
        if sent:
            told = _told(sent[-1][0], _norm(parameters) if want_norm else None)
            return _joined([_told(vector, None) for vector, _ in sent[:-1]], told) if len(sent) > 1 else told
        if self._world == 1:
            return self._alone(_norm(parameters) if want_norm else None)
        squares = _squares(parameters, self._device) if want_norm or not self._squares else None
        vector = torch.zeros(self._world + 1, device=self._device)
        if squares is not None:
            vector[self._world] = squares
        self._fill(vector[: self._world])
        if agree:
            dist.all_reduce(vector)
        words, norm = vector[: self._world], vector[self._world].sqrt()
        return _told(words, norm if squares is not None else None, agreed=True)

    def _alone(self, norm: Tensor | None) -> Told:
        """One process: its gradients' norm says it all."""
        value = None if norm is None else float(norm)
        if self._squares:
            value = float(torch.stack(self._squares).sum().sqrt()) if value is None else value
            self._squares = []
        word, self._word = self._word, 0
        bad = BAD if value is not None and not math.isfinite(value) else 0
        return Told(words=(word | bad,), norm=value, agreed=True)


def _told(vector: Tensor, norm: Tensor | None, *, agreed: bool = False) -> Told:
    """One transfer to the host for both."""
    both = vector if norm is None else torch.cat((vector, norm.reshape(1).to(vector.dtype)))
    values = both.tolist()
    words = values if norm is None else values[:-1]
    # A sum of words is exact; a word that is no number was spoilt on its way, and nobody can be named.
    return Told(
        words=tuple(int(word) if math.isfinite(word) else 0 for word in words),
        norm=None if norm is None else values[-1],
        agreed=agreed,
    )


def _joined(earlier: list[Told], last: Told) -> Told:
    """Micro-batches that were each reduced: the first bad one says whose it was, by the next all have it."""
    all_of = [*earlier, last]
    first_bad = next((told for told in all_of if told.ranks(BAD)), last)
    bad = first_bad.ranks(BAD)
    words = [functools.reduce(operator.or_, words) & ~BAD for words in zip(*(t.words for t in all_of), strict=True)]
    return msgspec.structs.replace(last, words=tuple(w | BAD * (rank in bad) for rank, w in enumerate(words)))


def _norm(parameters: Iterable[Tensor]) -> Tensor | None:
    gradients = [_local(p.grad) for p in parameters if p.grad is not None]
    return _total(gradients).sqrt() if gradients else None


def _squares(parameters: Iterable[Tensor], device: torch.device) -> Tensor:
    """The part of the squared norm that this rank's shards add to the sum over all ranks."""
    by_share: dict[int, list[Tensor]] = {}
    world = dist.get_world_size() if dist.is_initialized() else 1
    for parameter in parameters:
        if parameter.grad is not None:
            by_share.setdefault(_copies(parameter.grad, world), []).append(_local(parameter.grad))
    total = torch.zeros((), device=device)
    for copies, gradients in by_share.items():
        total += _total(gradients).to(device) / copies
    return total


def _total(gradients: list[Tensor]) -> Tensor:
    """The sum of all squares."""
    if gradients[0].device.type == "cpu":
        return torch.stack([square(gradient) for gradient in gradients]).sum()
    norms = torch._foreach_norm([values_of(gradient) for gradient in gradients])  # noqa: SLF001 - what clip_grad_norm_ uses: few kernels for all
    return torch.stack([norm.float() for norm in norms]).square().sum()


def square(gradients: Tensor) -> Tensor:
    """The sum of a tensor's squares, in float32 or wider: not finite if one of its values is not.

    One read. On a CPU `dot` uses all threads, where `vector_norm` uses one (docs/torch.md), and a sum that overflowed
    (from a norm of 1.8e19 on) is looked at again, for there nobody waits for it.
    """
    gradients = values_of(gradients)
    if gradients.device.type != "cpu":
        norm: Tensor = torch.linalg.vector_norm(gradients, dtype=_wide(gradients.dtype))
        return norm.square()
    flat = gradients.reshape(-1)
    plain = flat.dtype in {torch.float32, torch.float64}
    total: Tensor = torch.dot(flat, flat) if plain else torch.linalg.vector_norm(flat, dtype=torch.float32).square()
    if not math.isfinite(total) and bool(torch.isfinite(flat).all()):
        return torch.full_like(total, torch.finfo(total.dtype).max / 2**20)  # room to be added up
    return total


def values_of(gradients: Tensor) -> Tensor:
    """A tensor's values as real numbers in plain memory: of a sparse one those that it holds."""
    held = gradients.coalesce().values() if gradients.is_sparse else gradients
    return torch.view_as_real(held.resolve_conj()) if held.is_complex() else held


def _copies(gradient: Tensor, world: int) -> int:
    """On how many ranks the same values stand."""
    if not isinstance(gradient, DTensor):
        return world
    mesh = gradient.device_mesh
    replicas = [mesh.size(dim) for dim, place in enumerate(gradient.placements) if isinstance(place, Replicate)]
    return math.prod(replicas) * max(world // mesh.size(), 1)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32
