"""Network: mlx5 adapters, InfiniBand and Ethernet link states, EFA; and NFS servers that do not answer."""

from __future__ import annotations

import re

from medevac.decode.pcie import DEVICE
from medevac.decode.reading import Details, Reading, number, pci_address, put, put_numbers

_IB_LINK = re.compile(r"([\w.-]{1,32}): Port: (\d{1,3}) Link (\w{2,12})")
_IB_PORT = re.compile(r"([\w.-]{1,32}):? [Pp]ort:? (\d{1,3})[: ].{0,40}?\b(error|ERROR|PORT_ERR)\b")
_NIC = re.compile(r"(?:\w{2,12}: [\w.@-]{1,32} )?(?:NIC )?Link is (Up|Down)\b", re.IGNORECASE)
_QUEUE = re.compile(r"NETDEV WATCHDOG: ([\w.@-]{1,32}) \(([\w-]{1,32})\): transmit queue (\d{1,4}) timed out")
_CARRIER = re.compile(r"([\w.@-]{1,32}): (Lost|Gained) carrier", re.IGNORECASE)
_BOND = re.compile(r"link status (?:definitely )?(down|up) for (?:\w{1,12} )?interface ([\w.@-]{1,32})")
_PID = re.compile(r"\(pid (\d{1,10})\)")
_SYNDROME = re.compile(r"syndrome \((?P<syndrome>0x[0-9a-f]{1,16})\)")
_HEALTH = re.compile(
    r"Health issue observed, (?P<cause>[^,]{1,60}), severity\((?P<level>\d{1,2})\)"
    r"|synd (?P<syndrome>0x[0-9a-f]{1,8}): (?P<issue>.{1,60})"
)
_STATUS = re.compile(r"status (?P<status>[\w ]{1,40})\(0x[0-9a-f]{1,4}\)")
_COMMAND = re.compile(r"(?P<command>[A-Z][A-Z0-9_]{3,40})\(0x[0-9a-f]{1,5}\)")
_MODULE = re.compile(r"module (?P<module>\d{1,3})")
_WATTS = re.compile(r"\((?P<watts>\d{1,5})W\)")
_CABLE = re.compile(r"module \d{1,3}, Cable (?:error|unplugged)(?:, (?P<cause>[\w /,()-]{1,80}))?")
_NFS = re.compile(r"(?:nfs|NFS): server (?P<server>\S{1,255}) (?P<state>not responding|OK|timed out)")

# An adapter's trouble, by words that only it has; the order matters where one line has two of them.
_MLX5 = (
    ("High temperature on sensors", "high temperature"),
    ("High Temperature", "port_module_high_temperature"),
    ("insufficient power", "pci_power_insufficient"),
    ("health compromised", "firmware health miss"),
    ("timeout. Will cause a leak", "command timeout"),
    ("No done completion", "command timeout"),
    ("recovered after timeout", "command recovered"),
    ("atal sensor", "fatal sensors"),
    ("Fatal error", "fatal error"),
    ("handling bad device", "fatal error"),
    ("unrecoverable hardware error", "unrecoverable hardware error"),
    ("health recovery flow aborted", "health recovery failed"),
    ("health recovery failed", "health recovery failed"),
    ("health recovery succe", "health recovered"),
    ("TX timeout", "tx timeout"),
    ("rror CQE", "error cqe"),
    ("rror cqe", "error cqe"),
    ("dump error cqe", "error cqe"),
    ("PCI channel offline", "pci channel offline"),
    ("mlx5_pci_err_detected", "pci error detected"),
    ("Health issue observed", "health issue"),
    ("synd 0x", "health issue"),
    ("ower budget", "pci_power_insufficient"),
    ("hermal", "over temperature"),
)
_EFA = (
    ("Wait for completion (polling) timeout", "admin polling timeout"),
    ("Wait for completion (interrupt) timeout", "admin interrupt timeout"),
    ("Reset indication didn't turn o", "reset failed"),
    ("Keep alive watchdog timeout", "keep alive timeout"),
    ("keep alive", "keep alive timeout"),
    ("ailed to process command", "command failed"),
    ("didn't send any completion", "admin completion missing"),
    ("Admin queue is closed", "admin queue closed"),
    ("ailed to submit command", "command failed"),
    ("can't reset device", "reset failed"),
    ("Device isn't ready", "not ready"),
    ("unresponsive", "unresponsive"),
    ("device reset failed", "reset failed"),
)


def parse(text: str) -> Reading | None:
    """Read a network adapter's line of the kernel."""
    if text.startswith("NETDEV WATCHDOG: "):
        return _stuck_queue(text)
    if "mlx5" in text:
        return _link(text) or _mlx5(text)
    if text.startswith(("efa ", "infiniband ")):
        return _efa(text) or _link(text)
    return _link(text) if "Link " in text or "link status " in text or ": Port: " in text else None


def _stuck_queue(text: str) -> Reading | None:
    """The kernel's own look at an adapter that sends no more: net/sched/sch_generic.c."""
    match = _QUEUE.match(text)
    if match is None:
        return None
    device, driver, queue = match.groups()
    details: Details = {"event": "tx timeout", "device": device, "queue": int(queue)}
    if driver == "mlx5_core":
        return Reading("mlx5", details=details)
    return Reading("eth_link", details={**details, "driver": driver, "state": "tx timeout"})


def _link(text: str) -> Reading | None:
    device = DEVICE.match(text)
    pci = pci_address(device[2]) if device else None
    if ": Port: " in text and (match := _IB_LINK.search(text)):
        details: Details = {"device": match[1], "port": int(match[2]), "state": match[3]}
        return Reading("ib_link", pci=pci, details=details)
    if text.startswith("infiniband ") and (match := _IB_PORT.search(text)):
        return Reading("ib_link", pci=pci, details={"device": match[1], "port": int(match[2]), "state": "error"})
    if device:
        return _ethernet(text[device.end() :], device[3], pci)
    if "link status" in text and (match := _BOND.search(text)):
        return Reading("eth_link", details={"device": match[2], "state": match[1].lower()})
    name, _, rest = text.partition(": ")
    return _ethernet(rest, name, None) if len(name) < 33 and " " not in name else None


def _ethernet(rest: str, name: str | None, pci: str | None) -> Reading | None:
    if not name:
        head, _, tail = rest.partition(": ")
        if " " in head or not tail:
            return None
        name, rest = head, tail
    if rest.startswith(("Link up", "Link down")):
        state = rest[5:9].strip().lower()
    elif match := _NIC.match(rest):
        state = match[1].lower()
    else:
        return None
    return Reading("eth_link", pci=pci, details={"device": name, "state": state})


def _mlx5(text: str) -> Reading | None:
    event = _mlx5_event(text)
    if event is None:
        return None
    details: Details = {"event": event}
    device = DEVICE.match(text)
    if device and device[3]:
        details["device"] = device[3]
    put(details, _HEALTH if event == "health issue" else _SYNDROME, text)
    if event in {"command_failed", "command timeout", "access_reg_failed"}:
        put(details, _COMMAND, text)
        put(details, _STATUS, text)
    put_numbers(details, _MODULE, text)
    put_numbers(details, _WATTS, text)
    if event.startswith("cable"):
        put(details, _CABLE, text)
    pid = _PID.search(text)
    who = (number(pid[1]) or None) if pid else None  # pid 0 is the kernel's own idle task
    return Reading("mlx5", pci=pci_address(device[2]) if device else None, pid=who, details=details)


def _mlx5_event(text: str) -> str | None:
    for words, event in _MLX5:
        if words in text:
            return event
    if "module event[error]" in text:
        return "cable error"
    if "module event: module" in text:
        return "cable unplugged" if "unplugged" in text else "cable plugged"
    if "op_mod(" in text and "failed" in text:
        return "access_reg_failed" if "ACCESS_REG" in text else "command_failed"
    return None


def _efa(text: str) -> Reading | None:
    event = next((event for words, event in _EFA if words in text), None)
    if event is None:
        return None
    device = DEVICE.match(text)
    if device:
        return Reading("efa", pci=pci_address(device[2]), details={"event": event})
    name = text.partition(" ")[2].partition(":")[0]
    return Reading("efa", details={"event": event, "device": name[:32]})


def parse_carrier(text: str) -> Reading | None:
    """Read `eth0: Lost carrier` of the network manager, a program that may tell of links."""
    match = _CARRIER.search(text)
    if match is None:
        return None
    return Reading("eth_link", details={"device": match[1], "state": f"{match[2].lower()} carrier"})


def parse_nfs(text: str) -> Reading | None:
    """Read `nfs: server X not responding, still trying` and `... OK`."""
    details: Details = {}
    if ": server " not in text or not put(details, _NFS, text):
        return None
    if details["state"] == "OK":
        return Reading("nfs_clear", details={"server": details["server"]})
    return Reading("nfs", details=details)
