"""What finds corruption that no counter reports, what it costs, and what it misses.

    python benchmarks/silent_corruption.py [--json] [--full] [--only cost|robust|matrix|counts]

`--full`: 100,000 injections and 100,000 clean steps, the numbers that docs/silent-corruption.md gives; else a tenth.
Replicas of matrix and counts are simulated in one process: what is compared is what ranks would send each other.
Ratios are within one run.

What robust aggregation costs and withstands is benchmarks/gradients.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable

import numpy as np
import torch
from corruption.methods import METHODS
from corruption.replicas import POINTS, REPLICAS, SHAPES, Replicas, struck, words_of
from gradients import comm_rows, cost_rows, interleaved, robust_rows, training_step  # the benchmark beside this
from torch import Tensor, nn

from medevac.torch import replay
from medevac.torch.place import Place
from medevac.torch.replay import Accused, Strike
from medevac.torch.replica_check import EVERY
from medevac.torch.replica_hash import combined, first_state, flat_bytes, hash_tensors, padded, weighted

TRIALS = 40

# --- cost -------------------------------------------------------------------------------------------------------------


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
    """One check of all state of `training_step` against one step."""
    model, optimizer, step = training_step()
    state = [*model.parameters(), *(one for each in optimizer.state.values() for one in each.values())]
    took = interleaved({"step": step, "check": lambda: combined(hash_tensors(state))}, 5)
    return {
        "step_s": took["step"],
        "replica_check_s": took["check"],
        "replica_hash_every": EVERY,
        "replica_hash_share_of_step": took["check"] / took["step"] / EVERY,
    }


# --- the detection matrix ---------------------------------------------------------------------------------------------


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
    parser.add_argument("--only", choices=("cost", "robust", "matrix", "counts"))
    given = parser.parse_args()
    rows: dict[str, object] = {"benchmark": "silent_corruption"}
    if given.only in {None, "cost"}:
        rows |= rate_rows(compiled=given.compiled) | share_rows() | cost_rows()
    if given.only in {None, "robust"}:
        rows |= comm_rows() | robust_rows()
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
