"""PCI Express: AER reports (root port or endpoint), downstream port containment, slots, links below their width."""

from __future__ import annotations

import re

from medevac.decode.reading import PCI_PATTERN, Details, Reading, pci_address, put

# `driver 0000:3b:00.0 name: rest`: how the kernel's dev_err and netdev_err begin a line.
DEVICE = re.compile(rf"([\w-]{{1,32}}) ({PCI_PATTERN})(?: ([\w.@-]{{1,32}}))?(?: \([^)]{{0,40}}\))?:\s?")

_RECEIVED = re.compile(
    r"(?P<multiple>Multiple )?(?P<severity>Uncorrect(?:ed|able) \((?:Non-)?Fatal\)|Correct(?:ed|able))"
    r" error(?: message)?(?: received|$)"
    rf"(?:: | from )?(?P<source_pci>{PCI_PATTERN})?(?:id=(?P<requester_id>[0-9a-f]{{4}}))?",
    re.IGNORECASE,
)
_BUS_ERROR = re.compile(
    r"PCIe Bus Error: severity=(?P<severity>[\w-]{1,16}(?: \([\w-]{1,16}\))?), type=(?P<layer>[\w ]{1,32}),? ?"
    r"(?:id=(?P<requester_id>[0-9a-f]{4}))?(?:\((?P<agent>[\w ]{1,32})\))?"
)
_INNER = re.compile(r"\(([^)]*)\)")
_CAPABILITY = re.compile(
    r"\s*device \[(?P<pci_id>[0-9a-f:]{9})\] error status/mask=(?P<status>[0-9a-f]{8})/(?P<mask>[0-9a-f]{8})"
)
_TLP = re.compile(r"\s*TLP Header: (?P<tlp>[0-9a-f ]{8,64})")
_BIT = re.compile(r"\s*\[ ?(?P<bit>\d{1,2})\] (?P<name>[A-Za-z]\w{1,20})")
_REPORTED = re.compile(r"\s*(?:Error of this Agent|aer_(?:status|layer|agent|uncor))")
_RECOVERY = re.compile(
    r"([Dd]evice recovery (?:failed|successful)|can't recover|subordinate device reset failed"
    r"|Root Port link has been reset)"
)
_CONTAINED = re.compile(
    r"containment event, status:(?P<status>0x[0-9a-f]{1,8})(?:[ ,:]{1,3}source:(?P<requester_id>0x[0-9a-f]{1,8}))?"
)
_SLOT = re.compile(
    r"(?:pciehp: )?Slot\((?P<slot>[\w-]{1,16})\): "
    r"(?P<state>Link Down|Card not present|Link Up|Card present|Surprise Removal)"
)
_LINK = r"([\d.]{1,6} GT/s) (?:PCIe )?(x\d{1,2})"
_BANDWIDTH = re.compile(
    rf"[\d.]{{1,9}} Gb/s available PCIe bandwidth, limited by {_LINK} link at ({PCI_PATTERN})"
    rf"(?: \(capable of [\d.]{{1,9}} Gb/s with {_LINK})?"
)
_PORT = "pcieport"


def parse(text: str) -> Reading | None:
    """Read a device's line about its link or its errors."""
    device = DEVICE.match(text)
    if device is None:  # a mail or a pager broke the line behind the device
        return _aer(None, text[5:], {}) if text.startswith("AER: ") else None
    driver, address, _ = device.groups()
    pci = pci_address(address)
    rest = text[device.end() :]
    details: Details = {} if driver == _PORT else {"driver": driver}
    if rest.startswith("AER: "):
        return _aer(pci, rest[5:], details)
    if "PCIe Bus Error:" in rest:
        return _aer(pci, rest, details)
    if rest.startswith("DPC: "):
        return _dpc(pci, rest, details)
    if "available PCIe bandwidth, limited" in rest:
        return _bandwidth(pci, rest)
    if "Slot(" in rest and put(details, _SLOT, rest):
        return Reading("pcie_slot", pci=pci, details=details)
    return _continuation(pci, rest, details)


def _aer(pci: str | None, rest: str, details: Details) -> Reading | None:
    if put(details, _RECEIVED, rest) or put(details, _BUS_ERROR, rest):
        inner = _INNER.search(str(details["severity"]))
        if inner:
            details["severity"] = inner[1]
        if "multiple" in details:
            details["multiple"] = "yes"
        if "source_pci" in details:
            details["source_pci"] = pci_address(str(details["source_pci"]))
        return Reading("aer", pci=pci, details=details)
    if match := _RECOVERY.search(rest):
        details["event"] = match[1].removeprefix("device ").removeprefix("Device ")
        return Reading("aer", pci=pci, details=details)
    return _continuation(pci, rest, details)


def _continuation(pci: str | None, rest: str, details: Details) -> Reading | None:
    """The registers and bit names that follow an AER report of the same device."""
    found = put(details, _CAPABILITY, rest) or put(details, _TLP, rest)
    if not found and put(details, _BIT, rest):
        found = True
        details["bit"] = int(str(details["bit"]))
        if "(First)" in rest:
            details["first"] = "yes"
    if "tlp" in details:
        details["tlp"] = str(details["tlp"]).strip()
    return Reading("aer_continuation", pci=pci, details=details) if found or _REPORTED.match(rest) else None


def _dpc(pci: str, rest: str, details: Details) -> Reading | None:
    if put(details, _CONTAINED, rest):
        details["event"] = "containment"
    elif "error detected" in rest and "unmasked" in rest:
        details["event"] = "uncorrectable error detected"
    else:
        return None
    return Reading("dpc", pci=pci, details=details)


def _bandwidth(pci: str, rest: str) -> Reading | None:
    match = _BANDWIDTH.match(rest)
    if match is None:
        return None
    speed, width, where, full_speed, full_width = match.groups()
    details: Details = {"limit": f"{speed} {width}", "at": pci_address(where)}
    if full_speed:
        details["capable"] = f"{full_speed} {full_width}"
    return Reading("pcie_bw", pci=pci, details=details)
