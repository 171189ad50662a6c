"""A whole Slurm cluster on this machine: munge, slurmctld and several slurmd, on free ports, from one folder.

The programs come from MEDEVAC_SLURM_PREFIX (its bin and sbin), else from PATH and the system's sbin. Nothing outside
the folder is written, and everything that was started is gone after `stop`.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import inspect
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "sinfo", "munged")
START_S = 60.0
TASK_PROLOG = Path(__file__).parents[3] / "deploy" / "slurm" / "task-prolog"

# A daemon does not outlive the tests, however those end.
LIVES_NO_LONGER = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"

CONF = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
SlurmctldDebug=verbose
DebugFlags=Protocol
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={folder}/task_prolog
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobRequeue=1
KillWait={kill_wait}
SlurmdTimeout={slurmd_timeout}
ReturnToService=1
MpiDefault=none
TopologyPlugin=topology/tree
GresTypes=gpu,accel
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,batch_sched_delay=0,sched_interval=1
MinJobAge=3600
{accounting}
"""

DBD = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
DbdPort={port}
SlurmUser={user}
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={sql_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct
"""


def program(name: str) -> str | None:
    """The path of one of Slurm's or munge's programs, None where it is not installed."""
    prefix = os.environ.get("MEDEVAC_SLURM_PREFIX")
    folders = [f"{prefix}/bin", f"{prefix}/sbin"] if prefix else []
    return shutil.which(name, path=":".join([*folders, os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"]))


def missing() -> list[str]:
    """The programs that a cluster needs and this machine does not have."""
    return [name for name in PROGRAMS if program(name) is None]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def until(holds: Callable[[], object], what: str, timeout_s: float = START_S) -> None:
    """Wait for a condition of the world."""
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, f"{what}: not within {timeout_s:.0f} s"
        time.sleep(0.05)


async def until_async(holds: Callable[[], object], what: str, timeout_s: float = START_S) -> None:
    """The same, from a coroutine; `holds` may be one."""
    end = time.monotonic() + timeout_s
    while True:
        found = holds()
        if await found if inspect.isawaitable(found) else found:
            return
        assert time.monotonic() < end, f"{what}: not within {timeout_s:.0f} s"
        await asyncio.sleep(0.05)


class Cluster:
    """`nodes` nodes named node0, node1, ... with `gpus` GPUs each, half of them in rack0, half in rack1. The
    `counted` nodes have accelerators without device files, which Slurm only counts; `more` is added to slurm.conf.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 4,
        gpus: int = 2,
        kill_wait: int = 2,
        accounting: bool = False,
        counted: tuple[str, ...] = (),
        more: str = "",
    ) -> None:
        self.folder = folder
        self.nodes = [f"node{number}" for number in range(nodes)]
        self.gpus = gpus
        self.kill_wait = kill_wait
        self.accounting = accounting
        self.counted = counted
        self.more = more
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._name = f"test{os.getpid()}x{'a' if accounting else 'b'}"
        self._ports = free_ports(nodes + 3)

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def pointers(self) -> Path:
        """Where the TaskProlog looks."""
        return self.folder / "pointers"

    @property
    def env(self) -> dict[str, str]:
        """The environment in which Slurm's commands speak to this cluster."""
        outside = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_"))}
        return {**outside, "SLURM_CONF": str(self.conf)}

    @property
    def log(self) -> str:
        """What slurmctld wrote."""
        return (self.folder / "log" / "slurmctld.log").read_text(errors="replace")

    # --- its life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Returns when all nodes are idle."""
        self._write()
        self._munge()
        if self.accounting:
            self._database()
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        self.wait_idle()

    def stop(self) -> None:
        """End everything, jobs first."""
        if self.daemons.get("slurmctld") and self.daemons["slurmctld"].poll() is None:
            self.call("scancel", "--full", "--user", getpass.getuser(), check=False)
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):  # a slurmd waits for its steps
                until(lambda: not self.call("squeue", "-h", check=False).stdout.strip(), "no job is left", 15.0)
        for daemon in self.daemons.values():
            daemon.terminate()
        for name in [*self.daemons]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.daemons[name].wait(5)
            self.kill(name)
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def start_controller(self) -> None:
        """Start slurmctld (again) and wait until it answers."""
        self._daemon("slurmctld", "-D", "-i")
        until(self.answers, "slurmctld answers")

    def start_node(self, node: str, *, booted: bool = False) -> None:
        """Start the slurmd of a node (again); `booted`: it says that its machine has just started."""
        self._daemon("slurmd", "-D", *(["-b"] if booted else []), "-N", node, key=node)

    def save(self) -> None:
        """Wait until slurmctld's state is on disk: it writes a few seconds behind, and a crash loses the rest."""
        began = time.time()
        self.submit("true", "--hold")
        path = self.folder / "state" / "job_state"
        until(lambda: path.exists() and path.stat().st_mtime > began, "slurmctld saves its state")

    def kill(self, name: str) -> None:
        """SIGKILL slurmctld, the slurmd of a node, or munged."""
        process = self.daemons.pop(name, None)
        if process and process.poll() is None:
            process.kill()
        if process:
            process.wait()

    def answers(self) -> bool:
        """slurmctld takes commands."""
        return (
            self.call("scontrol", "ping", check=False).returncode == 0 and "UP" in self.call("scontrol", "ping").stdout
        )

    def wait_idle(self) -> None:
        until(
            lambda: (
                self.call("sinfo", "-h", "-N", "-o", "%T", check=False).stdout.split().count("idle") >= len(self.nodes)
            ),
            "all nodes idle",
        )

    def processes(self) -> list[psutil.Process]:
        """Everything that runs with our slurm.conf: daemons, steps and jobs."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SLURM_CONF") == str(self.conf) and process.pid != os.getpid():
                    found.append(process)
        return found

    # --- its use ----------------------------------------------------------------------------------------------------

    def call(
        self, name: str, *args: str, check: bool = True, env: Mapping[str, str] = {}
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands."""
        path = program(name)
        assert path, f"{name} is not installed"
        result = subprocess.run(
            [path, *args],
            env={**self.env, **env},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
        assert not check or result.returncode == 0, f"{name} {' '.join(args)}: {result.stdout}{result.stderr}"
        return result

    def submit(self, script: str, *options: str) -> int:
        """sbatch; returns the job's number."""
        path = self.folder / "jobs" / f"{time.monotonic_ns()}.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        out = self.call(
            "sbatch", "--parsable", "--output", str(self.folder / "jobs" / "%A_%a.%j.out"), *options, str(path)
        )
        return int(out.stdout.strip().split(";")[0])

    def job(self, number: int | str) -> dict[str, str]:
        """`scontrol show job` as it stands, for the tests' own eyes."""
        text = self.call("scontrol", "-o", "show", "job", str(number)).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def state(self, number: int | str) -> str:
        return self.job(number)["JobState"]

    def wait_state(self, number: int | str, *states: str) -> None:
        until(lambda: self.state(number) in states, f"job {number} is {' or '.join(states)}")

    def reset(self) -> None:
        """No jobs, all nodes in service."""
        if "slurmctld" not in self.daemons or self.daemons["slurmctld"].poll() is not None:
            self.start_controller()
        for node in self.nodes:
            if node not in self.daemons or self.daemons[node].poll() is not None:
                self.start_node(node)
        self.call("scancel", "--user", getpass.getuser(), check=False)
        until(lambda: not self.call("squeue", "-h", check=False).stdout.strip(), "no job is left")
        self._past()
        for node in self.nodes:
            for state in ("undrain", "resume"):
                self.call("scontrol", "update", f"NodeName={node}", f"State={state}", check=False)
        self.wait_idle()

    def _past(self) -> None:
        """Wait until no job ended in this second: Slurm tells no less, and whoever begins to look now takes it up."""
        ends = self.call("squeue", "-h", "-t", "all", "-o", "%e").stdout.split()
        last = max((end for end in ends if end[0].isdigit()), default="")
        until(lambda: last < time.strftime("%Y-%m-%dT%H:%M:%S"), "the next second", 5.0)

    # --- the parts --------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        for name in ("state", "spool", "log", "jobs", "munge", "kmsg", "pointers"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "munge").chmod(0o755)
        accounting = (
            f"AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=localhost\n"
            f"AccountingStoragePort={self._ports[-2]}\nAccountingStoragePass={self.folder}/munge/socket\nAccountingStoreFlags=job_comment\nJobAcctGatherType=jobacct_gather/linux"
            if self.accounting
            else ""
        )
        host = socket.gethostname().split(".")[0]
        lines = [
            CONF.format(
                name=self._name,
                host=host,
                port=self._ports[-1],
                user=getpass.getuser(),
                folder=self.folder,
                kill_wait=self.kill_wait,
                slurmd_timeout=10,
                accounting=accounting,
            )
        ]
        gres = []
        for number, node in enumerate(self.nodes):
            lines.append(
                f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={self._ports[number]} CPUs=4 Boards=1 "
                f"SocketsPerBoard=1 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=1000 "
                f"Gres={'accel' if node in self.counted else 'gpu'}:{self.gpus} "
                "State=UNKNOWN\n"
            )
            for gpu in range(self.gpus):
                (self.folder / f"gpu-{node}-{gpu}").touch()
            files = f"gpu File={self.folder}/gpu-{node}-[0-{self.gpus - 1}]"
            gres.append(f"NodeName={node} Name={f'accel Count={self.gpus}' if node in self.counted else files}\n")
            (self.folder / "kmsg" / node).touch()
        lines.append(f"PartitionName=train Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP\n")
        self.conf.write_text("".join(lines) + self.more.format(folder=self.folder))
        (self.folder / "gres.conf").write_text("".join(gres))
        half = len(self.nodes) // 2
        (self.folder / "topology.conf").write_text(
            f"SwitchName=rack0 Nodes={','.join(self.nodes[:half])}\n"
            f"SwitchName=rack1 Nodes={','.join(self.nodes[half:])}\n"
            "SwitchName=spine Switches=rack[0-1]\n"
        )
        prolog = self.folder / "task_prolog"
        prolog.write_text(f"#!/bin/sh\nMEDEVAC_POINTERS={self.pointers} exec {TASK_PROLOG}\n")
        prolog.chmod(0o755)

    def _munge(self) -> None:
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        options = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        words = [f"--{name}={self.folder / 'munge' / value}" for name, value in options.items()]
        self._daemon("munged", "--foreground", "--force", *words)
        until((self.folder / "munge" / "socket").exists, "munged listens")

    def _database(self) -> None:
        """MariaDB with a folder, socket and port of its own, and slurmdbd on it."""
        data, port = self.folder / "mysql", self._ports[-3]
        install = shutil.which("mariadb-install-db")
        assert install, "mariadb-server is not installed"
        user = getpass.getuser()
        subprocess.run(
            [
                install,
                "--no-defaults",
                f"--datadir={data}",
                f"--user={user}",
                "--auth-root-authentication-method=normal",
            ],
            check=True,
            capture_output=True,
        )
        init = self.folder / "init.sql"
        init.write_text(
            "CREATE DATABASE IF NOT EXISTS slurm_acct;\n"
            "CREATE USER IF NOT EXISTS slurm@'127.0.0.1' IDENTIFIED BY 'slurm';\n"
            "GRANT ALL ON slurm_acct.* TO slurm@'127.0.0.1';\n"
        )
        self._daemon(
            "mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={data}/socket", f"--port={port}",
            f"--user={user}", "--bind-address=127.0.0.1", f"--pid-file={data}/pid", f"--init-file={init}",
            "--skip-name-resolve", "--innodb-buffer-pool-size=64M",
        )  # fmt: skip
        conf = self.folder / "slurmdbd.conf"
        conf.write_text(DBD.format(folder=self.folder, port=self._ports[-2], user=user, sql_port=port))
        conf.chmod(0o600)
        until(lambda: _listens(port), "mariadbd listens")
        self._daemon("slurmdbd", "-D")
        until(lambda: _listens(self._ports[-2]), "slurmdbd listens")
        self.call("sacctmgr", "-i", "add", "cluster", self._name, check=False)

    def _daemon(self, name: str, *args: str, key: str = "") -> None:
        path = program(name)
        assert path, f"{name} is not installed"
        output = (self.folder / "log" / f"{key or name}.out").open("ab")
        command = [sys.executable, "-S", "-c", LIVES_NO_LONGER, path, *args]
        self.daemons[key or name] = subprocess.Popen(
            command, env=self.env, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
        )
        output.close()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
