"""The example training as a Slurm job of four nodes, `medevac controller` beside it, and ways to hurt both."""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil
from tests.e2e.slurm.cluster import Cluster

from medevac.adapters.store.sqlite import read_all
from medevac.core.actions import AnyAction
from medevac.core.decision import Decision
from medevac.core.events import AnyEvent, AttemptEnded, AttemptStarted, StepReported
from medevac.ports.errors import ConfigError, PortError
from medevac.ports.store import EventRecord, Record
from medevac.sim.lines import double_bit_error, row_remapped, stamped

ROOT = Path(__file__).parents[3]
LIMIT_S = 90.0
RANKS = 4
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
T = TypeVar("T", bound=AnyEvent)

CONFIG = """\
mode = "{mode}"
policy = "{policy}"
state_dir = "{folder}/state"
kernel_log = "{cluster}/kmsg/{{node}}"

[notify]
command = ["{folder}/page"]

[watchdog]
limit_s = {limit_s}
poll_s = 0.5

[slurm]
topology = "{folder}/topology.toml"
pointers = "{cluster}/pointers"
"""

# The ranks of one node each; the port is free at each start. A second attempt may have another pace.
JOB = """\
export MEDEVAC_CHECKPOINT_DIR={checkpoints}
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 MASTER_ADDR=127.0.0.1
export MASTER_PORT=$({python} -c 'import socket; s = socket.create_server(("", 0)); print(s.getsockname()[1])')
pace={pace}
[ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] && pace={later_pace}
export pace
srun bash -c '
export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS MEDEVAC_GPU=GPU-$SLURMD_NODENAME-0
{before}
exec {python} {root}/examples/train.py --steps {steps} --save-every {save_every} --step-seconds $pace {options}'
"""


def pci(gpu: int) -> str:
    return f"0000:{0x1B + 0x20 * gpu:02x}:00.0"


def prepare(cluster: Cluster, folder: Path) -> None:
    """What a site has: the topology, kernel logs, a way to be paged."""
    for node in cluster.nodes:
        (cluster.folder / "kmsg" / node).write_text("")
    topology = "".join(
        f"[node.{node}]\ngpus = ["
        + ", ".join(f'{{ index = {g}, uuid = "GPU-{node}-{g}", pci = "{pci(g)}" }}' for g in range(cluster.gpus))
        + "]\n"
        for node in cluster.nodes
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "topology.toml").write_text(topology)
    _script(folder / "page", f"cat >> {folder}/paged")


def _script(path: Path, text: str) -> None:
    staged = path.with_name(f".{path.name}.new")
    staged.write_text(f"#!/bin/sh\n{text}\n")
    staged.chmod(0o755)
    staged.replace(path)


class Service:
    """`medevac controller` and its like in a folder, beside a cluster."""

    def __init__(
        self, cluster: Cluster, folder: Path, *, mode: str = "act", policy: str = "standard", limit_s: float = 120.0
    ) -> None:
        self.cluster = cluster
        self.folder = folder
        self.state = folder / "state"
        self.config = folder / "medevac.toml"
        self.env: dict[str, str] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        prepare(cluster, folder)
        self.config.write_text(
            CONFIG.format(mode=mode, policy=policy, folder=folder, cluster=cluster.folder, limit_s=limit_s)
        )

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """`medevac controller`, or another service."""
        words = words or ("controller", "--scheduler", "slurm")
        with (self.folder / "printed").open("ab") as printed:
            process = subprocess.Popen(
                [sys.executable, "-m", "medevac.cli.main", *words, "--config", str(self.config)],
                env=self.cluster.env | self.env,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                start_new_session=True,
            )
        self.processes[words[0]] = process
        if words[0] == "controller":
            self.until(lambda: self.says("begins") or process.poll() is not None, "begun")
        return process

    def says(self, word: str) -> bool:
        return f'"event":"{word}"' in self.printed().replace('": "', '":"')

    def kill(self, name: str = "controller") -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def stop(self, name: str = "controller") -> int:
        process = self.processes.pop(name)
        process.terminate()
        return process.wait(LIMIT_S)

    def close(self) -> None:
        for name in [*self.processes]:
            self.kill(name)
        # At once: an orderly end of all jobs takes as long as a test.
        self.cluster.call("scancel", "--full", "--signal=KILL", "--user", getpass.getuser(), check=False)

    def medevac(self, *words: str) -> str:
        """What one of Medevac's commands prints, beside this cluster."""
        return self._run(*words).stdout

    def complaint(self, *words: str) -> str:
        """What one says that cannot read what it needs."""
        done = self._run(*words)
        assert (done.returncode, done.stdout) == (3, "")
        return done.stderr

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "medevac.cli.main", *words]
        return subprocess.run(
            command, env=self.cluster.env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )

    def printed(self) -> str:
        path = self.folder / "printed"
        return path.read_text() if path.exists() else ""

    def until(self, what: Callable[[], object], says: str, limit_s: float = LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while not what():
            assert time.monotonic() < deadline, f"never {says}:\n{self.printed()}\n{self._story()}"
            time.sleep(0.05)

    # --- what it wrote down -----------------------------------------------------------------------------------------

    def records(self) -> list[Record]:
        with suppress(PortError, ConfigError):
            return list(read_all(self.state / "medevac.db"))
        return []

    def events(self, kind: type[T]) -> list[T]:
        return [r.event for r in self.records() if isinstance(r, EventRecord) and isinstance(r.event, kind)]

    def decisions(self) -> list[Decision]:
        return [record.decision for record in self.records() if not isinstance(record, EventRecord)]

    def actions(self) -> list[AnyAction]:
        return [action for decision in self.decisions() for action in decision.actions]

    def moved_to(self, job: str) -> list[str]:
        """The states of a job, in order."""
        return [m.target for d in self.decisions() for m in d.moved if m.trigger.who == job]

    def _story(self) -> str:
        return "\n".join(decision.reason for decision in self.decisions()[-20:])


class Training:
    """The job. `hurt` it by its ranks and its nodes."""

    def __init__(
        self,
        service: Service,
        *,
        name: str = "run",
        steps: int = 4000,
        pace: float = 0.05,
        later_pace: float | None = None,
        save_every: int = 10,
        options: str = "",
        before: str = "",
        **policy: object,
    ) -> None:
        self.service = service
        self.cluster = service.cluster
        self.checkpoints = service.folder / name
        self.steps = steps
        script = JOB.format(
            checkpoints=self.checkpoints, python=sys.executable, root=ROOT, steps=steps, save_every=save_every,
            pace=pace, later_pace=later_pace or pace, before=before,
            options=f"--memory {service.folder}/mem-{name} {options}",
        )  # fmt: skip
        asked = {"checkpoint_dir": str(self.checkpoints), **policy}
        self.number = self.cluster.submit(
            script, f"-N{RANKS}", f"-n{RANKS}", "--gres=gpu:1", "--requeue", "--open-mode=append",
            f"--job-name={name}", f"--comment={json.dumps({'medevac': asked})}",
        )  # fmt: skip
        self.job = f"slurm-{self.number}"

    # --- looking ----------------------------------------------------------------------------------------------------

    def reached(self, step: int, attempt: int = 1) -> None:
        """Wait until the controller knows that an attempt got so far."""
        self.service.until(lambda: self.best(attempt) >= step, f"step {step} of attempt {attempt}")

    def ended(self, attempt: int = 1) -> AttemptEnded:
        (ended,) = [e for e in self.service.events(AttemptEnded) if (e.job, e.attempt) == (self.job, attempt)]
        return ended

    def best(self, attempt: int) -> int:
        steps = [event for event in self.service.events(StepReported) if event.job == self.job]
        return max((event.step for event in steps if event.attempt == attempt), default=-1)

    def sealed(self) -> list[int]:
        return sorted(int(path.parent.name[5:]) for path in self.checkpoints.glob("step_*/medevac.json"))

    def printed(self) -> str:
        """The output of all its attempts."""
        (path,) = (self.cluster.folder / "jobs").glob(f"*.{self.number}.out")
        return path.read_text()

    def attempt(self, number: int) -> AttemptStarted:
        (started,) = [e for e in self.service.events(AttemptStarted) if (e.job, e.attempt) == (self.job, number)]
        return started

    def nodes(self, attempt: int) -> set[str]:
        return {place.node for place in self.attempt(attempt).ranks}

    def runs_again(self, attempt: int = 2) -> None:
        """Wait until a later attempt has passed all earlier ones."""
        before = max(self.best(number) for number in range(1, attempt))
        self.reached(before + 1, attempt)
        self.service.until(lambda: self.service.moved_to(self.job)[-1:] == ["running"], "proven")

    # --- hurting ----------------------------------------------------------------------------------------------------

    def rank(self, rank: int) -> psutil.Process:
        """The process of a rank."""
        for process in self.cluster.processes():
            with suppress(psutil.Error):
                env = process.environ()
                if env.get("SLURM_JOB_ID") == str(self.number) and env.get("RANK") == str(rank):
                    return process
        raise AssertionError(f"rank {rank} of job {self.number} does not run")

    def kill_rank(self, rank: int) -> None:
        os.kill(self.rank(rank).pid, signal.SIGKILL)

    def stop_rank(self, rank: int) -> None:
        os.kill(self.rank(rank).pid, signal.SIGSTOP)

    def node(self, rank: int, attempt: int = 1) -> str:
        return self.attempt(attempt).ranks[rank].node


def kernel_says(cluster: Cluster, node: str, *messages: str) -> None:
    with (cluster.folder / "kmsg" / node).open("a") as log:
        log.writelines(stamped(message, node, time.time()) for message in messages)


def gpu_lost(cluster: Cluster, node: str, gpu: int = 0) -> None:
    """Xid 79: a hard drain."""
    text = f"NVRM: Xid (PCI:{pci(gpu)[:-2]}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    kernel_says(cluster, node, text)


def rows_remapped(cluster: Cluster, node: str, gpu: int = 0) -> None:
    """Eleven rows of one GPU: a soft drain."""
    kernel_says(cluster, node, *(row_remapped(pci(gpu), 1024 * (n + 1)) for n in range(11)))


def memory_error(cluster: Cluster, node: str, gpu: int = 0) -> None:
    """Xid 48 on a GPU whose counters nobody has read: everything that it computed is in doubt."""
    kernel_says(cluster, node, double_bit_error(pci(gpu), 0x40000, 3, 1))
