"""The replica hash (`replica_hash`) as one Triton kernel: memory is read once, nothing is written but the sum."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from medevac.torch.replica_hash import MIX1, MIX2, first_state, signed

BLOCK = 1024
ROUNDS = 8
"""Blocks for each program, so that one atomic addition stands for 64 KiB."""


@triton.jit  # type: ignore[untyped-decorator]
def _sum(words, out, count, first, mix1, mix2, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803, PLR0913, PLR0917
    """Constants come as int64: their bits are what counts, and only shifts must know that there is no sign."""
    begin = tl.program_id(0).to(tl.int64) * (BLOCK * ROUNDS)
    total = tl.zeros((BLOCK,), tl.uint64)
    for turn in range(ROUNDS):
        at = begin + turn * BLOCK + tl.arange(0, BLOCK)
        word = tl.load(words + at, mask=at < count, other=0).to(tl.uint64, bitcast=True)
        state = (at + first).to(tl.uint64, bitcast=True)
        state = (state ^ (state >> 30)) * mix1.to(tl.uint64, bitcast=True)
        state = (state ^ (state >> 27)) * mix2.to(tl.uint64, bitcast=True)
        weight = (state ^ (state >> 31)) | 1
        total += (word ^ (word >> 32)) * weight
    tl.atomic_add(out, tl.sum(total, 0).to(tl.int64, bitcast=True))


def hash_words(words: Tensor) -> Tensor:
    """The hash of a tensor of int64 words as an int64 on its device; nothing waits."""
    out = words.new_zeros(())
    if len(words):
        programs = triton.cdiv(len(words), BLOCK * ROUNDS)
        with torch.cuda.device_of(words):  # type: ignore[no-untyped-call]
            _sum[(programs,)](words, out, len(words), *CONSTANTS, BLOCK=BLOCK, ROUNDS=ROUNDS)
    return out


CONSTANTS = first_state(0), signed(MIX1), signed(MIX2)
