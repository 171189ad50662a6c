"""The host around the GPUs: memory kills, disks, machine checks, heat, stuck tasks, panics, helper drivers."""

from __future__ import annotations

import re
from collections.abc import Callable

from medevac.decode.reading import Details, Reading, number, put, put_numbers

_KILLED = re.compile(
    r"(?:(?P<why>Out of memory|Memory cgroup out of memory): )?"
    r"Kill(?:ed)? process (\d{1,10})(?:,? UID \d{1,10},?)? \((.{1,64}?)\)(?= |,|$)"
)
_OOM_KILL = re.compile(r"oom-kill:constraint=CONSTRAINT_(\w{1,20}),.{0,4000}?task=(.{1,64}?),pid=(\d{1,10}),uid=")
_INVOKED = re.compile(r"(.{1,64}?) invoked oom-killer:")
_SCOPES = {
    "Out of memory": "system",
    "Memory cgroup out of memory": "memcg",
    "NONE": "system",
    "MEMORY_POLICY": "mempolicy",
}
_HUNG = re.compile(r"task (.{1,64}?):(\d{1,10}) blocked (?:in I/O wait )?for more than (\d{1,8}) seconds")
_SOFT = re.compile(r"soft lockup - CPU#(\d{1,5}) stuck for (\d{1,8})s! \[(.{0,64}?):(\d{1,10})\]")
_PANIC = re.compile(r"Kernel panic - not syncing: (?P<reason>.{1,200})")
_COMM = re.compile(r"CPU: (\d{1,5}) (?:UID: \d{1,10} )?PID: (\d{1,10}) Comm: (.{1,64}?) (?:Tainted|Not tainted|Kdump)")
_SEGFAULT = re.compile(r"(.{1,64}?)\[(\d{1,10})\]: segfault at .{0,200} in libnccl")
_HEAT = re.compile(r"CPU(?P<cpu>\d{1,5}): (Core|Package) (temperature above|temperature/speed normal|power limit)")
_TOTAL = re.compile(r"total events = (?P<events>\d{1,12})")
_ZONE = re.compile(r"[Cc]ritical temperature reached")
_CPER = re.compile(r"\[Hardware Error\]: event severity: (?P<severity>\w{3,20})")
_MCE = re.compile(
    r"\[Hardware Error\]: (?:CPU (?P<cpu>\d{1,5}): )?Machine [Cc]heck(?: Exception)?: .{0,40}?Bank (?P<bank>\d{1,3})"
)
_BANK_STATUS = re.compile(r"Bank \d{1,3}: ([0-9a-f]{16})\b")
_UNCORRECTED = 1 << 61  # UC of IA32_MCi_STATUS and MCA_STATUS: Intel SDM 3B 17.3.2.2, AMD APM 2 chapter 9
_AMD_MCE = re.compile(r"\[Hardware Error\]: (?P<severity>Corrected|Uncorrected|Deferred)[\w, ]{0,40} error")
_EDAC = re.compile(r"EDAC (?P<controller>[\w ]{1,24}): (?P<count>\d{1,9}) (?P<class>CE|UE) (?P<error>[^(]{1,100})")
_UNDECODED = (
    (re.compile(r"mce: .{0,40}(?:Processor context corrupt|Uncorrected (?:hardware memory )?error)"), "UE"),
    (re.compile(r"mce: CPUs not responding to MCE broadcast"), "UE"),
    (re.compile(r"mce: CPU\d{1,5}: \d{1,9} Corrected error|mce: CMCI storm detected"), "CE"),
)
_POISONED = re.compile(r"Memory failure: (?P<address>0x[0-9a-f]{1,16}): (?P<outcome>.{1,100})")
_KILLS = re.compile(r"(?:Killing|Sending SIGBUS to) (.{1,64}?):(\d{1,10}) due to")
_IBECC = "HANDLING IBECC MEMORY ERROR"
_REPEAT_NOTE = re.compile(r"Machine check events logged")

_DISK = (
    (re.compile(r"XFS \((?P<device>[\w.-]{1,32})\): .{0,60}?(?:I/O error|orruption|hutdown|hut(?:ting)? down)"), ""),
    (re.compile(r"Disk failure on (?P<device>[\w.-]{1,32})"), "raid failure"),
    (
        re.compile(r"nvme (?P<device>nvme\d{1,4}): (?:Disabling|Removing) (?:device )?after (?:reset|probe) failure"),
        "disabled",
    ),
    (re.compile(r"nvme (?P<device>nvme\d{1,4}): .{0,60}?(?:controller is down|not ready)"), "controller down"),
    (re.compile(r"nvme (?P<device>nvme\d{1,4}): I/O .{0,60}?timeout"), "timeout"),
    (re.compile(r"^(?P<device>nvme\d{1,4}(?:c\d{1,4})?n\d{1,6}): .{1,120}\(sct 0x"), "io error"),
    (
        re.compile(
            r"EXT4-fs (?:error|warning)? ?\((?:device )?(?P<device>[\w.-]{1,32})\): "
            r"[Rr]emounting filesystem read-only"
        ),
        "read-only",
    ),
    (re.compile(r"(?:XFS|BTRFS) \((?P<device>[\w.-]{1,32})\): [Rr]emounting filesystem read-only"), "read-only"),
    (re.compile(r"EXT4-fs \((?P<device>[\w.-]{1,32})\): I/O error while writing superblock"), "superblock write error"),
    (re.compile(r"EXT4-fs error \((?:device )?(?P<device>[\w.-]{1,32})\)"), "filesystem error"),
    (re.compile(r"(?P<device>)attempt to access beyond end of device"), "beyond end of device"),
    (
        re.compile(r"LustreError: [\d-]{1,12}: (?P<device>[\w.-]{1,64}): This client was evicted"),
        "evicted",
    ),
    (re.compile(r"BTRFS (?:error|critical)[^(]{0,20}\(device (?P<device>[\w.-]{1,32})"), "filesystem error"),
    (re.compile(r"block (?P<device>[\w.-]{1,32}): no (?:available|usable) path"), ""),
    (
        re.compile(
            r"(?:critical medium|I/O|blk_update_request: .{0,20}?I/O|critical target) error,"
            r" dev (?P<device>[\w.-]{1,32})"
        ),
        "io error",
    ),
    (re.compile(r"Buffer I/O error on (?:dev(?:ice)? )?(?P<device>[\w.-]{1,32})"), "io error"),
)


def _oom(text: str) -> Reading | None:
    if match := _OOM_KILL.search(text):
        scope, process, pid = match.groups()
        return Reading("oom", pid=int(pid), process=process, details={"scope": _SCOPES.get(scope, scope.lower())})
    if match := _KILLED.search(text):
        why, pid, process = match.groups()
        return Reading("oom", pid=int(pid), process=process, details={"scope": _SCOPES[why]} if why else {})
    if match := _INVOKED.match(text):
        return Reading("oom_start", process=match[1])
    return None


def _hung(text: str) -> Reading | None:
    match = _HUNG.search(text)
    if match is None:
        return None
    return Reading("hung_task", pid=int(match[2]), process=match[1], details={"seconds": int(match[3])})


def _lockup(text: str) -> Reading | None:
    match = _SOFT.search(text)
    if match is None:
        return None
    cpu, seconds, process, pid = match.groups()
    return Reading("soft_lockup", pid=int(pid), process=process, details={"cpu": int(cpu), "seconds": int(seconds)})


def _panic(text: str) -> Reading | None:
    details: Details = {}
    return Reading("panic", details=details) if put(details, _PANIC, text) else None


def _panic_detail(text: str) -> Reading | None:
    match = _COMM.match(text)
    if match is None:
        return None
    return Reading("panic_continuation", pid=int(match[2]), process=match[3], details={"cpu": int(match[1])})


def _segfault(text: str) -> Reading | None:
    match = _SEGFAULT.match(text)
    return Reading("nccl_segfault", pid=number(match[2]), process=match[1]) if match else None


def _peermem(text: str) -> Reading | None:
    return Reading("peermem") if text.startswith("nvidia-peermem ") and "ERROR" in text else None


def _thermal(text: str) -> Reading | None:
    match = _HEAT.search(text)
    if match is None:
        return Reading("thermal", details={"scope": "zone", "event": "critical"}) if _ZONE.search(text) else None
    details: Details = {"cpu": int(match["cpu"]), "scope": match[2].lower()}
    put_numbers(details, _TOTAL, text)
    if match[3].startswith("power"):
        details["event"] = "power limit"
        if "normal" in text:
            return Reading("thermal_clear", details=details)
    return Reading("thermal_clear" if match[3].endswith("normal") else "thermal", details=details)


def _machine_check(text: str) -> Reading | None:
    details: Details = {}
    if put(details, _CPER, text):
        return Reading("mce", details=details)
    if put(details, _AMD_MCE, text):
        details["class"] = "UE" if details["severity"] == "Uncorrected" else "CE"
        return Reading("mce", details=details)
    if put_numbers(details, _MCE, text):
        if status := _BANK_STATUS.search(text):
            details["class"] = "UE" if int(status[1], 16) & _UNCORRECTED else "CE"
        return Reading("mce", details=details)
    if match := _EDAC.search(text):
        severity = "corrected" if match["class"] == "CE" else "uncorrected"
        return Reading(
            "mce",
            details={
                "severity": severity,
                "class": match["class"],
                "count": int(match["count"]),
                "controller": match["controller"],
                "error": match["error"].strip(),
            },
        )
    for pattern, kind in _UNDECODED:
        if pattern.search(text):
            return Reading("mce", details={"class": kind, "error": text.partition("mce: ")[2][:100]})
    if _IBECC in text:
        return Reading("mce", details={"event": "ibecc"})
    return Reading("mce", details={"event": "logged"}) if _REPEAT_NOTE.search(text) else None


def _memory_failure(text: str) -> Reading | None:
    """A page of host memory that an uncorrected error took: mm/memory-failure.c."""
    details: Details = {}
    if not put(details, _POISONED, text):
        return None
    details["class"] = "UE"
    killed = _KILLS.search(text)
    pid, process = (int(killed[2]), killed[1]) if killed else (None, None)
    return Reading("mce", pid=pid, process=process, details=details)


def _disk(text: str) -> Reading | None:
    for pattern, event in _DISK:
        if match := pattern.search(text):
            details: Details = {"device": match["device"]} if match["device"] else {}
            return Reading("disk", details={**details, "event": event} if event else details)
    return None


# Words that a line must have before a parser looks at it.
_OF_DISKS = (
    *("beyond end", "LustreError", "read-only", "I/O error", " error, dev", "-fs ", "BTRFS", "nvme", "XFS"),
    *("Disk failure", "failing I/O", "e path"),
)

PARSERS: tuple[tuple[tuple[str, ...], Callable[[str], Reading | None]], ...] = (
    (("oom-kill", "Kill"), _oom),
    (("blocked ",), _hung),
    (("soft lockup",), _lockup),
    (("Kernel panic",), _panic),
    (("segfault",), _segfault),
    (("peermem",), _peermem),
    (("temperature", "power limit"), _thermal),
    (("[Hardware Error]", "EDAC ", "Machine check", "mce: "), _machine_check),
    (("Memory failure: ",), _memory_failure),
    (_OF_DISKS, _disk),
    (("Comm: ",), _panic_detail),
)


def parse(text: str) -> Reading | None:
    """Read a kernel message about the host."""
    for words, parser in PARSERS:
        for word in words:
            if word in text:
                reading = parser(text)
                if reading is not None:
                    return reading
                break
    return None
