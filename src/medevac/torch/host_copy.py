"""From the device into host memory that the saver shares: the only part of a save that the training waits for.

The memory is an anonymous file (memfd): it is gone when its last process is, so that nothing of it is ever left over,
and it does not count against a container's small /dev/shm.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Sequence

import torch
import xxhash
from torch import Tensor

ALIGNED = 64
_CHUNK = 1 << 20
"""Bytes hashed and copied at a time: they are in the cache for the second of both."""


class Slot:
    """Room for one captured state, mapped and (with CUDA) pinned."""

    def __init__(self, name: str, number: int, size: int) -> None:
        self.number = number
        self.size = max(size, 1)
        self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, self.size)
        self._memory = mmap.mmap(self.descriptor, self.size)
        self.bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        if torch.cuda.is_available():
            torch.cuda.cudart().cudaHostRegister(self.bytes.data_ptr(), self.size, 0)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Let go of the descriptor; the mapping goes with the process."""
        os.close(self.descriptor)


def offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where tensors of these sizes go in a slot, and its whole size."""
    places, at = [], 0
    for size in sizes:
        places.append(at)
        at += -(-size // ALIGNED) * ALIGNED
    return places, at


def capture(tensors: Sequence[Tensor], places: Sequence[int], slot: Slot, then: Callable[[list[str]], None]) -> None:
    """Copy the tensors into the slot and call `then` with a hash of each.

    On a CPU both are done on return. With CUDA the copies are queued on the device, in order with the training's own
    work, and a thread calls `then` when they are there; the training goes on at once.
    """
    targets = [slot.bytes[at : at + _size(tensor)] for tensor, at in zip(tensors, places, strict=True)]
    if not any(tensor.is_cuda for tensor in tensors):
        then([_hash_and_copy(_flat(tensor), target) for tensor, target in zip(tensors, targets, strict=True)])
        return
    for tensor, target in zip(tensors, targets, strict=True):
        target.copy_(_flat(tensor), non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()

    def wait() -> None:
        arrived.synchronize()
        then([xxhash.xxh3_64_hexdigest(_buffer(target)) for target in targets])

    threading.Thread(target=wait, name="medevac-capture", daemon=True).start()


def _hash_and_copy(source: Tensor, target: Tensor) -> str:
    """The hash is of the live bytes, not of their copy."""
    digest = xxhash.xxh3_64()
    for at in range(0, source.numel(), _CHUNK):
        part = source[at : at + _CHUNK]
        digest.update(_buffer(part))
        target[at : at + _CHUNK].copy_(part)
    return digest.hexdigest()


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _buffer(tensor: Tensor) -> memoryview:
    return memoryview(tensor.numpy())  # type: ignore[arg-type]
