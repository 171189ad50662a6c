"""What stands before the message of a line: time, host, program, priority, in any mix that loggers make.

A line is read from the left as a row of known pieces, in any order and number. What is left is the message. Whether
the kernel itself spoke is part of the answer (`kernel`): a syslog tag of any other program says that it did not.
"""

from __future__ import annotations

import re

from medevac.decode.clock import Clock, month_number
from medevac.decode.reading import Details


class Head:
    """The prefix of one line: `message` is the rest, `at` 0.0 when the prefix has no absolute time."""

    # Of the class: one is made for each line, and most lines have few of these.
    at = 0.0
    node = ""
    program = ""
    pid: int | None = None
    kernel = True
    uptime: float | None = None
    extra: Details | None = None

    def __init__(self, message: str) -> None:
        self.message = message

    def note(self, name: str, value: int) -> None:
        """Keep a number of the frame (prio, seq, usec, repeat) for the details."""
        if self.extra is None:
            self.extra = {}
        self.extra[name] = value


_ISO = r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)([.,]\d{1,9})?(Z|[+-]\d\d:?\d\d)?"
# The common case in one go: syslog or ISO date, host, program; kernel seconds; caller.
_COMMON = re.compile(
    rf"(?:(?:([A-Z][a-z]{{2}}) ([ \d]\d) (\d\d:\d\d:\d\d)|{_ISO}) "
    r"(\S{0,254}[^\s:]) ([\w./@-]{1,64})(?:\[(\d{1,10})\])?: )?"
    r"(?:\[ {0,8}(\d{1,12}\.\d{1,9})\] )?"
)
_KMSG = re.compile(r"(\d{1,4}),(\d{1,12}),(\d{1,18}),[^;]{0,200};")
_PRIORITY = re.compile(r"<(\d{1,3})>")
_RFC5424 = re.compile(
    rf"1 {_ISO} (\S{{1,255}}) (\S{{1,64}}) (\S{{1,128}}) (\S{{1,64}}) (?:-|\[[^\]]{{0,2000}}\]) ?(?:\ufeff)?"
)
_ISO_AT = re.compile(rf"{_ISO.replace('-', '[-/]', 2)}(?= |$)")
# journalctl -o short-full (its zone is a name) and -o short-unix
_FULL = re.compile(r"[^\W\d_]{2,4}\.? (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?: ([A-Z]{2,5}|[+-]\d\d(?:\d\d)?))?(?= )")
_UNIX = re.compile(r"(\d{9,10}\.\d{3,9})(?= \S{1,254} [\w./@-]{1,64}(?:\[\d{1,10}\])?: )")
_UTC = re.compile(r" (?:UTC|GMT)(?= )")  # the zone of a date, as a word
_CRI = re.compile(r" (?:stdout|stderr) [FP] ")
_SYSLOG = re.compile(
    r"(?:(\d{4}) )?([^\W\d_]{3,10}\.?|\d{1,2}月) {1,2}(\d{1,2}) (?:(\d{4}) )?"
    r"(\d\d:\d\d:\d\d)(?:\.\d{1,9})?(?: (\d{4}))?(?= )"
)
_CTIME = re.compile(  # and of `date`, which shows the zone
    r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d:\d\d:\d\d) (?:([A-Z]{2,5}) )?(\d{4})(?= )"
)
_HOST_TAG = re.compile(r" (\S{0,254}[^\s:]) ([\w./@-]{1,64})(?:\[(\d{1,10})\])?:(?: |$)")
_HOST_DRIVER = re.compile(r" ([^\s\[]\S{0,254})(?: kernel)? (?=NVRM|nvidia-nvswitch)")
_HOST_KERNEL = re.compile(r" ?(\S{1,255}) kernel: ")
_KERNEL = re.compile(r" ?kernel: ")
_UPTIME = re.compile(r" ?\[ {0,8}(\d{1,12}\.\d{1,9})\] ?")
_DELTA = re.compile(r"\[ {0,8}\+\d{1,9}\.\d{1,9}\] ?")
_CALLER = re.compile(r"\[ {0,8}[TC]\d{1,9}\] ?")
_DMESG_T = re.compile(r"\[(?:[^\W\d_]{1,4}\.? )?([^\W\d_]{3,5}|\d{1,2}月) {1,2}(\d{1,2}) (\d\d:\d\d:\d\d) (\d{4})\] ?")
_MANAGER = re.compile(r"\[([A-Z][a-z]{2}) (\d\d) (\d{4}) (\d\d:\d\d:\d\d)\] ?")
_BRACKET_ISO = re.compile(rf"\[{_ISO}\]:? ?")
_FACILITY = re.compile(
    r"(?:kern|user|daemon|syslog|auth|local\d) {0,4}:\s?(?:emerg|alert|crit|err|warn|notice|info|debug) {0,4}: "
)
_TALOS = re.compile(r"([\w.:-]{1,255}): (?:kern|user|daemon): {1,2}\w{3,8}: (?=\[\d{4}-)")
_DATED = (
    r"<\d|\[ {0,8}\d{1,12}\.\d|\[[A-Z][a-z]{2} [A-Z]|\d{4}-\d\d-\d\d[T ]|"
    r"(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:"
)
_FAN_OUT = re.compile(rf"([\w.-]{{1,255}})(?: {{1,8}}\| |: |\t)(?={_DATED}|NVRM:|kernel: )")
_GREP = re.compile(rf"[\w./@~+-]{{1,255}}[:-](?:\d{{1,12}}[:-])?(?={_DATED})")  # grep names the file, with -n the line
_FAN_BAR = re.compile(r"([\w.-]{1,255}) {1,8}\| ")
_REPEATED = re.compile(r"message repeated (\d{1,9}) times: \[ ?")
_DRIVERS = ("NVRM:", "nvidia-nvswitch", "mlx5_core ", "pcieport ", "amdgpu ")  # the message begins here
_MORE = (
    "[",
    "<",
    " ",
    "message repeated",
    "kernel: ",
    "kern ",
    "kern:",
    *"0123456789",
)  # after the usual, so may these
_TAG = " kernel: "
_DRIVER_TAGS = ("NVRM", "nvidia-nvswitch", "mlx5_core", "infiniband", "amdgpu")


def split(line: str, clock: Clock) -> Head:
    """Take `line` (one record, no wrapper of JSON) apart."""
    head = Head(line)
    tag = line.find(_TAG, 0, 160)
    cut = line.rfind(" ", 0, tag) if tag > 0 else -1
    at, node = (clock.dates.get(line[:cut]), clock.hosts.get(line[cut + 1 : tag])) if cut > 0 else (None, None)
    position = tag + len(_TAG)
    if at is not None and node is not None:
        head.at, head.node = at, node
        position = _seconds(head, line, position, clock)
    elif match := _COMMON.match(line):
        position = _common(head, match, clock) if match.end() else 0
        if position and not head.node and position < tag and " " not in line[position:tag]:  # -o short-monotonic
            head.node, position = line[position:tag], tag + len(_TAG)
        if cut > 0 and head.kernel and position >= tag + len(_TAG) and head.node == line[cut + 1 : tag]:
            clock.keep_prefix(line[:cut], head.at, head.node)
    if not line.startswith(_DRIVERS, position) and (not position or line.startswith(_MORE, position)):
        position = _pieces(head, line, position, clock)
    if position:
        head.message = line[position:]
    if head.extra and "repeat" in head.extra:
        head.message = head.message.removesuffix("]")
    return head


def _seconds(head: Head, line: str, position: int, clock: Clock) -> int:
    """The kernel seconds of a line whose prefix is known by then; as _COMMON has them."""
    if line.startswith("[", position):
        end = line.find("] ", position, position + 32)
        inside = line[position + 1 : end].lstrip(" ") if end > 0 else ""
        if "." in inside and inside.replace(".", "", 1).isdecimal():
            _kernel_seconds(head, float(inside), clock)
            return end + 2
    return position


def _common(head: Head, match: re.Match[str], clock: Clock) -> int:
    month, day, hms, date, fraction, zone, host, program, pid, uptime = match.groups()
    if host:
        if program.startswith(_DRIVER_TAGS):  # a shipper that left out the tag
            return 0
        if month:
            head.at = clock.syslog(month, day, hms)
        else:
            head.at = clock.iso(date, fraction, zone)
        head.node = host
        if program != "kernel":
            _user(head, program, pid)
    if uptime:
        _kernel_seconds(head, float(uptime), clock)
    return match.end()


def _user(head: Head, program: str, pid: str | None) -> None:
    head.program = program
    head.pid = int(pid) if pid else None
    head.kernel = program in {"kernel", "vmkernel"}


def _kernel_seconds(head: Head, uptime: float, clock: Clock) -> None:
    head.uptime = uptime
    if not head.at:
        head.at = clock.uptime(head.node, uptime)
    elif head.kernel:
        clock.joined(head.node, uptime, head.at)


def _pieces(head: Head, line: str, position: int, clock: Clock) -> int:
    """Take known pieces off the left until none fits; gives where the message begins."""
    for _ in range(12):
        taken = _piece(head, line, position, clock)
        if taken == position:
            break
        position = taken
    return position


def _piece(head: Head, line: str, at: int, clock: Clock) -> int:
    first = line[at : at + 1]
    if first == "[":
        return _bracket(head, line, at, clock)
    if first == "<":
        return _priority(head, line, at, clock)
    if first.isdigit():
        return _digits(head, line, at, clock)
    if first == " ":
        return at + len(line[at : at + 64]) - len(line[at : at + 64].lstrip(" "))
    return _word(head, line, at, clock) if first else at


def _bracket(head: Head, line: str, at: int, clock: Clock) -> int:
    if match := _UPTIME.match(line, at):
        _kernel_seconds(head, float(match[1]), clock)
    elif match := _DMESG_T.match(line, at):
        head.at = clock.dated(match[4], match[1], match[2], match[3])
    elif match := _MANAGER.match(line, at):
        head.at = clock.dated(match[3], match[1], match[2], match[4])
    elif match := _BRACKET_ISO.match(line, at):
        head.at = clock.iso(match[1], match[2], match[3])
    else:
        match = _DELTA.match(line, at) or _CALLER.match(line, at)
    if match is None:
        return at
    if (name := _HOST_KERNEL.match(line, match.end())) and not head.node:
        head.node = name[1]
        return name.end()
    return match.end()


def _priority(head: Head, line: str, at: int, clock: Clock) -> int:
    match = _PRIORITY.match(line, at)
    if match is None:
        return at
    head.note("prio", int(match[1]))
    rfc = _RFC5424.match(line, match.end())
    if rfc is None:
        return match.end()
    head.at = clock.iso(rfc[1], rfc[2], rfc[3])
    head.node = "" if rfc[4] == "-" else rfc[4]
    if rfc[5] not in {"kernel", "-"}:
        _user(head, rfc[5], rfc[6] if rfc[6].isdecimal() else None)
    return rfc.end()


def _digits(head: Head, line: str, at: int, clock: Clock) -> int:
    if match := _KMSG.match(line, at):
        head.note("prio", int(match[1]))
        head.note("seq", int(match[2]))
        head.note("usec", int(match[3]))
        _kernel_seconds(head, int(match[3]) / 1e6, clock)
        return match.end()
    if match := _UNIX.match(line, at):
        head.at = float(match[1])
        clock.note(head.at)
        return _host(head, line, match.end())
    if match := _ISO_AT.match(line, at):
        zone = _UTC.match(line, match.end())
        head.at = clock.iso(match[1], match[2], "Z" if zone else match[3])
        if cri := _CRI.match(line, match.end()):
            return cri.end()
        return _host(head, line, zone.end() if zone else match.end())
    return _word(head, line, at, clock)


def _word(head: Head, line: str, at: int, clock: Clock) -> int:
    if match := _KERNEL.match(line, at):
        return match.end()
    if match := _FACILITY.match(line, at):
        dated = _ISO_AT.match(line, match.end())  # dmesg -x names no host
        if dated:
            head.at = clock.iso(dated[1], dated[2], dated[3])
        return dated.end() if dated else match.end()
    if match := _REPEATED.match(line, at):
        head.note("repeat", int(match[1]))
        return match.end()
    if (match := _SYSLOG.match(line, at)) and month_number(match[2].rstrip(".")):
        early, month, day, middle, hms, late = match.groups()
        year = early or middle or late
        head.at = clock.dated(year, month, day, hms) if year else clock.syslog(month, day, hms)
        return _host(head, line, match.end())
    if (match := _CTIME.match(line, at)) and (number := month_number(match[1])):
        _, day, hms, name, year = match.groups()
        head.at = clock.iso(f"{year}-{number:02}-{int(day):02} {hms}", None, name)
        return _host(head, line, match.end())
    if match := _FULL.match(line, at):
        head.at = clock.iso(match[1], None, match[2])
        return _host(head, line, match.end())
    if not head.node and not head.at and (match := _GREP.match(line, at)):
        return match.end()
    if (
        not head.node
        and not head.at
        and (match := _TALOS.match(line, at) or _FAN_OUT.match(line, at) or _FAN_BAR.match(line, at))
    ):
        head.node = match[1]
        return match.end()
    return at


def _host(head: Head, line: str, at: int) -> int:
    """Host and program after a date."""
    match = _HOST_TAG.match(line, at)
    if match is None or match[2].startswith(_DRIVER_TAGS):
        only = _HOST_DRIVER.match(line, at)
        if only and only[1] != "kernel:":
            head.node = only[1]
            return only.end()
        return at
    head.node = match[1]
    if match[2] != "kernel":
        _user(head, match[2], match[3])
    return match.end()
