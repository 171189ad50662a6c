"""`medevac drill`: faults for a person to try, on the playground (`make slurm-playground`) and nowhere else."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import time
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from medevac.cli.output import CommandError
from medevac.sim.lines import stamped

app = App(name="drill", help="Inject a fault on the playground.")
VARIABLE = "MEDEVAC_PLAYGROUND"
FILE = "playground.json"
NAN = struct.pack("<f", float("nan"))


class Playground(msgspec.Struct, frozen=True, kw_only=True):
    """What `make slurm-playground` wrote: the slurm.conf by which its processes are known, its kernel logs and GPUs,
    and the folder of the training's mapped parameters.
    """

    conf: str
    nodes: tuple[str, ...]
    kernel_logs: str
    pci: tuple[str, ...]
    memory: str


Where = Annotated[Path | None, Parameter(name="--playground", help=f"Its folder (else {VARIABLE}).")]


@app.command(name="xid-line")
def xid_line(node: str, /, *, xid: int = 79, gpu: int = 0, playground: Where = None) -> int:
    """Write an Xid into a node's kernel log.

    Parameters
    ----------
    node
        The node, as in node1.
    xid
        The code.
    gpu
        The GPU's index.
    """
    ground = _ground(playground)
    if node not in ground.nodes:
        raise CommandError(f"{node}: the playground has no such node; it has {', '.join(ground.nodes)}")
    if not 0 <= gpu < len(ground.pci):
        raise CommandError(f"--gpu {gpu}: the playground's nodes have {len(ground.pci)}")
    text = f"NVRM: Xid (PCI:{ground.pci[gpu][:-2]}): {xid}, pid='<unknown>', name=<unknown>, drill"
    with Path(ground.kernel_logs.replace("{node}", node)).open("a", encoding="utf-8") as log:
        log.write(stamped(text, node, time.time()))
    print(f"{node}: {text}")
    return 0


@app.command(name="kill-rank")
def kill_rank(rank: int = 0, /, *, playground: Where = None) -> int:
    """Kill a rank of the training.

    Parameters
    ----------
    rank
        Which one.
    """
    return _signal(_ground(playground), rank, signal.SIGKILL)


@app.command(name="stop-rank")
def stop_rank(rank: int = 0, /, *, playground: Where = None) -> int:
    """Stop a rank of the training, so that it hangs.

    Parameters
    ----------
    rank
        Which one.
    """
    return _signal(_ground(playground), rank, signal.SIGSTOP)


@app.command
def nan(*, playground: Where = None) -> int:
    """Put a NaN into the parameters of the training, as a GPU would that computes wrongly."""
    ground = _ground(playground)
    files = sorted(Path(ground.memory).glob("*.bin"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise CommandError(f"{ground.memory}: no parameters are there; does the training run?")
    with files[-1].open("r+b") as memory:
        memory.write(NAN)
    print(f"{files[-1]}: the first parameter is not a number now")
    return 0


def _ground(given: Path | None) -> Playground:
    named = given or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if named is None:
        raise CommandError(f"no playground: `make slurm-playground` starts one; name its folder with {VARIABLE}")
    try:
        return msgspec.json.decode((named / FILE).read_bytes(), type=Playground)
    except (OSError, msgspec.DecodeError) as problem:
        raise CommandError(f"{named}: is no playground; drills are for one only") from problem


def _signal(ground: Playground, rank: int, number: signal.Signals) -> int:
    for pid in _ranks(ground, rank):
        os.kill(pid, number)
        print(f"rank {rank}: {number.name} to process {pid}")
        return 0
    raise CommandError(f"rank {rank}: no process of the playground is it; does the training run?")


def _ranks(ground: Playground, rank: int) -> list[int]:
    """Processes of the training with that rank: of this playground's jobs, and with the in-job variables."""
    wanted = {b"SLURM_CONF=" + os.fsencode(ground.conf), f"RANK={rank}".encode()}
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdecimal() and wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                found.append(int(folder.name))
    return sorted(found)
