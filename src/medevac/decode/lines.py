"""One line in, one event out: `decode_line`. Everything about a single record; files and streams are elsewhere."""

from __future__ import annotations

import functools
import re

from medevac.core.events import FaultSeen
from medevac.decode import amd, network, nvrm, pcie, sxid, system, xid
from medevac.decode.context import Context
from medevac.decode.prefix import Head, split
from medevac.decode.reading import Details, Reading
from medevac.decode.wrapper import plain, unwrap

_REMEMBERED = 2048  # messages
MALFORMED = "malformed"
"""The detail of an unread line that begins as the driver's own does, and says neither which fault nor where."""
MAX_LINE = 8192  # bytes of a line that are read: no kernel record is longer
_BEFORE = 2048  # of a longer line, as many bytes before the first word of a fault

_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_WORDS = re.compile(rb"NVRM|SXid|AER: |mlx5|oom-kill|Kill(?:ed)? process|Hardware Error", re.IGNORECASE)
_BROKEN = re.compile(  # a fault's beginning, and nothing after it that tells which
    r"NVRM\s{0,4}:\s{0,4}(?:Xid\b|.{0,300}fallen off the bus)|nvidia-nvswitch\d{1,3}:\s{1,4}SXid\b",
    re.IGNORECASE | re.DOTALL,
)
_QUOTED = re.compile(r"NVRM\s{0,4}:|nvidia-nvswitch\d{1,3}:", re.IGNORECASE)
_OWN_CLOCK = re.compile(r"\[ {0,8}(\d{1,12}\.\d{1,9})\] (?:\[ {0,8}[TC]\d{1,9}\] )?$")
_KERNEL_TAG = re.compile(r"^[^:\[]{0,64}?\d{1,2}:\d\d:\d\d[^:\[]{0,300} kernel: (?:\[ {0,8}\d{1,12}\.\d{1,9}\] )?$")
_CLOCK_SET = re.compile(
    r"setting system clock to .{0,60}\((\d{9,11})\)|audit\((\d{9,11}\.\d{1,3}):\d{1,9}\): state=initialized"
)
_BERT_RECORD = "[Hardware Error]: event severity: "
_STARTS_S = 60.0
_MANAGERS = ("nv-fabricmanager", "nvidia-fabricmanager", "fabricmanager", "nv-hostengine")
_CARRIERS = ("systemd-networkd", "NetworkManager")
_MANAGER_TAG = re.compile(r"(nv-fabricmanager|nvidia-fabricmanager)(?:\[(\d{1,10})\])?: ")
_MANAGER_LEVEL = re.compile(r"\[(?:ERROR|FATAL|CRITICAL)\] \[tid \d{1,10}\] ")
_MANAGER_TROUBLE = re.compile(r"fail|error|abort|fatal|unable|don't match|not match|timed? ?out", re.IGNORECASE)


def decode_line(raw: bytes | str, ctx: Context, file: str = "", line: int = 0) -> FaultSeen | None:
    """Read one record (a line; its own line breaks inside are allowed).

    Gives None for what is no fault. `kind` is "unread" where a fault's words stand in a line that the driver did not
    write. Never raises, whatever the bytes.
    """
    text = clean(raw)
    head = unwrap(text, ctx.clock) if text.startswith("{") else None
    if head is None:
        head = split(text, ctx.clock)
    if not ctx.dated_from and ctx.clock.dated_at:
        ctx.dated_from = line
    return decode_record(head, text, (file, line), ctx)


def decode_record(head: Head, text: str, where: tuple[str, int], ctx: Context) -> FaultSeen | None:
    """The same for a record whose prefix is read already; `text` becomes the event's `raw`."""
    reading = read_message(head) if head.kernel else read_program(head)
    if reading is None:
        remember(head, ctx)
        return None
    return build(head, reading, text, where, ctx)


def clean(raw: bytes | str) -> str:
    """The text of a record: cut to MAX_LINE around its first word of a fault, without colours, NULs and line ends."""
    if isinstance(raw, bytes):
        if len(raw) > MAX_LINE:
            raw = window(raw)
        raw = raw.decode("utf-8", "replace")
    elif len(raw) > MAX_LINE:
        raw = window(raw.encode("utf-8", "replace")).decode("utf-8", "replace")
    return plain(raw.rstrip("\r\n"))


def window(raw: bytes) -> bytes:
    """The part of a long line that is read. JSON is left whole: it cannot be read in part."""
    if raw.startswith(b"{"):
        return raw
    found = _WORDS.search(raw)
    start = max(0, found.start() - _BEFORE) if found else 0
    return raw[start : start + MAX_LINE]


def read_message(head: Head) -> Reading | None:
    """What the kernel said."""
    text = head.message
    if text.startswith(("NVRM:", "nvidia-nvswitch")):
        return read_driver(text)
    if "#012" in text or "\\x" in text:
        text = head.message = _ESCAPED.sub(lambda m: chr(int(m[1], 16)), text.replace("#012", "\n"))
    if ("NVRM" in text or "nvrm" in text or "nvswitch" in text) and (quoted := _QUOTED.search(text)):
        return _inside(head, quoted)
    return read_kernel(text) or _manager(head, text)


# A storm says the same again and again: what was read lately is not read again. Nobody changes a Reading.
@functools.lru_cache(maxsize=_REMEMBERED)
def read_driver(text: str) -> Reading | None:
    """A message that begins with the name of the GPU or switch driver."""
    reading = xid.parse(text) or nvrm.parse(text) if text[:4].upper() == "NVRM" else sxid.parse(text)
    return reading or (Reading("unread", details={MALFORMED: "yes"}) if _BROKEN.match(text) else None)


@functools.lru_cache(maxsize=_REMEMBERED)
def read_kernel(text: str) -> Reading | None:
    """A message of any other part of the kernel."""
    if "amdgpu" in text and (reading := amd.parse(text)):
        return reading
    if text.startswith("mlx5_core "):
        return network.parse(text) or pcie.parse(text)
    return pcie.parse(text) or network.parse(text) or system.parse(text) or network.parse_nfs(text)


def _inside(head: Head, quoted: re.Match[str]) -> Reading | None:
    """A driver's name inside the text: its own line behind an unknown prefix, or somebody's quotation."""
    text, at = head.message, quoted.start()
    before, own = text[:at], text[at:]
    clock = _OWN_CLOCK.search(before)
    mine = not before.strip() or clock is not None or _KERNEL_TAG.match(before) is not None
    if mine:
        head.message = own
        return read_driver(own)
    reading = xid.parse(own) or sxid.parse(own) or nvrm.parse(own)
    if reading is None:
        head.message = own
        return None
    if reading.kind in {"xid", "sxid", "fell_off"}:
        return reading._replace(kind="unread", pid=None, process=None, details={"quoted": reading.kind})
    return None


def read_program(head: Head) -> Reading | None:
    """What a program of user space said: few are believed, and only about their own business."""
    text = head.message
    if head.program.startswith(_MANAGERS):
        return _manager(head, text)
    if head.program.startswith(_CARRIERS):
        return network.parse_carrier(text)
    quoted = _QUOTED.search(text)
    if quoted is None:
        return None
    own = text[quoted.start() :]
    reading = xid.parse(own) or sxid.parse(own) or nvrm.parse(own)
    if reading is None or reading.kind not in {"xid", "sxid", "fell_off"}:
        return None
    return Reading("unread", reading.code, reading.pci, details={"quoted": reading.kind})


def _manager(head: Head, text: str) -> Reading | None:
    """The Fabric Manager's own log, or its lines in syslog."""
    if "NVSwitch" in text and (switch := sxid.parse_manager(text)):
        return switch
    tag = _MANAGER_TAG.match(text)
    program, pid = (tag[1], tag[2]) if tag else (head.program, head.pid)
    if tag or program:
        if not _MANAGER_TROUBLE.search(text):
            return None
        return Reading("fabric_manager", pid=int(pid) if pid else None, process=program)
    return Reading("fabric_manager") if _MANAGER_LEVEL.match(text) else None


def remember(head: Head, ctx: Context) -> None:
    """Lines that are no fault, but tell how to read others."""
    text = head.message
    if head.uptime is not None and (match := _CLOCK_SET.search(text)):
        wall = float(match[1] or match[2])
        ctx.clock.note(wall)
        ctx.clock.joined(head.node, head.uptime, wall)
    elif text.startswith("Linux version "):
        ctx.clock.booted(head.node)
    elif text.startswith("BERT: Error records"):
        ctx.previous_boot[head.node] = head.uptime or 0.0
    elif "EINJ: Error INJection is initialized" in text or "Machine check injector initialized" in text:
        ctx.injectors.add(head.node)


def build(head: Head, reading: Reading, text: str, where: tuple[str, int], ctx: Context) -> FaultSeen:
    """The event of a reading, with what the context adds."""
    kind, code, pci, pid, process, details = reading
    node = head.node or ctx.node
    gpu = None
    if pci is not None:
        if "gpu_uuid" in details:
            ctx.gpus[node, pci] = str(details["gpu_uuid"])
        gpu = ctx.gpus.get((node, pci))
    details = {**details, **head.extra} if head.extra else details.copy()
    if kind == "xid":
        if "unit" in details and node in ctx.drivers:
            details["driver"] = ctx.drivers[node]
    elif kind == "nvrm_info" and "driver" in details:
        ctx.drivers[node] = str(details["driver"])
    elif kind == "mce":
        _machine_check(head, details, ctx)
    return FaultSeen(
        at=max(head.at, 0.0),  # a broken year is no time
        kind=kind,
        code=code,
        node=node,
        pci=pci,
        gpu=gpu,
        pid=pid,
        process=process,
        details=details,
        raw=text if len(text) <= MAX_LINE else text[:MAX_LINE],
        file=where[0],
        line=where[1],
    )


def _machine_check(head: Head, details: Details, ctx: Context) -> None:
    """A record of the boot before this one says so, and one on a machine that is set up to inject errors.

    Where BERT's header is missing, its records are known by having no `{number}` in front, which the other printers of
    such records write (Linux drivers/acpi/apei: bert.c, ghes.c), and by the first minute, in which it is printed.
    """
    if head.uptime is not None:
        before = ctx.previous_boot.get(head.node)
        headed = before is not None and 0 <= head.uptime - before < 2
        if headed or (head.uptime < _STARTS_S and head.message.startswith(_BERT_RECORD)):
            details["previous_boot"] = "yes"
    if head.node in ctx.injectors:
        details["injector"] = "loaded"
