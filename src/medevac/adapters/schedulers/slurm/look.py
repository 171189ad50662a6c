"""Reading Slurm: one `squeue` for all jobs, one `scontrol show node` for all nodes."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from medevac.adapters.schedulers.slurm import parse
from medevac.adapters.schedulers.slurm.commands import Commands
from medevac.adapters.schedulers.slurm.marks import theirs
from medevac.adapters.schedulers.slurm.restd import Restd
from medevac.adapters.schedulers.slurm.settings import SlurmSettings
from medevac.adapters.schedulers.slurm.values import JobDetail, Partition, SlurmJob, SlurmNode
from medevac.adapters.topology import load_topology
from medevac.core.events import ClusterSeen, Node
from medevac.ports.errors import BadReply, Refused, Unavailable

SLOW_SHARE = 5.0
"""Slurm is left alone for this many times as long as its last answer took."""


class Look:
    """Raises `Unavailable` and `BadReply`; what could not be read is never "no jobs"."""

    def __init__(self, commands: Commands, site: SlurmSettings) -> None:
        self._run = commands.run
        self._site = site
        self._rest = Restd(site.restd, site.deadline_s) if site.restd else None
        self._jobs: tuple[SlurmJob, ...] | None = None
        self._not_before = 0.0
        self._asking = asyncio.Lock()
        self._nodes: dict[str, Node] | None = None

    @property
    def latest(self) -> tuple[SlurmJob, ...]:
        """The last answer of `jobs`; nothing before the first."""
        return self._jobs or ()

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes as `cluster` last told them; none before the first."""
        return tuple(self._nodes or ())

    async def jobs(self, *, fresh: bool = False) -> tuple[SlurmJob, ...]:
        """All that slurmctld holds, ended ones too; the last answer again while it is younger than `poll_s`."""
        async with self._asking:
            began = time.monotonic()
            if self._jobs is None or fresh or began >= self._not_before:
                self._jobs = parse.het_groups(await self._all())
                took = time.monotonic() - began
                self._not_before = time.monotonic() + max(self._site.poll_s, SLOW_SHARE * took)
            return self._jobs

    async def job(self, id_: str) -> SlurmJob | None:
        """One job as it is now; None where Slurm has none of that number."""
        try:
            found = await self._squeue("-j", id_)
        except Refused as problem:
            if "invalid job id" in str(problem).lower():
                return None
            raise
        return next((job for job in parse.het_groups(found) if id_ in {job.id, job.number}), None)

    async def accounted(self, slurm: str) -> dict[str, str] | None:
        """The last run of a job as the accounting has it; None where it has none, or there is no accounting."""
        columns = ("-X", "-P", "-o", "JobID,State,ExitCode,Start,End")
        try:
            rows, _ = parse.table(await self._run("sacct", "-j", slurm, *columns))
        except (Refused, Unavailable):
            return None
        return rows[-1] if rows else None

    async def steps(self, job: SlurmJob) -> list[str]:
        """The steps that run of all its parts: `12.0`, `12.batch`."""
        named = ",".join(job.parts or (job.id,))
        return (await self._run("squeue", "-h", "-s", "-j", named, "-o", "%i")).split()

    async def detail(self, job: SlurmJob) -> JobDetail:
        """Exclusions and GPU indices. Raises `Refused` where it is gone."""
        return parse.job_detail(await self._run("scontrol", "-d", "-o", "show", "job", job.number), job.name)

    async def nodes(self) -> dict[str, SlurmNode]:
        """All nodes by name."""
        if self._rest:
            return {node.name: node for node in await self._rest.nodes()}
        return {node.name: node for node in parse.nodes(await self._run("scontrol", "-a", "-o", "show", "node"))}

    async def node(self, name: str) -> SlurmNode:
        """Raises `Refused` where there is none."""
        found = parse.nodes(await self._run("scontrol", "-o", "show", "node", name))
        if not found:
            raise BadReply(f"scontrol show node {name}: it says nothing")
        return found[0]

    async def part(self, name: str, gpu: str = "") -> SlurmNode:
        """A node, and one that has this GPU where one is named. Raises `Refused`."""
        node = await self.node(name)
        known = (await self.known_nodes()).get(name)
        if gpu and (known is None or gpu not in {one.uuid for one in known.gpus}):
            raise Refused(f"GPU {gpu}: node {name} has none of that UUID")
        return node

    async def comment(self, name: str) -> str:
        """A node's Comment, whole."""
        mark = secrets.token_hex(4)
        text = await self._run("sinfo", "-a", "-h", "-N", "-n", name, "-O", f"Comment:#{mark}")
        comment, found, _ = text.partition(f"#{mark}")
        if not found:
            raise BadReply(f"sinfo: it tells no Comment of node {name}")
        return "" if comment in {"(null)", "N/A"} else comment

    async def partitions(self) -> tuple[Partition, ...]:
        return parse.partitions(await self._run("scontrol", "-a", "-o", "show", "partition"))

    async def cluster(self) -> ClusterSeen:
        """Racks and GPUs from `topology.toml`, and where that leaves a rack out, Slurm's lowest switch; partitions,
        and whether somebody else has taken the node out.
        """
        return await self.seen(await self.nodes())

    async def seen(self, read: Mapping[str, SlurmNode]) -> ClusterSeen:
        """The same of nodes that have just been read."""
        told = load_topology(Path(self._site.topology)).nodes if self._site.topology else ()
        known = {node.name: node for node in told}
        switches = await self._switches()
        nodes = tuple(_node(known.get(name) or Node(name=name), switches.get(name, ""), read[name]) for name in read)
        self._nodes = {node.name: node for node in nodes}
        return ClusterSeen(at=time.time(), source="slurm", nodes=nodes)

    async def known_nodes(self) -> dict[str, Node]:
        """The nodes as `cluster` last told them."""
        if self._nodes is None:
            await self.cluster()
        assert self._nodes is not None, "cluster has set it"
        return self._nodes

    async def _all(self) -> tuple[SlurmJob, ...]:
        if self._rest is None:
            return await self._squeue()
        asked = time.monotonic()
        return tuple(msgspec.structs.replace(job, asked=asked) for job in await self._rest.jobs())

    async def _squeue(self, *more: str) -> tuple[SlurmJob, ...]:
        mark, asked = secrets.token_hex(4), time.monotonic()
        text = await self._run("squeue", "-a", "-h", "-t", "all", *more, "-O", parse.squeue_format(mark))
        return tuple(msgspec.structs.replace(job, asked=asked) for job in parse.squeue(text, mark))

    async def _switches(self) -> dict[str, str]:
        """Empty where the site has no topology plugin that tells switches."""
        try:
            return parse.racks(await self._run("scontrol", "-o", "show", "topology"))
        except (Refused, Unavailable):
            return {}


def _node(known: Node, switch: str, node: SlurmNode) -> Node:
    return msgspec.structs.replace(
        known, rack=known.rack or switch, partitions=tuple(sorted(node.partitions)), out=theirs(node)
    )
