"""Real PyTorch jobs under `medevac run`: killed, stopped, spoilt; the model comes out as if nothing had been."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.e2e.runs import LIMIT_S, ONE_THREAD, ROOT, Run, pci, uuid

from medevac.core.actions import Isolate
from medevac.core.events import AttemptEnded, AttemptStarted, EccCounted

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("torch"), pytest.mark.timeout(400)]

RANKS = 2
STEPS = 60
MARGIN_S = 4.0
"""So much older than a fault is a checkpoint that is beyond doubt; the policy asks for less."""
SCRIPTS = {"ddp": ROOT / "examples" / "torch_ddp.py", "fsdp2": ROOT / "examples" / "torch_fsdp2.py"}
KINDS = [kind + manner for kind in ("ddp", "hook", "fsdp", "hsdp") for manner in ("", "-no_sync", "-micro", "-scaler")]
KINDS.remove("hook-micro")  # micro-batches that are each reduced by an own hook: not told apart (docs/torch.md)
NAMES = Path(__file__).parents[1] / "unit" / "torch" / "nan_ranks.py"


def launch(*command: str, ranks: int = RANKS, **env: str) -> list[tuple[int, str]]:
    """Run a script once per rank, without Medevac; each rank's exit code and output."""
    port = str(random.randint(15000, 32000))
    processes = [
        subprocess.Popen(
            [sys.executable, *command],
            env=os.environ
            | ONE_THREAD
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        return [(process.returncode, text) for process in processes for text in [process.communicate(timeout=300)[0]]]
    finally:
        for process in processes:
            process.kill()


@functools.cache
def undisturbed(kind: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        ended = launch(str(SCRIPTS[kind]), "--steps", str(STEPS), "--checkpoint-dir", folder)
        assert [code for code, _ in ended] == [0] * RANKS, ended
        return str(json.loads(Path(folder, "final.json").read_text())["parameters"])


class TorchRun(Run):
    """`medevac run` of an example with PyTorch."""

    def __init__(self, folder: Path, kind: str = "ddp", *, launcher: tuple[str, ...] = (), pace: float = 0.1) -> None:
        super().__init__(folder, steps=STEPS, ranks=0 if launcher else RANKS)
        self.memory = folder / "mem"
        where = ["--steps", str(STEPS), "--step-seconds", str(pace), "--memory", str(self.memory)]
        self.train = [sys.executable, *launcher, str(SCRIPTS[kind]), *where]

    def recovered(self, kind: str, attempts: int) -> None:
        assert self.wait() == 0, self.told()
        assert self.parameters() == undisturbed(kind), self.told()
        assert [event.attempt for event in self.events(AttemptStarted)] == list(range(1, attempts + 1)), self.told()

    def told(self) -> str:
        logs = sorted(self.state.glob("jobs/*/attempts/*/rank*.log"))
        return self.printed() + "".join(f"\n== {log}\n{log.read_text()[-3000:]}" for log in logs)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[TorchRun]:
    made = TorchRun(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["ddp-no_sync", "fsdp"])
def test_the_rank_that_made_it_is_named(kind: str) -> None:
    named(kind, seed=1, trials=40)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_the_rank_that_made_it_is_always_named(kind: str) -> None:
    named(kind, seed=1, trials=100, ranks=4)


def named(kind: str, seed: int, trials: int, ranks: int = RANKS) -> None:
    ended = launch(str(NAMES), kind, str(seed), str(trials), ranks=ranks)
    assert [code for code, _ in ended] == [0] * ranks, ended
    said = json.loads(next(line for line in ended[0][1].splitlines() if line.startswith("{")))
    attached = "ddp" if kind.startswith(("ddp", "hook")) else "fsdp"
    assert said == {"attached": attached, "trials": trials, "wrong": [[]] * ranks}


def test_a_killed_rank_costs_one_attempt_and_no_bit(run: TorchRun) -> None:
    run.start()
    run.checkpoint()
    os.kill(run.rank_pid(random.randrange(RANKS)), signal.SIGKILL)
    run.recovered("ddp", attempts=2)


def test_a_stopped_rank_is_noticed_and_does_not_hold_up_its_end(run: TorchRun) -> None:
    run.start()
    run.checkpoint(3)
    os.kill(run.rank_pid(1), signal.SIGSTOP)
    run.recovered("ddp", attempts=2)
    hung = [m.trigger for d in run.decisions() for m in d.moved if m.trigger.on == "hung"]
    assert len(hung) == 1


def test_a_job_asked_to_leave_saves_first(run: TorchRun) -> None:
    run.start()
    run.checkpoint()
    run.rows_remapped()
    run.recovered("ddp", attempts=2)
    assert [event.code for event in run.events(AttemptEnded)] == [83, 0]


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_gpu_that_corrupts_its_memory_is_left_and_the_model_is_not_touched(tmp_path: Path, kind: str) -> None:
    run = TorchRun(tmp_path, kind, pace=0.3)
    try:
        run.start()
        run.checkpoint(1)
        sound_since(run, victim(run), time.time() + MARGIN_S)
        corrupt(run.memory / f"{victim(run)}.bin")
        run.memory_error(*place_of(victim(run)))
        assert run.wait() == 0, run.told()
        assert run.parameters() == undisturbed(kind), run.told()
        assert victim(run) in {action.gpu for action in run.actions() if isinstance(action, Isolate)}
    finally:
        run.close()


def victim(run: TorchRun) -> str:
    """The GPU of the first attempt's rank 1."""
    return run.events(AttemptStarted)[0].ranks[1].gpus[0]


def sound_since(run: TorchRun, gpu: str, since: float) -> None:
    """Let the GPU's counters be read once more: what was sealed before is beyond doubt."""
    node, at = place_of(gpu)
    counters = {"uuid": gpu, "pci": pci(at), "sbe": 0, "dbe": 0, "remapped_rows": 0, "temperature": 55.0}

    def read() -> bool:
        counters["temperature"] = 55.0 + len(run.events(EccCounted)) % 7
        path = run.cluster / f"node{node}" / f"gpu{at}.json"
        path.with_suffix(".new").write_text(json.dumps(counters))
        path.with_suffix(".new").replace(path)
        time.sleep(0.1)
        return any(event.gpu == gpu and event.at > since for event in run.events(EccCounted))

    run.until(read, "read")


def place_of(gpu: str) -> tuple[int, int]:
    return next((node, at) for node in (1, 2) for at in range(3) if uuid(node, at) == gpu)


def corrupt(path: Path) -> None:
    words = np.memmap(path, np.float32, "r+")
    words[100:164] = np.nan
    words.flush()


def test_without_medevac_the_same_fault_is_saved_and_loaded_again(tmp_path: Path) -> None:
    """What the others restart from: the newest checkpoint, NaN and all."""
    where = ["--checkpoint-dir", str(tmp_path / "ck"), "--memory", str(tmp_path / "mem"), "--no-guard"]
    command = [str(SCRIPTS["ddp"]), "--step-seconds", "0.05", *where]
    processes = launch_spoilt(command, tmp_path)
    assert processes == [0] * RANKS
    again = launch(*command, "--steps", str(STEPS))
    assert [code for code, _ in again] == [0] * RANKS, again
    assert json.loads((tmp_path / "ck" / "final.json").read_text())["finite"] is False


def launch_spoilt(command: list[str], folder: Path) -> list[int]:
    """The first part of the training, rank 1's memory bad from its first checkpoint on."""
    port = str(random.randint(15000, 32000))
    env = os.environ | ONE_THREAD | {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    (folder / "out").mkdir()
    processes = []
    for rank in range(RANKS):
        with (folder / "out" / str(rank)).open("w") as out:
            given = [sys.executable, *command, "--steps", "40"]
            processes.append(subprocess.Popen(given, env=env | {"RANK": str(rank)}, stdout=out, stderr=out))
    deadline = time.monotonic() + LIMIT_S
    while not list((folder / "ck").glob("step_*/.metadata")) and time.monotonic() < deadline:
        time.sleep(0.02)
    corrupt(folder / "mem" / "rank1.bin")
    try:
        return [process.wait(LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()


TORCHRUN = ("-m", "medevac.torch.run", "--nproc-per-node", str(RANKS))


def test_torchrun_under_medevac_run(tmp_path: Path) -> None:
    run = TorchRun(tmp_path, launcher=TORCHRUN, pace=0.0)
    try:
        run.start()
        run.recovered("ddp", attempts=1)
    finally:
        run.close()


@pytest.mark.soak
def test_a_killed_rank_of_torchrun_costs_one_attempt(tmp_path: Path) -> None:
    run = TorchRun(tmp_path, launcher=TORCHRUN)
    try:
        run.start()
        run.checkpoint()
        os.kill(rank_of_torchrun(run), signal.SIGKILL)
        run.recovered("ddp", attempts=2)
    finally:
        run.close()


def rank_of_torchrun(run: TorchRun) -> int:
    children = Path(f"/proc/{run.rank_pid(0)}/task/{run.rank_pid(0)}/children").read_text().split()
    return int(children[-1])
