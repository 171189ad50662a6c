"""Short words for facts, roots and blame: the same on the terminal and in a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from medevac.decode.incidents_story import Blamed, Fact, Incident, Root

KINDS = {
    "xid": "Xid",
    "sxid": "SXid",
    "fell_off": "off the bus",
    "aer": "PCIe AER",
    "dpc": "PCIe containment",
    "pcie_slot": "PCIe slot",
    "pcie_bw": "PCIe width or speed",
    "ib_link": "InfiniBand port",
    "eth_link": "network link",
    "oom": "out-of-memory kill",
    "mce": "machine check",
    "nvrm_other": "driver message",
    "fabric_manager": "Fabric Manager",
    "unread": "not read",
}


def fact_words(fact: Fact | Root) -> str:
    """`Xid 79`, `PCIe AER`, `machine check`."""
    return fact_words_of(fact.kind, fact.code)


def fact_words_of(kind: str, code: int | None) -> str:
    """The same of a kind and a code."""
    name = KINDS.get(kind, kind.replace("_", " "))
    return f"{name} {code}" if code is not None and kind in {"xid", "sxid"} else name


def root_words(incident: Incident) -> str:
    """The root with its part, or what the victims are where no root is left."""
    first = incident.root or incident.facts[0]
    words = f"{fact_words(first)} on {first.pci}" if first.pci else fact_words(first)
    return words if incident.root else f"{words}, its cause not in the log"


def blame_words(blame: Blamed) -> str:
    """`GPU 0000:3b:00.0 on node1`, `the job`, `nobody`."""
    if blame.kind == "job":
        return "the job"
    if blame.kind in {"none", "unknown"}:
        return {"none": "nobody", "unknown": "not known"}[blame.kind]
    name = {"gpu": "GPU", "link": "link of", "node": "node"}[blame.kind]
    where = " on ".join(filter(None, (blame.pci, blame.node)))
    return f"{name} {where}" if where else f"this {name}"
