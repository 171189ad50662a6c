"""Nodes out of service and back: Slurm drains whole nodes, so one GPU that is out drains its node."""

from __future__ import annotations

import structlog

from medevac.adapters.schedulers.slurm.commands import Commands
from medevac.adapters.schedulers.slurm.counts import Counts
from medevac.adapters.schedulers.slurm.look import Look
from medevac.adapters.schedulers.slurm.marks import DrainTag, Mode, ours, theirs
from medevac.adapters.schedulers.slurm.memory import Memory
from medevac.adapters.schedulers.slurm.nodemark import node_mark
from medevac.adapters.schedulers.slurm.reserve import Reservations
from medevac.adapters.schedulers.slurm.settings import SlurmSettings
from medevac.adapters.schedulers.slurm.values import SlurmNode
from medevac.core.actions import GiveBack, Isolate
from medevac.ports.errors import OutcomeUnknown, PortError, Unsupported

log = structlog.get_logger(__name__)


class Drains:
    """The tag in a node's Reason says what of it is out by our hand; a drain without it is a person's and stays."""

    def __init__(self, commands: Commands, look: Look, memory: Memory, site: SlurmSettings) -> None:
        self._run = commands.run
        self._look = look
        self._memory = memory
        self._counts = Counts(commands, look, site.counted_gres)
        self._reservations = Reservations(commands, wanted=site.reserve_repairs)

    async def out(self) -> dict[str, str]:
        """GPU UUID or node name -> mode."""
        nodes = (await self._look.nodes()).values()
        return {name: mode for node in nodes for name, mode in (*fewer(node).items(), *ours(node).out.items())}

    async def add(self, action: Isolate) -> None:
        """Take out; a soft order does not soften a hard one."""
        if action.id in self._memory.nodes().done:
            return
        node = await self._look.part(action.node, action.gpu)
        if not theirs(node) and not await self._counted(node, action):
            await self._out(node, action)
        self._memory.node_order_done(action.id)  # what a person took out is out, and not ours to give back

    async def _out(self, node: SlurmNode, action: Isolate) -> None:
        tag, target = ours(node), action.gpu or action.node
        if not (target in tag.out and (action.mode == "soft" or tag.out[target] == "hard")):
            out = {**tag.out, target: action.mode}
            await self._drain(node, DrainTag(out=out, incident=action.cause, why=action.reason or tag.why))
        if action.mode == "hard":
            await self._reservations.add(node.name, action.cause)

    async def _counted(self, node: SlurmNode, action: Isolate) -> bool:
        """One GPU less instead of a whole node, where Slurm can."""
        if not action.gpu or node.drained:
            return False
        if fewer(node).get(action.gpu) in {"hard", action.mode}:
            return True
        try:
            await self._counts.less(node, action)
        except Unsupported:
            return False
        return True

    async def remove(self, action: GiveBack) -> None:
        """Take our own order back; the node returns when nothing of it is out by our hand."""
        if action.id in self._memory.nodes().done:
            return
        node = await self._look.part(action.node, action.gpu)
        tag, target = ours(node), action.gpu or action.node
        await self._counts.more(node, action)
        if target in tag.out:
            out = {name: mode for name, mode in tag.out.items() if name != target}
            if out:
                await self._drain(node, DrainTag(out=out, incident=tag.incident, why=tag.why))
            else:
                await self._reservations.remove(node.name)
                await self._resume(node)
        elif not tag.out:
            await self._reservations.remove(node.name)
        self._memory.node_order_done(action.id)

    async def mended(self, node: str) -> None:
        """It was rebooted, and Slurm has taken the drain off."""
        await self._reservations.remove(node)

    async def again(self, nodes: dict[str, SlurmNode]) -> None:
        """What a slurmctld that started anew has forgotten of counts; it never forgets a drain."""
        for node in nodes.values():
            if not fewer(node):
                continue
            try:
                await self._counts.again(node)
            except PortError as problem:
                log.warning("a count that Slurm has forgotten is not put back", problem=str(problem))

    async def _drain(self, node: SlurmNode, tag: DrainTag) -> None:
        await self._run("scontrol", "update", f"NodeName={node.name}", "State=DRAIN", f"Reason={tag.text()}")
        now = await self._look.node(node.name)
        if not now.drained or ours(now).out != tag.out:
            raise OutcomeUnknown(f"node {node.name}: drained, and it reads {'+'.join(sorted(now.states))} {now.reason}")

    async def _resume(self, node: SlurmNode) -> None:
        """`UNDRAIN` leaves a node that is down, down. A reboot that waits would still come."""
        if "REBOOT_REQUESTED" in node.states:
            await self._run("scontrol", "cancel_reboot", node.name)
        await self._run("scontrol", "update", f"NodeName={node.name}", "State=UNDRAIN")
        now = await self._look.node(node.name)
        if now.drained or ours(now).out:
            raise OutcomeUnknown(f"node {node.name}: given back, and it reads {'+'.join(sorted(now.states))}")


def fewer(node: SlurmNode) -> dict[str, Mode]:
    """What of a node is out by our hand while the node works on."""
    return node_mark(node.comment).fewer
