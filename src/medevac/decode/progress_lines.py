"""A job's progress as its own log lines tell it: step, loss, gradient norm, seconds a step, phase.

`ProgressReader` reads one line at a time, so that an agent can follow a growing file. A line is never guessed: what no
format fits is None. A user's own regex goes before all formats; it needs a group `step`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import msgspec

from medevac.core.events import Phase
from medevac.decode.progress_lines_formats import FORMATS, GRAD_NORM, LOSS, PHASES, SECONDS, Format

STAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T_](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
LONGEST = 4096


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one line says. `step` is a share of an epoch where the format counts only those (`hf-trainer`).

    `seconds` is for one step, `elapsed` since the start of the bar, `at` the line's own time in unix seconds (UTC).
    """

    format: str
    step: float
    phase: Phase = "step"
    total: int | None = None
    epoch: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    seconds: float | None = None
    elapsed: float | None = None
    at: float | None = None


class ProgressReader:
    """Reads progress lines of all formats, and of one's own regex first."""

    def __init__(self, regex: str | None = None) -> None:
        """Raises ValueError for a regex that Python cannot read or that has no group `step`."""
        own = (_own_format(regex),) if regex else ()
        self._formats = (*own, *FORMATS)

    def read(self, line: str) -> Progress | None:
        """The progress that this line reports, None for any other line."""
        line = line[-LONGEST:]
        if "\x1b" in line:
            line = ESCAPE.sub("", line)
        for one in self._formats:
            if one.needle in line and (match := one.pattern.search(line)):
                return _progress(one, match, line)
        return None


def phase_of(line: str) -> Phase | None:
    """The phase that a line says begins (eval, save, load), None for any other line."""
    for phase, needle, pattern in PHASES:
        if needle in line and pattern.search(line):
            return phase
    return None


def stamp_of(line: str) -> float | None:
    """The first ISO-like time of the line in unix seconds; its zone is not known, UTC is taken."""
    match = STAMP.search(line[:200])
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    try:
        whole = datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except ValueError:
        return None
    return whole + (float(f"0.{match[7]}") if match[7] else 0.0)


def _own_format(regex: str) -> Format:
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise ValueError(f"progress regex {regex!r}: {error}") from error
    if "step" not in pattern.groupindex:
        raise ValueError(f"progress regex {regex!r}: it needs a group named step, as in (?P<step>\\d+)")
    return Format("custom", "", pattern)


def _progress(one: Format, match: re.Match[str], line: str) -> Progress:
    said = match.groupdict()
    loss = said.get("loss") or _value(LOSS.search(line))
    seconds = float(said["seconds"]) if said.get("seconds") else _seconds(line)
    return Progress(
        format=one.name,
        step=float(said.get("step") or said.get("part") or 0),
        total=int(said["total"]) if said.get("total") else None,
        epoch=int(said["epoch"]) if said.get("epoch") else None,
        loss=float(loss) if loss is not None else None,
        grad_norm=_float(GRAD_NORM.search(line)),
        seconds=seconds,
        elapsed=_clock(said.get("elapsed")),
        at=_mllog_time(line) if one.name == "mlperf" else stamp_of(line),
    )


def _value(match: re.Match[str] | None) -> str | None:
    return match["value"] if match else None


def _float(match: re.Match[str] | None) -> float | None:
    return float(match["value"]) if match else None


def _seconds(line: str) -> float | None:
    """Seconds for one step, as the line says it in one of the usual ways."""
    match = SECONDS.search(line)
    if match is None:
        return None
    said = match.groupdict()
    for name in ("a", "b", "c", "d", "e"):
        if said[name]:
            return _number(said[name]) / (1000 if said["unit"] == "ms" or (name == "d" and said["dms"]) else 1)
    rate = _number(said["f"] or "0")
    return 1 / rate if rate > 0 else None


def _number(text: str) -> float:
    """A number that a full stop may end."""
    try:
        return float(text.rstrip("."))
    except ValueError:
        return 0.0


def _clock(text: str | None) -> float | None:
    """`1:02:03`, `02:03` or `2 days, 1:02:03` in seconds."""
    if not text:
        return None
    days, _, rest = text.rpartition("day")
    seconds = 0.0
    for part in rest.lstrip("s, ").split(":"):
        seconds = seconds * 60 + _number(part or "0")
    return seconds + (86400 * _number(days.strip() or "0") if days else 0.0)


def _mllog_time(line: str) -> float | None:
    match = re.search(r'"time_ms": (\d+)', line)
    return int(match[1]) / 1000 if match else None
