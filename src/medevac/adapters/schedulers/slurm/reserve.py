"""A reservation for the repair of a node: it shows in Slurm as maintenance, and is accounted as such."""

from __future__ import annotations

import getpass
import re

import structlog

from medevac.adapters.schedulers.slurm import parse
from medevac.adapters.schedulers.slurm.commands import Commands
from medevac.ports.errors import OutcomeUnknown, Refused

PREFIX = "medevac_"
FLAGS = "MAINT,IGNORE_JOBS"
log = structlog.get_logger(__name__)


class Reservations:
    """The drain stands in any case: a reservation that Slurm refuses is said in the log, and nothing else."""

    def __init__(self, commands: Commands, *, wanted: bool) -> None:
        self._run = commands.run
        self._wanted = wanted

    async def add(self, node: str, incident: str) -> None:
        if not self._wanted or await self._ours(node):
            return
        name = f"{PREFIX}{re.sub(r'[^A-Za-z0-9.-]+', '-', incident or 'none')}_{node}"
        words = (f"Nodes={node}", "StartTime=now", "Duration=UNLIMITED", f"Users={getpass.getuser()}", f"Flags={FLAGS}")
        try:
            await self._run("scontrol", "create", "reservation", f"ReservationName={name}", *words)
        except Refused as problem:
            log.warning("no reservation for a repair; the node is drained all the same", problem=str(problem))
            return
        if name not in await self._ours(node):
            raise OutcomeUnknown(f"reservation {name}: created, and Slurm does not show it")

    async def remove(self, node: str) -> None:
        """Those of ours, whatever the setting is now."""
        for name in await self._ours(node):
            await self._run("scontrol", "delete", f"ReservationName={name}")
        if left := await self._ours(node):
            raise OutcomeUnknown(f"reservation {left[0]}: deleted, and Slurm still shows it")

    async def _ours(self, node: str) -> list[str]:
        """Named by us for this node, and for no other."""
        found = parse.reservations(await self._run("scontrol", "-o", "show", "reservation"))
        return [name for name, nodes in found.items() if name.startswith(PREFIX) and nodes == (node,)]
