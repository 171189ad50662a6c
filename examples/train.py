"""A small real training: data-parallel over processes, numpy only, the same bits at any number of ranks.

Run it alone, under `medevac run --nproc 8`, or under anything that sets RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
A batch is 8 fixed shards. Ranks share the shards out, and rank 0 adds their gradients up in the order of the shards,
so 8 ranks, 3 or one end with equal parameters. A rank's parameters live in a mapped file, which stands for the memory
of its GPU and is read anew in each step: what corrupts it corrupts the training.

It knows what any training knows, and no more: it saves a checkpoint now and then, and ends when a peer is lost.
Exit codes: 0 trained to the end, 1 failed (a peer lost, a checkpoint that cannot be read), 2 wrong use,
83 saved a checkpoint on request and left.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from allreduce import SHARDS, Command, Group, Lost, Member, Total, join
from medevac.client import Client
from medevac.client.seal import newest, sealed, sweep
from medevac.core.events import SealRank
from medevac.core.seal import Seal, step_of

Vector = NDArray[np.float32]

DRAINED = 83
TERMINATED = 143
INPUTS, HIDDEN, CLASSES, SHARD_ROWS = 32, 64, 10, 32
LEARNING_RATE = 0.25
SHAPES = ((INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
SIZE = sum(math.prod(shape) for shape in SHAPES)


# --- the model --------------------------------------------------------------------------------------------------------


def initial() -> Vector:
    """The parameters that every training starts from."""
    rng = np.random.default_rng(1)
    return rng.normal(0.0, 0.15, SIZE).astype(np.float32)


def layers(parameters: Vector) -> list[Vector]:
    """Views of the parameters in the shapes of the layers."""
    ends = np.cumsum([math.prod(shape) for shape in SHAPES])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(parameters, ends), SHAPES, strict=True)]


def batch(step: int, shard: int) -> tuple[Vector, NDArray[np.intp]]:
    """The rows of one shard: they depend on step and shard alone. What is to be learnt is a fixed random map."""
    teacher = np.random.default_rng(2).normal(size=(INPUTS, CLASSES)).astype(np.float32)
    rows = np.random.default_rng((3, step, shard)).normal(size=(SHARD_ROWS, INPUTS)).astype(np.float32)
    return rows, np.argmax(rows @ teacher, axis=1)


def gradient(parameters: Vector, rows: Vector, labels: NDArray[np.intp]) -> tuple[float, Vector]:
    """Mean cross-entropy of one shard and its gradient, a two-layer perceptron worked out by hand."""
    w1, b1, w2, b2 = layers(parameters)
    hidden = np.maximum(rows @ w1 + b1, 0)
    scores = hidden @ w2 + b2
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(axis=1, keepdims=True)
    each = np.arange(len(labels))
    loss = float(-np.log(chances[each, labels]).mean())
    chances[each, labels] -= 1
    chances /= len(labels)
    back = (chances @ w2.T) * (hidden > 0)
    parts = (rows.T @ back, back.sum(axis=0), hidden.T @ chances, chances.sum(axis=0))
    return loss, np.concatenate([part.ravel() for part in parts])


# --- where things are -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """The command line and what the environment adds to it."""

    steps: int
    save_every: int
    log_every: int
    step_seconds: float
    resume: str
    checkpoints: Path
    memory: Path
    cluster: Path | None


def options(arguments: list[str], environ: Mapping[str, str]) -> Options:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="train so many steps in all")
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--log-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--step-seconds", type=float, default=0.06, help="a step takes at least so long")
    parser.add_argument("--resume", choices=("none", "newest"), default="none", help="without Medevac: what to load")
    parser.add_argument("--checkpoint-dir", type=Path, default=environ.get("MEDEVAC_CHECKPOINT_DIR", "checkpoints"))
    parser.add_argument("--memory", type=Path, help="folder of the ranks' mapped parameters (beside the checkpoints)")
    parser.add_argument("--cluster", type=Path, help="simulated cluster whose error counters go into the seals")
    given = parser.parse_args(arguments)
    if min(given.steps, given.save_every, given.log_every) < 1:
        parser.error("--steps, --save-every and --log-every count from 1")
    folder = given.checkpoint_dir.absolute()
    return Options(
        steps=given.steps,
        save_every=given.save_every,
        log_every=given.log_every,
        step_seconds=given.step_seconds,
        resume=given.resume,
        checkpoints=folder,
        memory=given.memory or folder.parent / "mem",
        cluster=given.cluster,
    )


def map_memory(folder: Path, name: str, parameters: Vector) -> Vector:
    """A new mapped file with these parameters in it; one that an earlier process still maps is left to that one."""
    folder.mkdir(parents=True, exist_ok=True)
    staged = folder / f".{name}.{os.getpid()}"
    parameters.tofile(staged)
    staged.replace(folder / f"{name}.bin")
    return np.memmap(folder / f"{name}.bin", dtype=np.float32, mode="r+", shape=(SIZE,))


def error_counter(cluster: Path | None, member: Member) -> int | None:
    """The uncorrectable errors of the rank's GPU so far, as its node shows them; None where nothing does."""
    if cluster is None:
        return None
    for path in (cluster / member.node).glob("gpu*.json"):
        shown = json.loads(path.read_bytes())
        if shown["uuid"] == member.gpu:
            return int(shown["dbe"])
    return None


# --- checkpoints ------------------------------------------------------------------------------------------------------


def load(client: Client, wanted: Options) -> tuple[int, Vector]:
    """Step and parameters to go on from. Under Medevac only what Medevac said; else `--resume`."""
    if client.resume_from is not None:
        folder = client.resume_from
    elif client.job or wanted.resume == "none":
        return 0, initial()
    else:
        found = newest(wanted.checkpoints)
        if found is None:
            return 0, initial()
        folder = found
    step = step_of(folder.resolve().name)
    try:
        parameters = np.load(folder / "parameters.npy")
    except (ValueError, EOFError) as error:
        raise ValueError(f"{folder / 'parameters.npy'}: cannot be read: {error}") from error
    if step is None or parameters.shape != (SIZE,) or parameters.dtype != np.float32:
        raise ValueError(f"{folder}: not a checkpoint of this training (want step_<8 digits> with {SIZE} floats)")
    return step, parameters


def save(draft: Seal, folder: Path, parameters: Vector) -> bool:
    """Save and seal; a disk that refuses costs the checkpoint, not the training."""
    try:
        with sealed(folder, draft) as staging:
            np.save(staging / "parameters.npy", parameters)
    except OSError as error:
        say(f"checkpoint of step {draft.step} not saved: {folder}: {error}: make room there, training goes on")
        return False
    return True


def finish(folder: Path, step: int, loss: float, parameters: Vector) -> None:
    """Say what the training came to, on the screen and in `final.json`."""
    finite = bool(np.isfinite(parameters).all())
    digest = f"sha256:{hashlib.sha256(parameters.tobytes()).hexdigest()}"
    result = {"step": step, "parameters": digest, "finite": finite, "loss": loss if math.isfinite(loss) else None}
    staged = folder / ".final.json"
    staged.write_text(json.dumps(result) + "\n", encoding="utf-8")
    staged.replace(folder / "final.json")
    say(f"final step {step} loss {loss:.4f} finite {str(finite).lower()} parameters {digest}")


# --- the training -----------------------------------------------------------------------------------------------------


class Rank:
    """One rank of the training, from the first step to the last."""

    def __init__(self, wanted: Options, group: Group, client: Client) -> None:
        self.wanted, self.group, self.client = wanted, group, client
        client.heartbeat(0, "load")
        self.step, parameters = load(client, wanted)
        client.resumed(self.step or None)
        self.parent = self.step or None
        self.loss = self.norm = math.nan
        self.memory = map_memory(wanted.memory, group.me.gpu or f"rank{group.rank}", parameters)
        if group.rank == 0:
            wanted.checkpoints.mkdir(parents=True, exist_ok=True)
            sweep(wanted.checkpoints)
            say(f"{group.world} ranks, from step {self.step}")

    def train(self) -> int:
        """Train to the last step; the exit code."""
        command = Command.GO_ON
        while self.step < self.wanted.steps and command is Command.GO_ON:
            began = time.monotonic()
            total = self.advance(began)
            command = total.command
            self.report(time.monotonic() - began)
            if self.group.rank == 0 and command is not Command.STOP:
                self.save(total)
        if self.group.rank == 0 and command is Command.GO_ON:
            finish(self.wanted.checkpoints, self.step, self.loss, np.array(self.memory))
        self.client.heartbeat(self.step, "end")
        self.group.leave()
        return {Command.GO_ON: 0, Command.SAVE: DRAINED, Command.STOP: TERMINATED}[command]

    def advance(self, began: float) -> Total:
        """One step: gradients of the own shards, the sum over all, the new parameters."""
        step = self.step + 1
        parameters = np.array(self.memory)
        parts = [gradient(parameters, *batch(step, shard)) for shard in self.group.shards]
        time.sleep(max(0.0, began + self.wanted.step_seconds - time.monotonic()))
        compute_s = time.monotonic() - began
        ecc = error_counter(self.wanted.cluster, self.group.me)
        total = self.group.all_reduce(parts, ecc, self.client.request())
        self.memory -= np.float32(LEARNING_RATE / SHARDS) * total.gradient
        self.step, self.loss = step, total.loss / SHARDS
        self.norm = float(np.linalg.norm(total.gradient)) / SHARDS
        self.client.heartbeat(step, loss=self.loss, grad_norm=self.norm, compute_s=compute_s)
        return total

    def report(self, seconds: float) -> None:
        if self.group.rank == 0 and (self.step % self.wanted.log_every == 0 or self.step == self.wanted.steps):
            place = f"step {self.step}/{self.wanted.steps}"
            say(f"{place} loss {self.loss:.4f} grad_norm {self.norm:.4f} step_time {seconds:.3f}s")

    def save(self, total: Total) -> None:
        """Save where a checkpoint is due, at the end, and where one was asked for."""
        due = self.step % self.wanted.save_every == 0 or self.step == self.wanted.steps
        if not due and total.command is not Command.SAVE:
            return
        self.client.heartbeat(self.step, "save")
        ranks = tuple(
            SealRank(rank=rank, node=member.node, gpu_uuid=member.gpu, pci=member.pci, ecc=ecc)
            for rank, (member, ecc) in enumerate(zip(self.group.members, total.ecc, strict=True))
        )
        job, attempt = self.client.job, self.client.attempt
        draft = Seal(job=job, attempt=attempt, step=self.step, parent=self.parent, ranks=ranks)
        if save(draft, self.wanted.checkpoints, np.array(self.memory)):
            self.parent = self.step
        self.client.heartbeat(self.step)  # the save is over: a hang from here on is not one of a save


def say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    wanted = options(sys.argv[1:], os.environ)
    client = Client.from_env()
    client.heartbeat(0, "start")
    rank = os.environ.get("RANK", "0")
    try:
        group = join(os.environ, SIZE)
        with np.errstate(all="ignore"):
            return Rank(wanted, group, client).train()
    except (Lost, OSError, ValueError) as error:
        print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        client.close()


if __name__ == "__main__":
    sys.exit(main())
