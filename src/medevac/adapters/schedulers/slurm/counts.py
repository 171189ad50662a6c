"""One accelerator less on a node whose accelerators Slurm only counts.

A GRES with device files (all that are named `gpu`) cannot be counted down: Slurm takes no count for it but 0
(scontrol(1), "Gres"; tried on 22.05). Such a node is drained.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from medevac.adapters.schedulers.slurm.commands import Commands
from medevac.adapters.schedulers.slurm.look import Look
from medevac.adapters.schedulers.slurm.nodemark import NodeMark, node_mark, with_node_mark
from medevac.adapters.schedulers.slurm.values import SlurmNode
from medevac.core.actions import GiveBack, Isolate, Repair
from medevac.ports.errors import OutcomeUnknown, Refused, Unsupported


class Counts:
    """`name`: the GRES whose count stands for a node's GPUs; empty: there is none."""

    def __init__(self, commands: Commands, look: Look, name: str) -> None:
        self._run = commands.run
        self._look = look
        self._name = name

    async def less(self, node: SlurmNode, action: Isolate) -> None:
        """Raises `Unsupported` where the node must be drained instead."""
        if not self._name:
            raise Unsupported(f"node {node.name}: no counted_gres is set")
        mark = node_mark(await self._look.comment(node.name))
        gres = mark.gres or node.gres
        fewer = {**mark.fewer, action.gpu: action.mode}
        wanted = counted(gres, self._name, len(fewer))
        if wanted is None:
            raise Unsupported(f"node {node.name}: Gres={node.gres or '?'} is no count that can be reduced")
        await self._write(node.name, replace(mark, fewer=fewer, gres=gres))
        try:
            await self._set(node.name, wanted)
        except Refused as problem:
            await self._write(node.name, mark)
            raise Unsupported(str(problem)) from problem

    async def more(self, node: SlurmNode, action: GiveBack | Repair) -> None:
        """Count it again; a count that a person changed meanwhile stays. Raises `Refused` where the site's setting has
        changed since.
        """
        mark = node_mark(await self._look.comment(node.name))
        if action.gpu not in mark.fewer:
            return
        fewer = {name: mode for name, mode in mark.fewer.items() if name != action.gpu}
        now, wanted = (counted(mark.gres, self._name, len(each)) for each in (mark.fewer, fewer))
        if wanted is None:
            raise Refused(f"node {node.name}: counted_gres = {self._name!r} is not in {mark.gres}; set it as it was")
        if node.gres == now:
            await self._set(node.name, wanted)
        await self._write(node.name, replace(mark, fewer=fewer, gres=mark.gres if fewer else ""))

    async def again(self, node: SlurmNode) -> None:
        """Where a slurmctld that started anew has forgotten it."""
        mark = node_mark(node.comment)
        if mark.fewer and node.gres == mark.gres and (wanted := counted(mark.gres, self._name, len(mark.fewer))):
            await self._set(node.name, wanted)

    async def _set(self, node: str, gres: str) -> None:
        await self._run("scontrol", "update", f"NodeName={node}", f"Gres={gres}")
        now = await self._look.node(node)
        if now.gres != gres:
            raise OutcomeUnknown(f"node {node}: Gres={gres} was set, and it reads {now.gres or 'nothing'}")

    async def _write(self, node: str, mark: NodeMark) -> None:
        await self._run(
            "scontrol", "update", f"NodeName={node}", f"Comment={with_node_mark(await self._look.comment(node), mark)}"
        )


def counted(gres: str, name: str, fewer: int) -> str | None:
    """`Gres=` with so many of `name` fewer: `accel:4` and 1 give `accel:3`. None for what is no such count, or would
    leave none.
    """
    words = gres.split(",") if gres else []
    mine = [word for word in words if word.split(":")[0] == name]
    found = re.fullmatch(r"((?:[^:(),]+:)+)(\d+)", mine[0]) if len(mine) == 1 else None
    if found is None or int(found[2]) - fewer < 1:
        return None
    return ",".join(f"{found[1]}{int(found[2]) - fewer}" if word == mine[0] else word for word in words)
