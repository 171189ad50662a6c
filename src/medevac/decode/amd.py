"""AMD GPUs: RAS counts, poison, resets (shapes: the amdgpu driver and AMD's node-scraper).

Traps: `uncorrectable` holds `correctable`; `no uncorrectable hardware errors detected` is the all-clear and holds the
text of the fault.
"""

from __future__ import annotations

import re

from medevac.decode.pcie import DEVICE
from medevac.decode.reading import Details, Reading, pci_address, put

_COUNT = re.compile(
    r"(?<!no )(?:socket: (?P<socket>\d{1,3}),? die: (?P<die>\d{1,3}),? )?"
    r"(?P<count>\d{1,10}) (?P<new>new )?"
    r"(?P<severity>uncorrectable|correctable|deferred) hardware errors? detected in "
    r"(?P<total>total in )?(?P<block>\w{1,32}) block"
)
_POISON = re.compile(
    r"[Pp]oison (?:is consumed by client (?P<client>\d{1,5})"
    r"|consumption.{0,60}?(?:client id (?P<client_id>\d{1,5})|unmap queue))"
)
_PAGE = re.compile(
    r"Error Address\(PA\):(?P<address>0x[0-9a-f]{1,16}) Row:(?P<row>0x[0-9a-f]{1,8}) Col:(?P<col>0x[0-9a-f]{1,8}) "
    r"Bank:(?P<bank>0x[0-9a-f]{1,8}) Channel:(?P<channel>0x[0-9a-f]{1,8})",
    re.IGNORECASE,
)
_RESET = re.compile(
    r"(GPU reset (?:begin|end|succeeded)|GPU mode[12] reset"
    r"|GPU reset\(\d{1,6}\) (?:failed|succeeded)|Mode[12] reset failed)"
)
_TIMEOUT = re.compile(r"ring (?P<ring>[\w.]{1,32}) timeout")
_EVENT = re.compile(r"(?P<severity>(?:un)?correctable) hardware error ?\((?P<error>\w{1,40})\) detected")
_ERROR = re.compile(r"amdgpu\]\] \*ERROR\* (?P<text>.{1,120})")
_ACA = "Accelerator Check Architecture"


def parse(text: str) -> Reading | None:
    """Read a line of the amdgpu driver."""
    device = DEVICE.match(text)
    pci = pci_address(device[2]) if device else None
    details: Details = {}
    if match := _COUNT.search(text):
        return _ras(pci, match)
    if match := _POISON.search(text):
        client = match["client"] or match["client_id"]
        return Reading(
            "amdgpu", pci=pci, details={"event": "poison consumed", **({"client": int(client)} if client else {})}
        )
    if put(details, _EVENT, text):
        return Reading("amdgpu", pci=pci, details={"event": "ras", **details})
    if put(details, _PAGE, text):
        return Reading("amdgpu", pci=pci, details={"event": "bad page", **details})
    if match := _RESET.search(text):
        return Reading("amdgpu", pci=pci, details={"event": match[1].lower()})
    if put(details, _TIMEOUT, text):
        return Reading("amdgpu", pci=pci, details={"event": "ring timeout", **details})
    if "GPU is throttled" in text:
        return Reading("thermal", pci=pci, details={"scope": "gpu"})
    if put(details, _ERROR, text):
        return Reading("amdgpu", pci=pci, details={"event": "driver error", **details})
    return Reading("amdgpu", pci=pci, details={"event": "aca dump"}) if _ACA in text else None


def _ras(pci: str | None, match: re.Match[str]) -> Reading | None:
    if int(match["count"]) == 0:
        return None
    details: Details = {
        "event": "ras",
        "severity": match["severity"],
        "block": match["block"],
        "count": int(match["count"]),
        "scope": "total" if match["total"] else "new",
    }
    for name in ("socket", "die"):
        if match[name]:
            details[name] = int(match[name])
    return Reading("amdgpu", pci=pci, details=details)
