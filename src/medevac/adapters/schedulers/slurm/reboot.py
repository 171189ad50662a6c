"""A node rebooted through Slurm: its RebootProgram runs when the node is empty, and it comes back in service."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from medevac.adapters.schedulers.slurm.marks import ours
from medevac.adapters.schedulers.slurm.nodemark import node_mark
from medevac.adapters.schedulers.slurm.values import SlurmNode
from medevac.core.actions import Repair
from medevac.ports.errors import OutcomeUnknown, Refused, Unsupported

if TYPE_CHECKING:
    from medevac.adapters.schedulers.slurm.adapter import SlurmScheduler

PENDING = frozenset({"REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED"})
GATHER_S = 30.0
"""How long a GPU waits for the others of its node that are out: one reboot is for all of them, or for none."""


class Reboots:
    """The boot time that a node had when it was asked is kept: another one says that it was rebooted."""

    def __init__(self, slurm: SlurmScheduler) -> None:
        self._slurm = slurm
        self._run = slurm.commands.run
        self._wanted: dict[str, dict[str, tuple[str, float]]] = {}

    async def mend(self, action: Repair) -> None:
        """Raises `OutcomeUnknown` until the node is in service again."""
        if action.how != "reboot":
            raise Unsupported(f"{action.gpu or action.node}: nobody can do a {action.how} yet; it stays drained")
        node = await self._slurm.look.part(action.node, action.gpu)
        memory = self._slurm.memory.nodes()
        before = memory.reboots.get(action.id)
        if node.states & PENDING and before is not None:
            self._slurm.memory.node_order_done(f"{action.id}/asked")
        elif before is None or (node.boot == before and f"{action.id}/asked" not in memory.done):
            await self._ask(node, action)
        elif self._back(node, before):
            return
        raise OutcomeUnknown(f"node {node.name}: its reboot is under way: {'+'.join(sorted(node.states))}")

    async def _ask(self, node: SlurmNode, action: Repair) -> None:
        orders = self._gathered(node, action)
        for order in orders:
            self._slurm.memory.reboot_asked(order, node.boot)
        words = ("ASAP", "nextstate=RESUME", f"reason={ours(node).text()}")
        try:
            await self._run("scontrol", "reboot", *words, node.name)
        except Refused as problem:
            if "RebootProgram" in str(problem):
                raise Unsupported(f"node {node.name}: slurm.conf names no RebootProgram; it stays drained") from problem
            raise
        for order in orders:
            self._slurm.memory.node_order_done(f"{order}/asked")
        del self._wanted[node.name]

    def _gathered(self, node: SlurmNode, action: Repair) -> list[str]:
        """The orders that one reboot is for: one for each part of the node that is out by our hand."""
        tag, target = ours(node), action.gpu or action.node
        if not action.readmit:
            raise Unsupported(f"node {node.name}: Slurm would take it back after a reboot; it stays drained")
        if target in node_mark(node.comment).fewer:
            raise Unsupported(f"node {node.name}: it works on without {target}, and is not rebooted")
        if target not in tag.out:
            raise Refused(f"node {node.name}: {target} is not out by our hand any more; it is not rebooted")
        if "DOWN" in node.states:
            raise Refused(f"node {node.name}: it is down ({node.reason})")
        wanted = self._wanted.setdefault(node.name, {})
        _, since = wanted.setdefault(target, (action.id, time.monotonic()))
        others = sorted(set(tag.out) - set(wanted))
        if others and time.monotonic() - since < GATHER_S:
            raise OutcomeUnknown(f"node {node.name}: {others[0]} is out as well: is it to be rebooted?")
        if others:
            del wanted[target]
            raise Unsupported(
                f"node {node.name}: {others[0]} is out as well, and a reboot would bring it back; drained"
            )
        return [order for order, _ in wanted.values()]

    def _back(self, node: SlurmNode, before: str) -> bool:
        """In service again after a boot. Raises `Refused` where that will not come."""
        if "DOWN" in node.states:
            raise Refused(f"node {node.name}: it did not come back from its reboot ({node.reason})")
        if node.boot == before:
            raise Refused(f"node {node.name}: its reboot was called off")
        if node.drained:
            raise Refused(f"node {node.name}: it was rebooted, and is drained: {node.reason or 'by whom, nobody says'}")
        return bool(node.boot) and not node.states & {"NOT_RESPONDING", "UNKNOWN"}
