"""What finds corruption that no counter reports, what it costs, and what it misses.

    python benchmarks/silent_corruption.py [--json] [--full] [--only cost|matrix|counts]

`--full`: 100,000 injections and 100,000 clean steps, the numbers that docs/silent-corruption.md gives; else a tenth.
Replicas of matrix and counts are simulated in one process: what is compared is what ranks would send each other.
Ratios are within one run.

To add a method to the matrix: a class with a `name` and `look(step, before)`, listed in `METHODS`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from medevac.torch import replay
from medevac.torch.place import Place
from medevac.torch.replay import Accused, Strike
from medevac.torch.replica_check import EVERY, localise
from medevac.torch.replica_hash import combined, first_state, flat_bytes, hash_tensors, padded, weighted

REPLICAS, WORDS = 4, 512
TRIALS = 40

# --- cost -------------------------------------------------------------------------------------------------------------


def interleaved(calls: dict[str, Callable[[], object]], times: int = 9) -> dict[str, float]:
    """Median seconds of each, taken in turns, so that a busy machine is as busy for all."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(times):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            took[name].append(time.perf_counter() - began)
    return {name: statistics.median(each) for name, each in took.items()}


def rate_rows(*, compiled: bool) -> dict[str, object]:
    """400 MB in 100 tensors: hash against `clone()` of the same, with one thread and with as many as torch has."""
    tensors = [torch.randn(1_000_000) for _ in range(100)]
    gigabytes = 0.4
    rows: dict[str, object] = {}
    threads = torch.get_num_threads()
    for count in sorted({1, threads}):
        torch.set_num_threads(count)
        calls = {"clone": lambda: [one.clone() for one in tensors], "hash": lambda: hash_tensors(tensors)}
        if compiled:
            function = torch.compile(weighted, dynamic=True)
            words, first = [padded(flat_bytes(one)) for one in tensors], torch.tensor(first_state(0))
            calls["compiled"] = lambda: [function(one, first) for one in words]  # noqa: B023 - called at once
        took = interleaved(calls)
        name = f"_{count}_threads" if count > 1 else ""
        rows[f"clone_gb_s{name}"] = gigabytes / took["clone"]
        rows[f"replica_hash_gb_s{name}"] = gigabytes / took["hash"]
        rows[f"replica_hash_vs_clone{name}"] = took["hash"] / took["clone"]
        if compiled:
            rows[f"replica_hash_compiled_vs_clone{name}"] = took["compiled"] / took["clone"]
    torch.set_num_threads(threads)
    return rows


def share_rows() -> dict[str, object]:
    """A transformer of 10.6 M parameters with Adam: one check of all state against one step."""
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(384, 6, 1536, dropout=0.0, batch_first=True) for _ in range(6)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    rows = torch.randn(2, 64, 384)

    def step() -> None:
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()

    step()
    state = [*model.parameters(), *(one for each in optimizer.state.values() for one in each.values())]
    took = interleaved({"step": step, "check": lambda: combined(hash_tensors(state))}, 5)
    return {
        "step_s": took["step"],
        "replica_check_s": took["check"],
        "replica_hash_every": EVERY,
        "replica_hash_share_of_step": took["check"] / took["step"] / EVERY,
    }


# --- the detection matrix ---------------------------------------------------------------------------------------------


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


def words_of(tensor: Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return tensor.numpy().view(np.uint64)


METHODS: tuple[Method, ...] = (
    Agreement("replica hash", lambda tensor: hash_tensors([tensor])[0]),
    Agreement("xor of words", lambda tensor: int(np.bitwise_xor.reduce(words_of(tensor)))),
    Agreement("sum of words", lambda tensor: int(np.add.reduce(words_of(tensor)))),
    NonFinite(),
)


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


def matrix(trials: int) -> list[dict[str, object]]:
    """Each fault, and by each method the share of trials in which it was found, and in which the rank was named."""
    chance = np.random.default_rng(5)
    replicas = Replicas(1)
    before = replicas.step()
    rows: list[dict[str, object]] = []
    for where, (point, part) in POINTS.items():
        for shape in SHAPES:
            count = 0
            found, named = dict.fromkeys((m.name for m in METHODS), 0), dict.fromkeys((m.name for m in METHODS), 0)
            while count < trials:
                rank = int(chance.integers(REPLICAS))
                step = struck(point, part, rank, shape, chance)
                if step is None:
                    continue
                count += 1
                for method in METHODS:
                    seen = method.look(step, before)
                    found[method.name] += seen.found
                    named[method.name] += seen.ranks == (rank,)
            fault = f"{where}: {shape.__name__.replace('_', ' ')}"
            rows.append({"fault": fault, **{name: [found[name] / count, named[name] / count] for name in found}})
    return rows


def replay_rows() -> dict[str, str]:
    """What the replay makes of a fault that comes once, each time on one GPU, or each time on one rank."""
    once, again = _strike("a"), _strike("a")
    first = replay.struck(None, once)
    second = replay.struck(first, again)
    here, elsewhere = {1: Place(rank=1, gpu="a")}, {1: Place(rank=1, gpu="b")}
    return {
        "once": replay.agreed(first, here).outcome,
        "each time on one GPU": replay.agreed(second, elsewhere).outcome,
        "each time on one rank": replay.struck(second, _strike("b")).outcome,
    }


def _strike(gpu: str) -> Strike:
    return Strike(step=10, proven=5, accused=(Accused(rank=1, gpu=gpu, tensors=("w",)),), tensors=("w",))


# --- counts -----------------------------------------------------------------------------------------------------------


def missed(injections: int) -> int:
    """Faults of all shapes in the live state of one of two replicas, undone after each."""
    chance = np.random.default_rng(11)
    replicas = Replicas(3)
    for _ in range(5):
        replicas.step()
    live = replicas.state[1]
    sound = combined(hash_tensors(live))
    count = done = 0
    while done < injections:
        tensor = live[chance.integers(3)]
        kept = tensor.clone()
        SHAPES[done % len(SHAPES)](words_of(tensor), chance)
        if not torch.equal(kept.view(torch.int32), tensor.view(torch.int32)):
            count += combined(hash_tensors(live)) == sound
            done += 1
        tensor.copy_(kept)
    return count


@torch.no_grad()
def false_alarms(steps: int) -> int:
    """Two replicas of a linear layer with AdamW: bfloat16 products, two micro-batches, dropout of each rank's own."""
    torch.set_num_threads(1)
    start = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    weights = [nn.Parameter(start.clone()) for _ in range(2)]
    optimizers = [torch.optim.AdamW([weight], lr=1e-3, fused=True) for weight in weights]
    draws = [torch.Generator().manual_seed(1 + rank) for rank in range(2)]
    alarms = 0
    for _ in range(steps):
        own = [gradient(weight, draw) for weight, draw in zip(weights, draws, strict=True)]
        hashes = set()
        for weight, optimizer in zip(weights, optimizers, strict=True):
            weight.grad = (own[0] + own[1]) / 2
            optimizer.step()
            hashes.add(combined(hash_tensors([weight, *optimizer.state[weight].values()])))
        alarms += len(hashes) > 1
    return alarms


def gradient(weight: Tensor, draw: torch.Generator) -> Tensor:
    """Of the mean square of what the layer makes of noise, over two micro-batches."""
    total = torch.zeros_like(weight)
    for _ in range(2):
        rows = torch.randn(4, 16, generator=draw)
        rows *= torch.empty_like(rows).bernoulli_(0.7, generator=draw)
        made = (rows.bfloat16() @ weight.bfloat16()).float()
        total += rows.T @ made
    return total


# --- telling ----------------------------------------------------------------------------------------------------------


def table(rows: Iterable[dict[str, object]]) -> str:
    names = [method.name for method in METHODS]
    lines = [f"| fault | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    lines += [f"| {row['fault']} | {' | '.join(cell(row[name]) for name in names)} |" for row in rows]
    return "\n".join(lines)


def cell(value: object) -> str:
    assert isinstance(value, list)
    found, named = value
    if not found:
        return "missed"
    share = "found" if found == 1 else f"{found:.0%}"
    return share + (", rank named" if named == found else f", named {named:.0%}" if named else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--full", action="store_true", help="100,000 injections and clean steps")
    parser.add_argument("--compiled", action="store_true", help="the compiled form, too: needs a C++ compiler")
    parser.add_argument("--only", choices=("cost", "matrix", "counts"))
    given = parser.parse_args()
    rows: dict[str, object] = {"benchmark": "silent_corruption"}
    if given.only in {None, "cost"}:
        rows |= rate_rows(compiled=given.compiled) | share_rows()
    if given.only in {None, "counts"}:
        count = 100_000 if given.full else 10_000
        rows |= {"injections": count, "bitflips_missed_by_replica_hash": missed(count)}
        rows |= {"clean_steps": count, "false_alarms": false_alarms(count)}
    if given.only in {None, "matrix"}:
        rows |= {"matrix": matrix(TRIALS), "replay": replay_rows()}
    rows = {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in rows.items()}
    if given.json:
        print(json.dumps(rows))
        return 0
    print("\n".join(f"{name}: {value}" for name, value in rows.items() if name != "matrix"))
    if found := rows.get("matrix"):
        assert isinstance(found, list)
        print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
