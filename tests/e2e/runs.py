"""`medevac run` on a small simulated cluster with the example training, and ways to hurt it."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from medevac.adapters.lease import read
from medevac.adapters.schedulers.local.files import Attempt, attempts
from medevac.adapters.store.sqlite import read_all
from medevac.core.actions import AnyAction
from medevac.core.decision import Decision
from medevac.core.events import ActionSettled, AnyEvent, AttemptStarted
from medevac.ports.errors import ConfigError, PortError
from medevac.ports.store import EventRecord, Record
from medevac.sim.lines import double_bit_error, row_remapped, stamped

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "examples" / "train.py"
LIMIT_S = 120.0
JOB = "train"
NODES = 2
GPUS = 3
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
T = TypeVar("T", bound=AnyEvent)

# As `local`, in a hurry.
POLICY = """
name = "hurried"
extends = "local"

[recovery]
backoff_s = [0.1, 0.2]
retry_s = 0.5
stop_grace_s = 1.0

[hang]
margin_s = 1.5
floor_s = 2.0
"""


class Run:
    """One job in a folder of its own. `start` it, hurt it, `wait` for it."""

    def __init__(
        self, folder: Path, *, steps: int = 40, step_s: float = 0.03, later_step_s: float | None = None, ranks: int = 2
    ) -> None:
        """`later_step_s`: the pace from the second attempt on, for a first one that lasts until it is hurt."""
        self.folder = folder
        self.state = folder / "state"
        self.checkpoints = folder / "ck"
        self.cluster = folder / "cluster"
        self.steps = steps
        self.ranks = ranks
        self.env: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None
        self.processes: list[subprocess.Popen[bytes]] = []
        program = f"exec {sys.executable} {TRAIN} --steps {steps} --save-every 8"
        pace = f"$(test $MEDEVAC_ATTEMPT = 1 && echo {step_s} || echo {later_step_s or step_s})"
        self.train = ["sh", "-c", f"{program} --step-seconds {pace}", JOB]
        make_cluster(self.cluster)
        (folder / "policy.toml").write_text(POLICY)

    # --- running ----------------------------------------------------------------------------------------------------

    def start(self, *options: str) -> None:
        """Begin, or take over."""
        command = [sys.executable, "-m", "medevac.cli.main", "run", "--state-dir", str(self.state)]
        if "--attach" not in options:
            command += ["--cluster", str(self.cluster), "--checkpoint-dir", str(self.checkpoints)]
            command += ["--policy", str(self.folder / "policy.toml"), "--nproc", str(self.ranks), "--job", JOB]
        command += [*options, *(("--", *self.train) if "--attach" not in options else ())]
        with (self.folder / "printed").open("ab") as printed:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=os.environ | ONE_THREAD | self.env,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                start_new_session=True,
            )
        self.processes.append(self.process)

    def wait(self) -> int:
        """The exit code of the process that was started last."""
        assert self.process is not None
        try:
            return self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end of it:\n{self.printed()}") from None

    def printed(self) -> str:
        log = self.state / "controller.log"
        return (self.folder / "printed").read_text() + (log.read_text() if log.exists() else "")

    def order(self, *words: str) -> None:
        """`medevac release ...` and the like."""
        command = [sys.executable, "-m", "medevac.cli.main", *words, "--state-dir", str(self.state)]
        subprocess.run(command, check=True, timeout=LIMIT_S, cwd=self.folder, stderr=subprocess.DEVNULL)

    def close(self) -> None:
        """Leave no process behind: first those that start others."""
        mark = f"{self.state}".encode()
        for _ in range(100):
            left = [pid for pid in pids() if mark in command_line(pid) or mark in environment(pid)]
            left = [pid for pid in left if pid != os.getpid()]
            if not left:
                break
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self.processes:
                process.poll()
            time.sleep(0.02)
        for process in self.processes:
            process.wait(LIMIT_S)

    # --- looking ----------------------------------------------------------------------------------------------------

    def until(self, what: Callable[[], bool], says: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not what():
            assert time.monotonic() < deadline, f"never {says}:\n{self.printed()}"
            time.sleep(0.03)

    def checkpoint(self, count: int = 2) -> None:
        """Wait for so many sealed checkpoints."""
        self.until(lambda: len(list(self.checkpoints.glob("step_*/medevac.json"))) >= count, f"{count} checkpoints")

    def events(self, kind: type[T]) -> list[T]:
        return [r.event for r in self._records() if isinstance(r, EventRecord) and isinstance(r.event, kind)]

    def decisions(self) -> list[Decision]:
        return [record.decision for record in self._records() if not isinstance(record, EventRecord)]

    def actions(self) -> list[AnyAction]:
        return [action for decision in self.decisions() for action in decision.actions]

    def _records(self) -> list[Record]:
        with suppress(PortError, ConfigError):
            return list(read_all(self.state / "medevac.db"))
        return []

    def attempt(self) -> Attempt:
        """The newest one."""
        return attempts(self.state / "jobs" / JOB)[-1]

    def state_is(self, *states: str) -> bool:
        moved = [m.target for d in self.decisions() for m in d.moved if m.trigger.who == JOB]
        return bool(moved) and moved[-1] in states

    def parameters(self) -> str:
        return str(json.loads((self.checkpoints / "final.json").read_text())["parameters"])

    # --- hurting ----------------------------------------------------------------------------------------------------

    def controller_pid(self) -> int:
        held = read(self.state / "controller.lease")
        assert held, "no lease"
        assert held.process, "no process in the lease"
        return held.process.pid

    def keeper_pid(self) -> int:
        keeping = self.attempt().keeping
        assert keeping, "no keeper"
        return keeping.process.pid

    def rank_pid(self, rank: int) -> int:
        keeping = self.attempt().keeping
        assert keeping, "no keeper"
        return keeping.ranks[rank].process.pid

    def kernel_says(self, node: int, gpu: int, *messages: str) -> None:
        with (self.cluster / f"node{node}" / "kmsg").open("a") as log:
            log.writelines(stamped(message, f"node{node}", time.time()) for message in messages)

    def gpu_lost(self, node: int = 1, gpu: int = 0) -> None:
        """Xid 79: a hard drain."""
        text = f"NVRM: Xid (PCI:{pci(gpu)[:-2]}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
        self.kernel_says(node, gpu, text)

    def rows_remapped(self, node: int = 1, gpu: int = 0) -> None:
        """Eleven rows of one GPU: a soft drain."""
        self.kernel_says(node, gpu, *(row_remapped(pci(gpu), 1024 * (n + 1)) for n in range(11)))

    def memory_error(self, node: int = 1, gpu: int = 0) -> None:
        """Xid 48 on a GPU whose counters nobody has read: everything that it computed is in doubt."""
        self.kernel_says(node, gpu, double_bit_error(pci(gpu), 0x40000, 3, 1))


def make_cluster(folder: Path, gpus_each: int = GPUS) -> None:
    """Two nodes in two racks."""
    lines = []
    for node in range(1, NODES + 1):
        (folder / f"node{node}").mkdir(parents=True, exist_ok=True)
        (folder / f"node{node}" / "kmsg").touch()
        gpus = ", ".join(f'{{ index = {g}, pci = "{pci(g)}", uuid = "{uuid(node, g)}" }}' for g in range(gpus_each))
        lines += [f"[node.node{node}]", f'rack = "rack{node}"', f'kernel_log = "node{node}/kmsg"', f"gpus = [{gpus}]"]
    (folder / "topology.toml").write_text("\n".join(lines) + "\n")


def pci(gpu: int) -> str:
    return f"0000:{0x1B + 0x20 * gpu:02x}:00.0"


def uuid(node: int, gpu: int) -> str:
    return f"GPU-{node}{gpu}"


@functools.cache
def undisturbed(steps: int) -> str:
    """The parameters of the same training with nothing happening to it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(TRAIN), "--steps", str(steps), "--step-seconds", "0"]
        command += ["--checkpoint-dir", f"{folder}/ck"]
        env = os.environ | ONE_THREAD
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env, timeout=LIMIT_S)
        return str(json.loads(Path(folder, "ck", "final.json").read_text())["parameters"])


def recovered_once(run: Run, attempts: int) -> None:
    """What must hold after any recovery, whoever was killed meanwhile."""
    assert run.parameters() == undisturbed(run.steps), "the model is not what it would have been"
    started = [event.attempt for event in run.events(AttemptStarted)]
    assert started == list(range(1, attempts + 1)), "an attempt was started twice, or one too many"
    settled = [event.action for event in run.events(ActionSettled) if event.outcome != "unknown"]
    assert sorted(settled) == sorted(set(settled)), "an action was done twice"
    ordered = [action.id for action in run.actions()]
    assert sorted(ordered) == sorted(set(ordered)), "something was ordered twice"
    assert set(settled) == set(ordered), "an action was left undone"
    kept = sorted(int(path.parent.name[5:]) for path in run.checkpoints.glob("step_*/medevac.json"))
    assert set(range(8, run.steps + 1, 8)) <= set(kept), "a checkpoint was lost"


def pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def command_line(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def environment(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""
