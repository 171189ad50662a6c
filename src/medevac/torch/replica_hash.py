"""A 64-bit hash of tensors that is the same on any device and in any order of reduction.

A tensor's bytes are read as little-endian 64-bit words x(i), the last one padded with zeros. With

    y(i) = x(i) ^ (x(i) >> 32)        the high half folded down: a bijection
    w(i) = splitmix64(SEED + i) | 1   by position in the whole tensor, odd: y -> y * w is a bijection mod 2^64

the hash is the sum of y(i) * w(i) mod 2^64. A change of one word is never missed. Without the fold two changed top bits
would cancel whatever the weights, since 2^63 times an odd number is 2^63; without weights swapped words would.
splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014), as `java.util`'s
SplittableRandom has it.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from subprocess import SubprocessError
from typing import TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor

log = logging.getLogger("medevac.torch")

Words: TypeAlias = NDArray[np.uint64]

SEED = 0x6D65_6465_7661_6321
"""Any number, the same for all: "medevac!"."""
GOLDEN, MIX1, MIX2 = 0x9E37_79B9_7F4A_7C15, 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB
MASK = (1 << 64) - 1
CHUNK = 1 << 15
"""Words at a time: words, weights and temporary (256 KiB each) stay in the second-level cache."""
KEPT = 1 << 22
"""Weights kept between calls, in words (32 MiB); those of later positions are made anew each time."""
ROOM = 1 << 22
"""Words at a time on a device without a kernel: its temporaries are so large."""


def splitmix64(value: int) -> int:
    """The generator's output for one state."""
    value = (value + GOLDEN) & MASK
    value = ((value ^ (value >> 30)) * MIX1) & MASK
    value = ((value ^ (value >> 27)) * MIX2) & MASK
    return value ^ (value >> 31)


def combined(hashes: Iterable[int]) -> int:
    """One hash of several, in their order. If one of them changes, so does the result."""
    return functools.reduce(lambda whole, one: splitmix64(whole ^ one), hashes, SEED)


def hash_tensor(tensor: Tensor) -> int:
    """The hash of one tensor: see the module; of a DTensor, of this rank's shard."""
    return hash_tensors([tensor])[0]


@torch.no_grad()
def hash_tensors(tensors: Sequence[Tensor], *, threads: int | None = None) -> list[int]:
    """A hash of each, 0 to 2^64 - 1: of its values in logical order, whatever its strides.

    Host memory is read once in all, by so many threads (default: torch's). One that does not lie in that order (a
    channels_last weight) is copied for it, one at a time. Raises TypeError for a tensor that has no plain memory
    (sparse, meta, a wrapper around others).
    """
    plain = [_plain(tensor) for tensor in tensors]
    threads = threads or torch.get_num_threads()
    hashes = [0] * len(plain)
    on_host = [at for at, one in enumerate(plain) if one.device.type == "cpu"]
    as_it_lies = [at for at in on_host if _in_order(plain[at])]
    for group in (as_it_lies, *([at] for at in on_host if not _in_order(plain[at]))):
        sums = _on_host([flat_bytes(plain[at]).numpy() for at in group], threads)
        for at, value in zip(group, sums, strict=True):
            hashes[at] = value
    elsewhere = [at for at, one in enumerate(plain) if one.device.type != "cpu"]
    if elsewhere:
        sums_there = [on_device(flat_bytes(plain[at])) for at in elsewhere]
        found = torch.stack([one.to(sums_there[0].device) for one in sums_there]).tolist()  # one wait
        for at, value in zip(elsewhere, found, strict=True):
            hashes[at] = value & MASK
    return hashes


def sha256(tensor: Tensor) -> str:
    """SHA-256 of the same bytes, as hex: to compare a state with one kept elsewhere. Not for each step."""
    return hashlib.sha256(memoryview(flat_bytes(tensor).cpu().numpy())).hexdigest()  # type: ignore[arg-type]


def flat_bytes(tensor: Tensor) -> Tensor:
    """A tensor's bytes in logical order, without a copy where it is contiguous. Raises TypeError."""
    return _plain(tensor).resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def has_memory(tensor: Tensor) -> bool:
    """Whether there are bytes to be read: not of a sparse, quantized or meta tensor, nor of a subclass that wraps
    others (`__torch_dispatch__`, as low-bit optimizers have them); of a DTensor, whether this rank's shard has.
    """
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    wraps = type(local).__torch_dispatch__ is not Tensor.__torch_dispatch__
    return not wraps and local.layout is torch.strided and not local.is_meta and not local.is_quantized


def _plain(tensor: Tensor) -> Tensor:
    """This rank's values of it, without gradient. Raises TypeError where there is nothing to be read."""
    if not has_memory(tensor):
        kind = f"{type(tensor).__name__}, {tensor.layout}, {tensor.device}"
        raise TypeError(f"a tensor that has no plain memory cannot be hashed: {kind}")
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def _in_order(tensor: Tensor) -> bool:
    """Whether its memory is its bytes in logical order: else they are copied."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


# --- host memory ------------------------------------------------------------------------------------------------------


def _on_host(arrays: Sequence[NDArray[np.uint8]], threads: int) -> list[int]:
    """Position by position over all arrays, so that a chunk of weights is used by all while it is in the cache."""
    words = [_words(array) for array in arrays]
    longest = max((len(whole) for whole, _ in words), default=0)
    starts = list(range(0, longest, CHUNK))
    shares = _shares([sum(len(whole) > at for whole, _ in words) for at in starts], max(threads, 1))
    jobs = [starts[begin:end] for begin, end in shares]
    if len(jobs) <= 1:
        parts = [_sums(words, job) for job in jobs]
    else:
        with ThreadPoolExecutor(len(jobs), thread_name_prefix="medevac-hash") as pool:
            parts = list(pool.map(lambda job: _sums(words, job), jobs))
    tails = [_term(tail, len(whole)) for whole, tail in words]
    return [(sum(part[at] for part in parts) + tail) & MASK for at, tail in enumerate(tails)]


def _shares(work: Sequence[int], threads: int) -> list[tuple[int, int]]:
    """Neighbouring items split so that each thread has about as much work."""
    shares: list[tuple[int, int]] = []
    total, done, begin = sum(work), 0, 0
    for at, each in enumerate(work, 1):
        done += each
        if done * threads >= total * (len(shares) + 1):
            shares.append((begin, at))
            begin = at
    return shares


def _words(array: NDArray[np.uint8]) -> tuple[Words, int]:
    """The whole words, and the last one where it is not whole (else 0)."""
    whole = len(array) // 8 * 8
    return array[:whole].view("<u8"), int.from_bytes(array[whole:].tobytes(), "little")


def _term(word: int, position: int) -> int:
    return (word ^ (word >> 32)) * (splitmix64((SEED + position) & MASK) | 1) & MASK


def _sums(words: Sequence[tuple[Words, int]], starts: Sequence[int]) -> list[int]:
    """Each array's sum over the chunks that begin at `starts`."""
    sums = [0] * len(words)
    room, half = np.empty(CHUNK, np.uint64), np.uint64(32)
    for start in starts:
        weights = weights_of(start)
        for at, (whole, _) in enumerate(words):
            part = whole[start : start + CHUNK]
            if len(part):
                folded = room[: len(part)]
                np.right_shift(part, half, out=folded)
                np.bitwise_xor(part, folded, out=folded)
                np.multiply(folded, weights[: len(part)], out=folded)
                sums[at] += int(np.add.reduce(folded))
    return sums


def weights_of(start: int) -> Words:
    """The weights of the `CHUNK` positions from `start` (a multiple of it)."""
    return _kept_weights(start) if start < KEPT else _weights(start)


@functools.lru_cache(maxsize=KEPT // CHUNK)
def _kept_weights(start: int) -> Words:
    return _weights(start)


def _weights(start: int) -> Words:
    made = np.arange(CHUNK, dtype=np.uint64) + np.uint64((SEED + start + GOLDEN) & MASK)
    for shift, factor in ((30, MIX1), (27, MIX2)):
        made ^= made >> np.uint64(shift)
        made *= np.uint64(factor)
    made ^= made >> np.uint64(31)
    return cast("Words", made | np.uint64(1))


# --- any device -------------------------------------------------------------------------------------------------------


def on_device(data: Tensor) -> Tensor:
    """The hash of a tensor's bytes as an int64 on their device; nothing waits. By Triton where there is CUDA."""
    whole = len(data) // 8 * 8
    total = _of_words(padded(data[:whole]))
    if whole == len(data):
        return total
    tail = padded(data[whole:])
    return total + weighted(tail, tail.new_tensor(first_state(whole // 8)))


def _of_words(words: Tensor) -> Tensor:
    if words.is_cuda and (kernel := _triton(words.device)) is not None:
        return kernel(words)
    sums = [weighted(words[at : at + ROOM], words.new_tensor(first_state(at))) for at in range(0, len(words), ROOM)]
    return torch.stack(sums).sum() if sums else words.new_zeros(())


def padded(data: Tensor) -> Tensor:
    """Bytes as int64 words, with zeros up to the last word's end. A copy only where there is one to fill, or where the
    bytes do not begin at a word.
    """
    missing = -len(data) % 8
    if missing or data.data_ptr() % 8 or data.storage_offset() % 8:
        data = torch.cat((data, data.new_zeros(missing)))
    return data.view(torch.int64)


def first_state(position: int) -> int:
    """The generator's state at a position, as an int64."""
    return signed(SEED + position + GOLDEN)


def weighted(words: Tensor, first: Tensor) -> Tensor:
    """The sum over words whose first has the state `first`, in torch's own operations: any device, and to compile."""
    state = torch.arange(len(words), dtype=torch.int64, device=words.device) + first
    state = (state ^ _shifted(state, 30)) * _MIX1
    state = (state ^ _shifted(state, 27)) * _MIX2
    weight = (state ^ _shifted(state, 31)) | 1
    return ((words ^ _shifted(words, 32)) * weight).sum()


def _shifted(words: Tensor, bits: int) -> Tensor:
    """To the right with zeros coming in: torch's own shift of int64 copies the sign."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def signed(value: int) -> int:
    """The int64 of the same 64 bits."""
    value &= MASK
    return value - (1 << 64) if value >> 63 else value


_MIX1, _MIX2 = signed(MIX1), signed(MIX2)


@functools.cache
def _triton(device: torch.device) -> Callable[[Tensor], Tensor] | None:
    """The kernel, if it works: Triton needs a C compiler beside it, which many images lack."""
    try:
        from medevac.torch.replica_triton import hash_words

        hash_words(torch.ones(1, dtype=torch.int64, device=device))
    except ImportError:
        return None
    except (OSError, RuntimeError, SubprocessError, ValueError) as problem:
        log.warning("no Triton kernel (%s): the replica hash is computed by torch's own operations, slower", problem)
        return None
    return hash_words
