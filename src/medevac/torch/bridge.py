"""Whose gradients were not finite: known before the optimizer step, by all ranks alike.

Each rank reads its own gradients once, bucket by bucket, as they go into the reduction (one fused norm, no waiting).
One small vector then follows the last bucket: each rank writes its own word in its own place, so that the sum tells
every rank everything. Requests from outside ride on it too. FSDP2 has no last bucket: there the vector carries the
gradient norm as well, in `settle`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from medevac.torch.links import Link

BAD, ECC, CHECKPOINT, STOP, DUE, LOSS = 1, 2, 4, 8, 16, 32
"""Bits of a rank's word: gradients not finite; its GPU counted an uncorrected error; a checkpoint was asked for; to
stop was asked for; a checkpoint is due (by rank 0's clock); its loss is not finite."""


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
        self._norms: list[Tensor] = []
        self._sent: tuple[Tensor, dist.Work | None] | None = None
        self._word = 0
        self.follows = True
        """Whether the vector is sent behind the last bucket. Not where the buckets' reduction is a user's own: it may
        send more in its callbacks, in an order that differs from rank to rank."""
        self.ready_at: float | None = None
        """When this rank's own last bucket of the step was ready (time.perf_counter). None on a GPU, where the host's
        clock says nothing of it."""
        self._host = device.type == "cpu"
        self.local_norm: Tensor | None = None
        """The norm of this rank's own gradients of the step, before the reduction."""

    def say(self, bit: int) -> None:
        self._word |= bit

    def before(self, gradients: Tensor, index: int) -> None:
        self.ready_at = time.perf_counter() if self._host else None
        self._norms.append(torch.linalg.vector_norm(gradients, dtype=_wide(gradients.dtype)))

    def last(self) -> None:
        if not self.follows:
            return
        vector = torch.zeros(self._world, device=self._device)
        self._fill(vector)
        self._sent = vector, dist.all_reduce(vector, async_op=True)

    def _fill(self, vector: Tensor) -> None:
        word = torch.full((), float(self._word), device=self._device)
        if self._norms:
            self.local_norm = torch.stack(self._norms).norm()
            word = word + BAD * (~torch.isfinite(self.local_norm)).float()
        vector[self._rank] = word
        self._word = 0
        self._norms = []

    @torch.no_grad()
    def settle(self, parameters: Iterable[Tensor], *, want_norm: bool, agree: bool) -> Told:
        """Wait for the step's reduction. `agree`: the vector has not been sent with the buckets and is sent here.

        Without the vector (one process) the word is this process's own.
        """
        sent, self._sent = self._sent, None
        if sent is not None:
            vector, work = sent
            if work is not None:
                work.wait()
            norm = _norm(parameters) if want_norm else None
            return _told(vector, norm)
        if self._world == 1:
            return self._alone(_norm(parameters) if want_norm else None)
        squares = _squares(parameters, self._device) if want_norm or not self._norms else None
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
        if self._norms:
            value = float(torch.stack(self._norms).norm()) if value is None else value
            self._norms = []
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


def _norm(parameters: Iterable[Tensor]) -> Tensor | None:
    gradients = [_local(p.grad) for p in parameters if p.grad is not None]
    return torch.stack(torch._foreach_norm(gradients)).norm() if gradients else None  # noqa: SLF001 - what clip_grad_norm_ uses


def _squares(parameters: Iterable[Tensor], device: torch.device) -> Tensor:
    """The part of the squared norm that this rank's shards add to the sum over all ranks."""
    by_share: dict[int, list[Tensor]] = {}
    world = dist.get_world_size() if dist.is_initialized() else 1
    for parameter in parameters:
        if parameter.grad is not None:
            by_share.setdefault(_copies(parameter.grad, world), []).append(_local(parameter.grad))
    total = torch.zeros((), device=device)
    for copies, gradients in by_share.items():
        norms = torch.stack([norm.float() for norm in torch._foreach_norm(gradients)])  # noqa: SLF001
        total += norms.square().sum().to(device) / copies
    return total


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
