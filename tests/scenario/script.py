"""The lines of a scenario file: what a cluster and a job do, one a line, times in seconds from the start.

The first line says what it is about and under which policy; the cluster and the job come next. A GPU is written
`node1/0`: the node and the index.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from medevac.core.events import JobPolicy


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="is", forbid_unknown_fields=True):
    """What all lines have."""


class About(Line, frozen=True, kw_only=True, tag="about"):
    """The first line."""

    text: str
    policy: str = "demo"
    mode: Literal["act", "monitor"] = "act"
    lasts: float = 600.0


class Cluster(Line, frozen=True, kw_only=True, tag="cluster"):
    """Nodes node1.. over the racks in turn, each rack with its own feed."""

    racks: int = 2
    nodes: int = 4
    gpus: int = 3


class Job(Line, frozen=True, kw_only=True, tag="job"):
    """A training that takes `step_s` for a step, seals a checkpoint every `save_every` steps and ends after `steps`."""

    name: str = "train"
    ranks: int = 8
    steps: int = 60
    step_s: float = 0.5
    save_every: int = 10
    leaves_when_asked: bool = True
    policy: JobPolicy = JobPolicy(checkpoint_dir="/ckpt")


class Xid(Line, frozen=True, kw_only=True, tag="xid"):
    """Lines of a node's kernel log, each about another row, `every` seconds."""

    at: float
    gpu: str
    code: int
    times: int = 1
    every: float = 0.1
    seen_after: float = 0.2


class Ecc(Line, frozen=True, kw_only=True, tag="ecc"):
    """A reading of a GPU's error counters."""

    at: float
    gpu: str
    sbe: int = 0
    dbe: int = 0
    remapped_rows: int = 0


class Power(Line, frozen=True, kw_only=True, tag="power"):
    """A power supply of a rack changes its state."""

    at: float
    rack: str
    state: str = "failed"


class Mishap(Line, frozen=True, kw_only=True, tag="mishap"):
    """What the job does wrong when it reaches `step` (of that attempt; 0: of every one). hang: the rank's process is
    stopped; stuck: nothing shows why it waits.
    """

    what: Literal["crash", "hang", "stuck", "nan", "end"]
    step: int
    attempt: int = 0
    rank: int = 0
    code: int = 1


class Corrupt(Line, frozen=True, kw_only=True, tag="corrupt"):
    """The files of a checkpoint do not match its seal when they are read."""

    step: int
    problem: str = "model.bin: its content is not what was sealed"


class Unsealed(Line, frozen=True, kw_only=True, tag="unsealed"):
    """A checkpoint without a seal stands in the job's folder."""

    at: float
    step: int


class LoadsAnyway(Line, frozen=True, kw_only=True, tag="loads"):
    """Whatever it is told, the attempt loads this step."""

    attempt: int
    step: int


class Order(Line, frozen=True, kw_only=True, tag="order"):
    """A person's order; a target written node1/0 is that GPU."""

    at: float
    what: Literal["pause", "resume", "return", "release", "resume-from", "stop"]
    target: str = ""
    step: int | None = None


class Refuses(Line, frozen=True, kw_only=True, tag="refuses"):
    """The scheduler refuses the first `times` actions of this kind."""

    action: str
    why: str
    times: int = 1


Mess: TypeAlias = Xid | Ecc | Power | Mishap | Corrupt | Unsealed | LoadsAnyway | Order | Refuses
AnyLine: TypeAlias = About | Cluster | Job | Mess


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A whole scenario."""

    about: About
    cluster: Cluster
    job: Job
    mess: tuple[Mess, ...] = ()


def read(path: Path) -> Script:
    """The scenario of a JSON-lines file."""
    lines = [msgspec.json.decode(line, type=AnyLine) for line in path.read_bytes().splitlines() if line.strip()]
    return Script(
        about=next(line for line in lines if isinstance(line, About)),
        cluster=next((line for line in lines if isinstance(line, Cluster)), Cluster()),
        job=next((line for line in lines if isinstance(line, Job)), Job()),
        mess=tuple(line for line in lines if not isinstance(line, About | Cluster | Job)),
    )
