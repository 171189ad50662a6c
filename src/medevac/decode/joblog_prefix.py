"""Who speaks on a line of a job log: the prefixes of launchers and libraries, taken off from the left.

Read: `[rank3]:` and `[rank3]:[E424 ...` (PyTorch), `[default3]:` (torchrun --tee: a local rank), `3: ` (srun -l),
`[1,3]<stderr>:` (mpirun), `[3]<stderr>:` (horovodrun), `n01: ` (pdsh, DeepSpeed), `[pod/train-0/pytorch] ` (kubectl
logs --prefix), `(Trainer pid=1, ip=10.0.0.2) ` (Ray), `worker-0 | ` (compose), `n01:991:1013 [4] ` (NCCL, a local GPU).
"""

from __future__ import annotations

import re
from typing import NamedTuple

COLOUR = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>]")

HOST = r"[A-Za-z][\w.-]{0,60}"
PREFIX = re.compile(
    r"\s*(?:"
    r"\[rank ?(?P<torch>\d+)\]:?"
    r"|\[default(?P<local>\d+)\]:"
    r"|\[\d+,(?P<mpi>\d+)\]<std(?:out|err)>:"
    r"|(?:\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})?\[(?P<horovod>\d+)\]<std(?:out|err)>:"
    r"|(?P<srun>\d{1,6}): (?=\S)"
    r"|\[pod/(?P<pod>[\w.-]+)(?:/[\w.-]+)?\]"
    r"|\((?:[\w.:<>]+ )?pid=\d+(?:, ip=(?P<ip>[\d.]+))?\)"
    rf"|(?P<nccl>{HOST}):\d+:\d+ \[(?P<gpu>\d+)\]"
    rf"|(?P<compose>{HOST}-\d+) +\|"
    rf"|(?P<host>{HOST}\d[\w.-]{{0,20}}): (?=\S)"
    r")"
)
SRUN_SAYS = re.compile(rf"srun: error: (?P<node>{HOST}): tasks? (?P<rank>\d+)(?=:)")
RANK_IN_TEXT = re.compile(r"\[[Rr]ank[ :]?(\d+)\]|\bglobal[ _]rank[ :=]+(\d+)|\b[Rr]ank (\d+)(?=[\]:,])")
NOT_HOSTS = re.compile(
    r"(?:Error|Exception|Warning|rank|step|epoch|iter\w*|line|task|gpu|cuda|loss|PID|pid|py\d)\d*$", re.IGNORECASE
)


class Speaker(NamedTuple):
    """The line without its prefixes, and what they said."""

    text: str
    rank: int | None = None
    local_rank: int | None = None
    node: str = ""


def without_colours(data: bytes) -> bytes:
    """The same bytes without terminal control sequences."""
    return COLOUR.sub(b"", data)


def speaker(line: str) -> Speaker:
    """Who speaks on this line; at most four prefixes deep."""
    at, rank, local, node = 0, None, None, ""
    for _ in range(4):
        match = PREFIX.match(line, at)
        if match is None:
            break
        said = match.groupdict()
        host = said["nccl"] or said["compose"] or said["host"] or said["pod"] or said["ip"] or ""
        if said["host"] and NOT_HOSTS.search(said["host"]):
            break
        at = match.end()
        found = said["torch"] or said["mpi"] or said["horovod"] or said["srun"]
        if found is not None and (rank is None or said["torch"]):  # srun counts tasks, which may be whole nodes
            rank = int(found)
        local = local if local is not None or said["local"] is None else int(said["local"])
        node = node or host
    text = line[at:].lstrip()
    if not node and (srun := SRUN_SAYS.match(text)):
        return Speaker(text, int(srun["rank"]), local, srun["node"])
    if rank is None and (inside := RANK_IN_TEXT.search(text)):
        rank = int(next(group for group in inside.groups() if group))
    return Speaker(text, rank, local, node)
