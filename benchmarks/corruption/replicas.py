"""Simulated replicas in one process, and faults that strike them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

REPLICAS, WORDS = 4, 512


class Step(NamedTuple):
    """What each replica holds at the hand-over points of a step, rank by rank."""

    own: list[Tensor]
    """its own gradients, as the backward pass left them"""
    sent: list[Tensor]
    """the same, as they went into the all-reduce"""
    result: list[Tensor]
    """the mean, as it came out"""
    used: list[Tensor]
    """the same, as the optimizer read it"""
    state: list[list[Tensor]]
    """parameter and both moments, at the end of the step"""


def words_of(tensor: Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return tensor.numpy().view(np.uint64)


class Replicas:
    """`REPLICAS` copies of one parameter with Adam, each with data of its own."""

    def __init__(self, seed: int) -> None:
        self.chance = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.target = torch.randn(2 * WORDS)
        start = torch.randn(2 * WORDS)
        self.state = [[start.clone(), torch.zeros(2 * WORDS), torch.zeros(2 * WORDS)] for _ in range(REPLICAS)]
        self.done = 0

    def step(self, spoil: Callable[[str, list[Tensor]], None] | None = None) -> Step:
        """One step; `spoil` is called with each hand-over point and what all ranks hold there, to be changed."""
        spoil = spoil or (lambda *_: None)
        everything = [tensor for tensors in self.state for tensor in tensors]
        spoil("state", everything)
        own = [parameter - self.target + 0.1 * torch.randn(2 * WORDS) for parameter, _, _ in self.state]
        spoil("arithmetic", own)
        sent = [one.clone() for one in own]
        spoil("before", sent)
        result = [torch.stack(sent).mean(0)] * REPLICAS
        used = [one.clone() for one in result]
        spoil("after", used)
        self.done += 1
        for (parameter, mean, square), gradient in zip(self.state, used, strict=True):
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            scale = (square / (1 - 0.999**self.done)).sqrt() + 1e-8
            parameter.sub_(0.01 * mean / (1 - 0.9**self.done) / scale)
        spoil("rest", everything)
        return Step(own, sent, result, used, [[tensor.clone() for tensor in tensors] for tensors in self.state])


def one_bit(words: np.ndarray[tuple[int], np.dtype[np.uint64]], chance: np.random.Generator) -> None:
    words[chance.integers(len(words))] ^= np.uint64(1) << chance.integers(64, dtype=np.uint64)


def burst(words: np.ndarray[tuple[int], np.dtype[np.uint64]], chance: np.random.Generator) -> None:
    """Half of the bits of 64 neighbouring bytes."""
    at = chance.integers(len(words) - 8)
    words[at : at + 8] ^= chance.integers(1, 2**64, 8, np.uint64)


def swapped_blocks(words: np.ndarray[tuple[int], np.dtype[np.uint64]], chance: np.random.Generator) -> None:
    at = chance.integers(len(words) // 16 - 1) * 16
    words[at : at + 32] = np.roll(words[at : at + 32], 16)


def paired_top_bits(words: np.ndarray[tuple[int], np.dtype[np.uint64]], chance: np.random.Generator) -> None:
    """The signs of two floats."""
    words[chance.choice(len(words), 2, replace=False)] ^= np.uint64(1 << 63)


def stuck_lane(words: np.ndarray[tuple[int], np.dtype[np.uint64]], chance: np.random.Generator) -> None:
    """One bit of every 16th word reads as 1."""
    words[chance.integers(16) :: 16] |= np.uint64(1) << chance.integers(40, 52, dtype=np.uint64)


SHAPES = (one_bit, burst, swapped_blocks, paired_top_bits, stuck_lane)
POINTS = {
    "parameter, at the check": ("rest", 0),
    "parameter, a step before": ("state", 0),
    "optimizer state, at the check": ("rest", 1),
    "optimizer state, a step before": ("state", 1),
    "gradient computed wrong": ("arithmetic", 0),
    "gradient before the all-reduce": ("before", 0),
    "gradient after the all-reduce": ("after", 0),
}


def struck(point: str, part: int, rank: int, shape: Callable[..., None], chance: np.random.Generator) -> Step | None:
    """One trial: a few sound steps, then one with the fault; None where it happened to change nothing."""
    replicas = Replicas(int(chance.integers(1 << 30)))
    for _ in range(2):
        replicas.step()
    changed = False

    def spoil(where: str, tensors: list[Tensor]) -> None:
        nonlocal changed
        if where == point:
            tensor = tensors[rank * 3 + part] if len(tensors) > REPLICAS else tensors[rank]
            was = tensor.clone()
            shape(words_of(tensor), chance)
            changed = bool((was.view(torch.int32) != tensor.view(torch.int32)).any())

    step = replicas.step(spoil)
    return step if changed else None
