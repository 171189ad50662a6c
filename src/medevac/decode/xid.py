"""`NVRM: Xid (PCI:0000:3b:00): 79, pid=..., name=..., text`: the shape of all drivers, and what each family adds.

Shapes: NVIDIA's Xid documentation and the print in the open driver's kernel_rc.c; older drivers leave out `PCI:`, the
name, or the process. MIG instances stand inside the parentheses.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from medevac.decode.reading import PCI_PATTERN, Details, Reading, number, pci_address, put, put_numbers, yes

# Blanks are counted, not starred: the pattern stays linear on a line of blanks.
XID = re.compile(
    r"NVRM\s{0,4}:\s{0,4}Xid\s{0,4}\(\s{0,4}(?:PCI:)?\s{0,4}"
    rf"(?:({PCI_PATTERN})|\.\.\.|(?=[0-9a-f:.]{{0,12}}[x*#])[0-9a-fx*#:.]{{2,16}})"
    r"(?:\s{1,4}GPU-I:(\d{1,4}))?(?:\s{1,4}GPU-CI:(\d{1,4}))?\s{0,4}\)\s{0,4}:\s{0,4}(\d{1,6})(?![^\s,(.;:\"'\])}\\])"
    r"[,\s]{0,8}",
    re.IGNORECASE,
)
# The same for the lines of current drivers, all in one go.
_USUAL = re.compile(
    r"NVRM: Xid \((?:PCI:)?((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)"
    r"(?: GPU-I:(\d{1,4}))?(?: GPU-CI:(\d{1,4}))?\): (\d{1,6})"
    r"(?:, (?:pid=(?:'?<unknown>'?|(\d{1,10}))(?:, |,?$))?(?:name=(<unknown>|[^\s,<]{1,64})(?:, |$))?|$)"
)
_PID = re.compile(r"pid=(?:'?<[^>]{0,20}>'?|(\d{1,10}))(?:,[ ]?|(?=\s|$))", re.IGNORECASE)
# How a detail text begins. A process name may hold ", ": the name ends where one of these follows.
_DETAIL = re.compile(
    r"Ch |[Cc]hannel |MMU |Graphics |GPU |Row |(?:Unc|C)ontained|Timeout |An |NVLink|[A-Z0-9_/]+ (?:Fatal|Non-?fatal) "
    r"|Class |Double |DRAM|SRAM|Shader|Error |GSP |ESR |engmask|intr|Head |errorString|[0-9a-f]{8}(?: |$)|[A-Z][a-z]+ "
)
_COMM = 15  # bytes of a process name in the kernel
UNKNOWN = "unknown"
"""The process where the driver printed `name=<unknown>`; a line without a name has None."""


def parse(text: str) -> Reading | None:
    """Read a message that begins with the driver's own `NVRM: Xid`."""
    match = _USUAL.match(text)
    if match is None:
        match = XID.match(text)
        return read(match, text) if match else None
    address, instance, compute, digits, pid, process = match.groups()
    tail = text[match.end() :]
    if tail and not _DETAIL.match(tail) and (process or tail.startswith(("name=", "pid="))):
        found = XID.match(text)
        return read(found, text) if found else None
    details = _instance(instance, compute)
    code = int(digits)
    if tail:
        for family in _FAMILIES.get(code, _ALL):
            family(details, tail)
    if process and process[0] == "<":
        process = UNKNOWN
    return Reading("xid", code, pci_address(address), int(pid) if pid else None, process, details)


def _instance(instance: str | None, compute: str | None) -> Details:
    """The MIG instances of the parentheses."""
    details: Details = {}
    if instance:
        details["mig_gi"] = int(instance)
    if compute:
        details["mig_ci"] = int(compute)
    return details


def read(match: re.Match[str], text: str) -> Reading:
    """Read the Xid that `match` of XID found in `text`."""
    address, instance, compute, digits = match.groups()
    code = int(digits)
    tail = text[match.end() :]
    details = _instance(instance, compute)
    pid, process = None, None
    found = _PID.match(tail)
    if found:
        pid = number(found[1])
        tail = tail[found.end() :]
    if tail.startswith("name="):
        process, tail = _name(tail[5:])
    if tail:
        for family in _FAMILIES.get(code, _ALL):
            family(details, tail)
    return Reading("xid", code, pci_address(address) if address else None, pid, process, details)


def _name(text: str) -> tuple[str | None, str]:
    """The process name at the start of `text`, and what follows it."""
    cut = first = text.find(", ")
    while 0 <= cut <= _COMM:
        if _DETAIL.match(text, cut + 2):
            break
        cut = text.find(", ", cut + 2)
    else:
        cut = first
    name, tail = (text, "") if cut < 0 else (text[:cut], text[cut + 2 :])
    name = name.rstrip(", \r\n")
    return (UNKNOWN if name.startswith(("<", "'<")) else name or None), tail


_CHANNEL = re.compile(r"(?:Ch|[Cc]hannel(?: ID)?) ((?:0x)?[0-9a-fA-F]{1,16})\b")
_CHANNEL_ID = re.compile(r"\bChI[dD] ([0-9a-fA-F]{1,8}), Class (?P<class>[0-9a-fA-F]{1,8})")
_CAUSED = re.compile(r"caused by previous Xid (?P<caused_by>\d{1,6})")
_SM = re.compile(r"\(GPC (?P<gpc>\d{1,3}), TPC (?P<tpc>\d{1,3})(?:, SM (?P<sm>\d{1,3}))?\)")
_SM_ERROR = re.compile(r"SM \d{1,3}\): (?P<error>[^,]{1,80})")
_ESR = re.compile(r"ESR (?P<esr>0x[0-9a-f]{1,16}=[0-9a-fx= ]{1,200})", re.IGNORECASE)
_MMU = re.compile(
    r"ENGINE (?P<engine>[A-Z0-9_]{1,32}(?: GPC\d{1,2})?) (?P<client>[A-Z0-9_]{1,40})"
    r" faulted @ (?P<address>0x[0-9a-f_]+)"
)
_FAULT = re.compile(r"(?P<fault>FAULT_[A-Z_]{1,40})(?: (?P<access>ACCESS_TYPE_[A-Z_]{1,40}))?")
_DBE = re.compile(r"physAddr:? (?P<physaddr>0x[0-9a-f]{1,16})", re.IGNORECASE)
_PARTITION = re.compile(r"partition (?P<partition>\d{1,4}), subpartition (?P<subpartition>\d{1,4})")
_FBPA = re.compile(r"in FBPA (?P<fbpa>\d{1,4})(?: subpartition (?P<subpartition>\d{1,4}))?")
_ROW = re.compile(r"\((?P<row>0x[0-9a-f]{1,16})\)")
_CONTAINED = re.compile(
    r"(?P<containment>Contained|Uncontained): (?P<engine>[^.]{1,80}?)(?:\.|$| physAddr)"
    r"|RST: (?P<rst>\w{1,8}), D-RST: (?P<drst>\w{1,8})"
)
_COUNT = re.compile(r"\b(DRAM|LTC|MMU|PCIE|SRAM|L2|SM):(-?\d{1,12})")
_WAIT = re.compile(r"(?:GPU(\d{1,3}) GSP|GSP(\d{1,3}))!|Expected function (\d{1,5}) \((\w{1,64})\)|after (\d{1,6})s ")
_UNIT = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_/]{1,63}) (?P<severity>Fatal|Non-?fatal) XC ?(?P<xc>\d{1,2}) i ?(?P<i>\d{1,2}) "
    r"Link (?P<link>-?\d{1,3})(?:\s?[(\[](?P<words>[0-9a-fx ,]{1,200}))?",
    re.IGNORECASE,
)
_RECOVERY = re.compile(r"changed from (0x[0-9a-f]{1,8}) \(([^)]{0,64})\) to (0x[0-9a-f]{1,8}) \(([^)]{0,64})\)")
_NVLINK = re.compile(
    r"NVLink: (?:(?P<severity>fatal|non-fatal) )?"
    r"errors? detected on link (?P<link>\d{1,3}) ?(?:\((?P<words>[^)]{0,200}))?",
    re.IGNORECASE,
)
_RETIRE = re.compile(
    r"Retiring (?P<what>\w{1,8} \d{1,4}) from (?P<where>\w{1,8} \d{1,4})|Marking (?P<target>[^.]{1,60}?) along"
)
_ACTIVATE = re.compile(r"Perform (?:a )?([\w ]{1,30}?) to activate")
_STORM = re.compile(r"(\w{1,16}) SBE interrupt storm", re.IGNORECASE)
_STATUS = re.compile(r"Error status (?P<errorstatus>0x[0-9a-f]{1,8})")

_REASONS = (
    ("All reserved rows", "bank full"),
    ("already pending", "already pending"),
    ("table is full", "table full"),
    ("no spare", "no spare"),
)


def _channel(details: Details, tail: str) -> None:
    match = _CHANNEL.match(tail) or ("ChI" in tail and _CHANNEL_ID.search(tail))
    if match:
        details["channel"] = match[1]
    if "caused by" in tail:
        put_numbers(details, _CAUSED, tail)


def _exception(details: Details, tail: str) -> None:
    if put_numbers(details, _SM, tail):
        put(details, _SM_ERROR, tail)
    elif "ESR" in tail:
        put(details, _ESR, tail)


_MMU_USUAL = re.compile(
    r"(?:Ch|channel) ((?:0x)?[0-9a-f]{1,16}), intr [0-9a-f]{1,16}\. MMU Fault: "
    r"ENGINE ([A-Z0-9_]{1,32}(?: GPC\d{1,2})?) ([A-Z0-9_]{1,40}) faulted @ (0x[0-9a-f_]{1,24})\. "
    r"Fault is of type (FAULT_[A-Z_]{1,40}) (ACCESS_TYPE_[A-Z_]{1,40})$"
)


def _fault(details: Details, tail: str) -> None:
    match = _MMU_USUAL.match(tail)
    if match is None:
        _channel(details, tail)
        _mmu(details, tail)
        _exception(details, tail)
        return
    channel, engine, client, address, fault, access = match.groups()
    details["channel"] = channel
    details["engine"] = engine
    details["client"] = client
    details["address"] = address.replace("_", "")
    details["fault"] = fault
    details["access"] = access


def _mmu(details: Details, tail: str) -> None:
    if put(details, _MMU, tail):
        details["address"] = str(details["address"]).replace("_", "")
    if "FAULT_" in tail:
        put(details, _FAULT, tail)


def _memory(details: Details, tail: str) -> None:
    put(details, _DBE, tail)
    put_numbers(details, _PARTITION, tail)
    put_numbers(details, _FBPA, tail)
    if "framebuffer" in tail or "FBPA" in tail:
        details["location"] = "DRAM"
    elif "SRAM" in tail:
        details["location"] = "SRAM"


def _row(details: Details, tail: str) -> None:
    put(details, _ROW, tail)
    for words, reason in _REASONS:
        if words in tail:
            details["reason"] = reason
    if "marked for remapping" in tail or "to activate" in tail:
        details["state"] = "pending"


def _contained(details: Details, tail: str) -> None:
    for match in _CONTAINED.finditer(tail):
        details.update({name: value for name, value in match.groupdict().items() if value})
    if str(details.get("engine", "")).startswith("DRAM"):
        details["location"] = "DRAM"


def _counts(details: Details, tail: str) -> None:
    for name, count in _COUNT.findall(tail):
        details[name.lower()] = int(count)


def _rpc(details: Details, tail: str) -> None:
    for gpu, gsp, function, name, seconds in _WAIT.findall(tail):
        if gpu or gsp:
            details["gpu_index"] = int(gpu or gsp)
        if function:
            details.update(function=int(function), function_name=name)
        if seconds:
            details["seconds"] = int(seconds)


def _unit(details: Details, tail: str) -> None:
    match = _UNIT.search(tail)
    if match is None:
        return
    unit, severity, xc, injected, link, words = match.groups()
    details.update(unit=unit, severity=severity, xc=int(xc), injected=yes(int(injected)), link=int(link))
    registers = words.replace(",", " ").split() if words else []
    if registers:
        details["intrinfo"] = registers[0]
        details["registers"] = " ".join(registers)
        details["subcode"] = _link_down_reason(registers[0])
    if len(registers) > 1:
        details["errorstatus"] = registers[1]


def _link_down_reason(word: str) -> int:
    """Bits 25:20 of intrInfo: the reason of a link event (NVIDIA's NVLink5 decode tables)."""
    try:
        return (int(word, 16) >> 20) & 0x3F
    except ValueError:
        return 0


def _recovery(details: Details, tail: str) -> None:
    match = _RECOVERY.search(tail)
    if match:
        old, old_name, new, new_name = match.groups()
        details.update(recovery_from=f"{old} {old_name}", recovery_to=f"{new} {new_name}")


def _nvlink(details: Details, tail: str) -> None:
    match = _NVLINK.search(tail)
    if match is None:
        return
    details["link"] = int(match["link"])
    if match["severity"]:
        details["severity"] = match["severity"]
    if match["words"]:
        details["registers"] = " ".join(match["words"].replace(",", " ").split())


def _repair(details: Details, tail: str) -> None:
    match = _RETIRE.search(tail)
    if match:
        target = match["target"] or f"{match['what']} in {match['where']}"
        details["target"] = target.replace("Channel", "channel")
    match = _ACTIVATE.search(tail)
    if match:
        details["activation"] = match[1].lower()


def _storm(details: Details, tail: str) -> None:
    match = _STORM.search(tail)
    if match:
        details["source"] = match[1].lower()


def _status(details: Details, tail: str) -> None:
    put(details, _STATUS, tail)


Family = Callable[[Details, str], None]
_ALL: tuple[Family, ...] = (_channel, _exception, _mmu, _memory, _unit, _contained)
_FAMILIES: dict[int, tuple[Family, ...]] = {
    13: (_channel, _exception),
    31: (_fault,),
    32: (_channel,),
    43: (_channel,),
    45: (_channel,),
    48: (_channel, _memory),
    63: (_row,),
    64: (_row,),
    74: (_nvlink,),
    79: (),
    92: (_storm,),
    94: (_contained, _memory),
    95: (_contained, _memory),
    119: (_rpc,),
    120: (_rpc,),
    140: (_counts,),
    143: (_status,),
    154: (_recovery,),
    156: (_repair,),
    157: (_repair,),
    160: (_repair,),
    161: (_repair,),
    171: (_memory,),
    172: (_memory,),
    177: (_repair,),
    **dict.fromkeys(range(144, 151), (_unit,)),
}
