"""Nodes out of service and back: Slurm drains whole nodes, so one GPU that is out drains its node."""

from __future__ import annotations

from medevac.adapters.schedulers.slurm.commands import Commands
from medevac.adapters.schedulers.slurm.look import Look
from medevac.adapters.schedulers.slurm.marks import DrainTag, drain_tag
from medevac.adapters.schedulers.slurm.memory import Memory
from medevac.adapters.schedulers.slurm.values import SlurmNode
from medevac.core.actions import GiveBack, Isolate
from medevac.ports.errors import OutcomeUnknown, Refused


class Drains:
    """The tag in a node's Reason says what of it is out by our hand; a drain without it is a person's and stays."""

    def __init__(self, commands: Commands, look: Look, memory: Memory) -> None:
        self._run = commands.run
        self._look = look
        self._memory = memory

    async def out(self) -> dict[str, str]:
        """GPU UUID or node name -> mode."""
        return {name: mode for node in (await self._look.nodes()).values() for name, mode in _ours(node).out.items()}

    async def add(self, action: Isolate) -> None:
        """Take out; a soft order does not soften a hard one."""
        if action.id in self._memory.nodes().done:
            return
        node = await self._node(action)
        tag, target = _ours(node), action.gpu or action.node
        if node.drained and node.reason and not tag.out:
            self._memory.node_order_done(action.id)  # a person's drain: it is out, and not ours to give back
            return
        if not (target in tag.out and (action.mode == "soft" or tag.out[target] == "hard")):
            out = {**tag.out, target: action.mode}
            await self._drain(node, DrainTag(out=out, incident=action.cause, why=action.reason or tag.why))
        self._memory.node_order_done(action.id)

    async def remove(self, action: GiveBack) -> None:
        """Take our own order back; the node returns when nothing of it is out by our hand."""
        if action.id in self._memory.nodes().done:
            return
        node = await self._node(action)
        tag, target = _ours(node), action.gpu or action.node
        if target in tag.out:
            out = {name: mode for name, mode in tag.out.items() if name != target}
            if out:
                await self._drain(node, DrainTag(out=out, incident=tag.incident, why=tag.why))
            else:
                await self._resume(node)
        self._memory.node_order_done(action.id)

    async def _node(self, action: Isolate | GiveBack) -> SlurmNode:
        node = await self._look.node(action.node)
        known = (await self._look.known_nodes()).get(action.node)
        if action.gpu and (known is None or action.gpu not in {gpu.uuid for gpu in known.gpus}):
            raise Refused(f"GPU {action.gpu}: node {action.node} has none of that UUID")
        return node

    async def _drain(self, node: SlurmNode, tag: DrainTag) -> None:
        await self._run("scontrol", "update", f"NodeName={node.name}", "State=DRAIN", f"Reason={tag.text()}")
        now = await self._look.node(node.name)
        if not now.drained or _ours(now).out != tag.out:
            raise OutcomeUnknown(f"node {node.name}: drained, and it reads {'+'.join(sorted(now.states))} {now.reason}")

    async def _resume(self, node: SlurmNode) -> None:
        """`UNDRAIN` leaves a node that is down, down."""
        await self._run("scontrol", "update", f"NodeName={node.name}", "State=UNDRAIN")
        now = await self._look.node(node.name)
        if now.drained or _ours(now).out:
            raise OutcomeUnknown(f"node {node.name}: given back, and it reads {'+'.join(sorted(now.states))}")


def _ours(node: SlurmNode) -> DrainTag:
    """What of a drained node is out by our hand: a tag that outlived its drain says nothing."""
    tag = drain_tag(node.reason) if node.drained else None
    return tag or DrainTag(out={})
