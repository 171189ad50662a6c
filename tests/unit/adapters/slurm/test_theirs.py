"""What others took out, and what was not read, stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from medevac.adapters.schedulers.slurm.drains import Drains
from medevac.adapters.schedulers.slurm.marks import theirs
from medevac.adapters.schedulers.slurm.memory import Memory
from medevac.adapters.schedulers.slurm.nodemark import NodeMark, with_node_mark
from medevac.adapters.schedulers.slurm.restrict import Restrictions
from medevac.adapters.schedulers.slurm.settings import SlurmSettings
from medevac.adapters.schedulers.slurm.values import SlurmNode
from medevac.core.actions import GiveBack, Isolate
from medevac.ports.errors import OutcomeUnknown, Unsupported

OUT = Isolate(id="out", node="n1", mode="hard", cause="I7", reason="Xid 79")
OURS = "medevac[hard=n1] I7: Xid 79"


class Slurm:
    """One node that stays as it is, whatever is ordered."""

    def __init__(self, node: SlurmNode) -> None:
        self.it = node
        self.orders: list[tuple[str, ...]] = []

    async def run(self, *words: str) -> str:
        self.orders.append(words)
        return ""

    async def part(self, _name: str, _gpu: str) -> SlurmNode:
        return self.it

    async def node(self, _name: str) -> SlurmNode:
        return self.it

    async def comment(self, _name: str) -> str:
        return self.it.comment


def node(state: str, reason: str = "", **more: Any) -> SlurmNode:
    return SlurmNode(name="n1", states=frozenset(state.split("+")), reason=reason, **more)


def made(kind: Any, slurm: Slurm, folder: Path) -> Any:
    return kind(slurm, slurm, Memory(folder), SlurmSettings())


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("IDLE+DRAIN", "fan tray"),
        ("IDLE+DRAIN", ""),
        ("DOWN", "maintenance of the fan tray"),
        ("DOWN+NOT_RESPONDING", "fan tray"),
        ("DOWN+DRAIN", "fan tray"),
        ("IDLE+FAIL", "fan tray"),
    ],
)
async def test_what_a_person_took_out_keeps_their_reason(state: str, reason: str, tmp_path: Path) -> None:
    slurm = Slurm(node(state, reason))
    await made(Drains, slurm, tmp_path).add(OUT)
    assert slurm.orders == []
    assert theirs(slurm.it)
    assert OUT.id in Memory(tmp_path).nodes().done, "it is out, and the order is carried out"


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("IDLE", ""),
        ("IDLE", "fan tray"),
        ("DOWN+NOT_RESPONDING", "Not responding"),
        ("DOWN", "Node unexpectedly rebooted"),
        ("DOWN", "maint"),
        ("DOWN", OURS),
        ("DOWN", ""),
    ],
)
async def test_what_slurm_takes_down_by_itself_is_drained(state: str, reason: str, tmp_path: Path) -> None:
    """It would come back by itself, with the fault."""
    slurm = Slurm(node(state, reason))
    with pytest.raises(OutcomeUnknown):
        await made(Drains, slurm, tmp_path).add(OUT)
    assert slurm.orders == [("scontrol", "update", "NodeName=n1", "State=DRAIN", f"Reason={OURS}")]
    assert not theirs(slurm.it)


def test_what_we_drained_is_ours_when_it_is_down_as_well() -> None:
    assert not theirs(node("DOWN+DRAIN", OURS))


async def test_a_restriction_is_not_undone_from_what_was_not_read(tmp_path: Path) -> None:
    """Its features would be emptied, and its weight set to what is only assumed."""
    marked = with_node_mark("", NodeMark(low={"n1": "I7"}, weight=10))
    slurm = Slurm(node("IDLE", comment=marked, complete=False))
    with pytest.raises(Unsupported, match="weight and features"):
        await made(Restrictions, slurm, tmp_path).remove(GiveBack(id="back", node="n1"))
    assert slurm.orders == []
