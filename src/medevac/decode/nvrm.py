"""Lines of the NVIDIA driver that are no Xid: a GPU off the bus, who a GPU is, a failed start, and all the rest."""

from __future__ import annotations

import re

from medevac.decode.reading import PCI_PATTERN, Details, Reading, pci_address, put

OFF_THE_BUS = 79  # what the driver would have printed as an Xid

NVRM = re.compile(r"NVRM\s{0,4}:\s?", re.IGNORECASE)
IDENTITY = re.compile(rf"GPU at PCI:({PCI_PATTERN}): (?P<gpu_uuid>GPU-[0-9a-f-]{{8,40}})", re.IGNORECASE)
_DRIVER = re.compile(r"loading NVIDIA UNIX .{0,60}? {1,4}(?P<driver>\d{2,4}\.\d{1,4}(?:\.\d{1,4})?)\b")
_OFF = re.compile(rf"GPU (?:at )?(?:PCI:)?({PCI_PATTERN}):? (?:GPU )?has fallen off the bus", re.IGNORECASE)
_LONG_START = re.compile(rf"The NVIDIA(?: \w{{1,12}})? GPU (?P<pci>{PCI_PATTERN})")
_PCI_ID = re.compile(r"PCI ID: (?P<pci_id>[0-9a-fA-F:]{9})")
_SERIAL = re.compile(r"(?:GPU|Board) serial number", re.IGNORECASE)
_GPU = re.compile(rf"GPU (?:at )?(?:PCI:)?({PCI_PATTERN})\b")
_RM_INIT = re.compile(r"RmInitAdapter failed! \((?P<error>[0-9a-fx:]{3,40})\)")
_MINOR = re.compile(r"device minor number (\d{1,4})")
_PEER = re.compile(r"peer(\d{1,3})'s")
_RPC = re.compile(r"GPU(\d{1,3}) (?:GSP )?RPC ")
_RPC_ROW = re.compile(r"\s{2,}(?:-?\d{1,4} {1,8}\d{1,5} {1,4}\w|entry {1,4}function)")
_CRASH_DUMP = re.compile(r"\s{2,}\S|\w{1,60}: \*{4}|(?:RISC-V|Local I/O|Stack Trace)")

# What the other lines of the driver are about, by words that only they have.
_EVENTS = (
    ("RmInitAdapter failed", "rm_init_failed"),
    ("rm_init_adapter failed", "rm_init_failed"),
    ("Cannot initialize GSP firmware", "gsp_init_failed"),
    ("reported an error while attempting to boot GSP", "gsp_boot_failed"),
    ("GSP-RM boot attempts exceeded", "gsp_boot_failed"),
    ("GPU is probably locked", "watchdog_locked"),
    ("GPU marked for reset", "marked_for_reset"),
    ("Rate limiting GSP RPC", "rpc_rate_limited"),
    ("rpcRecvPoll timedout", "rpc_timeout"),
    ("GPU_IN_FULLCHIP_RESET", "fullchip_reset"),
    ("NV_ERR_RESET_REQUIRED", "reset_required"),
    ("RC all user channels", "all_channels_killed"),
    ("No NVIDIA devices probed", "probe_failed"),
    ("probe routine was not called", "probe_failed"),
    ("request_irq() failed", "probe_failed"),
    ("GPU crash dump has been created", "crash_dump"),
)
_QUIET = ("NVLink link training completed",)


def parse(text: str) -> Reading | None:
    """Read a message that begins with `NVRM:` and is no Xid."""
    match = NVRM.match(text)
    if match is None:
        return None
    body = text[match.end() :]
    if body.startswith(_QUIET) or body[:3].lower() == "xid":
        return None
    if body.startswith("The NVIDIA GPU ") and not _LONG_START.match(body):  # nobody can say which
        return None
    if "fallen off the bus" in body:
        return _fell_off(body)
    return _identity(body) or _continuation(body) or _other(body)


def _identity(body: str) -> Reading | None:
    if match := IDENTITY.search(body):
        return Reading("nvrm_info", pci=pci_address(match[1]), details={"gpu_uuid": match["gpu_uuid"]})
    if match := _DRIVER.match(body):
        return Reading("nvrm_info", details={"driver": match["driver"]})
    if _SERIAL.search(body):
        address = _GPU.search(body)
        return Reading("nvrm_info", pci=pci_address(address[1]) if address else None)
    return None


def _fell_off(body: str) -> Reading | None:
    if match := _OFF.search(body):
        return Reading("fell_off", OFF_THE_BUS, pci_address(match[1]))
    match = _LONG_START.match(body)
    if match is None:
        return None
    details: Details = {}
    put(details, _PCI_ID, body)
    return Reading("fell_off", OFF_THE_BUS, pci_address(match["pci"]), details=details)


def begins_long(text: str) -> bool:
    """Whether a message is the first of the three lines that say "The NVIDIA GPU ... has fallen off the bus"."""
    match = NVRM.match(text)
    return match is not None and _LONG_START.match(text, match.end()) is not None and "fallen" not in text


def _continuation(body: str) -> Reading | None:
    """The RPC history and crash report that follow an Xid 119 or 120."""
    if match := _RPC.match(body):
        return Reading("nvrm_continuation", details={"of": 119, "gpu_index": int(match[1])})
    if _RPC_ROW.match(body):
        return Reading("nvrm_continuation", details={"of": 119})
    if _CRASH_DUMP.match(body):
        return Reading("nvrm_continuation", details={"of": 119 if "Xid119" in body else 120})
    return None


def _other(body: str) -> Reading | None:
    details: Details = {}
    address = _GPU.search(body)
    pci = pci_address(address[1]) if address else None
    if body.startswith("knvlink") and "ailed" in body:
        peer = _PEER.search(body)
        return Reading("nvlink", pci=pci, details={"peer": int(peer[1])} if peer else {})
    for words, event in _EVENTS:
        if words in body:
            details["event"] = event
            break
    put(details, _RM_INIT, body)
    if minor := _MINOR.search(body):
        details["minor"] = int(minor[1])
    return Reading("nvrm_other", pci=pci, details=details)
