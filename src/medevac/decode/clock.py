"""The source's own time, in UTC, from what a log prefix says; never the time of reading.

A syslog date has no year: it is the latest one that does not lie after `reference` (when the log was last written).
Kernel seconds become wall time once a line of the same boot shows both. 0.0 stands for "not known".
"""

from __future__ import annotations

import datetime as dt
import time

DAY = 86400.0

# First letters of month names as journals of other locales print them, longest first where one is another's beginning.
_MONTHS = {
    1: ("jan", "gen", "ene", "янв"),
    2: ("feb", "fév", "fev", "фев"),
    3: ("mar", "mär", "mrt", "maa", "мар"),
    4: ("apr", "avr", "abr", "апр"),
    5: ("may", "mai", "maj", "mag", "mei", "май", "мая"),
    6: ("jun", "juin", "giu", "июн"),
    7: ("juil", "jul", "lug", "июл"),
    8: ("aug", "aoû", "aou", "ago", "авг"),
    9: ("sep", "set", "сен"),
    10: ("oct", "okt", "ott", "out", "окт"),
    11: ("nov", "noy", "ноя"),
    12: ("dec", "dez", "déc", "dic", "дек"),
}
MONTH_BY_NAME = {name: number for number, names in _MONTHS.items() for name in names}


def month_number(word: str) -> int:
    """1 to 12 for a month's name in one of the known languages (Aug, april, jan., 3月), 0 for any other word."""
    word = word.lower()
    if word.endswith("月"):
        return int(word[:-1]) if word[:-1].isdecimal() and 1 <= int(word[:-1]) <= 12 else 0
    return MONTH_BY_NAME.get(word[:4], 0) or MONTH_BY_NAME.get(word[:3], 0)


def epoch(year: int, month: int, day: int) -> float:
    """Unix seconds at which a UTC date begins, 0.0 where there is no such date."""
    try:
        moment = dt.datetime(year, month, day, tzinfo=dt.UTC)
    except ValueError:
        return 0.0
    return max(moment.timestamp(), 0.0)  # a date before there were kernels is none


class Clock:
    """Reads the times of one log. `offset` is what its local time is ahead of UTC, in seconds."""

    def __init__(self, reference: float | None = None, offset: float = 0.0) -> None:
        self.reference = time.time() if reference is None else reference
        self.offset = offset
        self._days: dict[str, float] = {}
        self._seconds: dict[str, float] = {}  # a storm has many lines a second
        self.prefixes: dict[str, tuple[float, str]] = {}  # time and node of the kernel's prefixes seen last
        self._latest = self.reference + DAY
        self._boots: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self.pinned: float | None = None  # wall time of kernel second 0, where the machine itself told it

    def keep_prefix(self, text: str, at: float, node: str) -> None:
        """Remember what `text`, all before ` kernel: ` of a line, says."""
        if len(self.prefixes) > 256:
            self.prefixes.clear()
        self.prefixes[text] = (at, node)

    def iso(self, seconds: str, fraction: str | None, zone: str | None) -> float:
        """`2025-01-21T04:41:44`, `.283302` or `,283302`, `Z` or `+00:00` or `+0800` or none."""
        base = self._seconds.get(seconds)
        if base is None:
            day = seconds[:10]
            base = self._days.get(day)
            if base is None:
                base = _keep(self._days, day, _midnight(day))
            base = _keep(self._seconds, seconds, base and base + _of_day(seconds[11:]))
        if not base:
            return 0.0
        if fraction:
            base += float("0." + fraction[1:])
        if not zone:
            return base - self.offset
        return base if zone in {"Z", "+00:00"} else base - _zone(zone)

    def syslog(self, month: str, day: str, clock: str) -> float:
        """`Aug`, `10`, `15:36:05`, the year inferred."""
        key = month + day
        at = self._seconds.get(key + clock)
        if at is None:
            base = self._days.get(key)
            if base is None:
                base = _keep(self._days, key, self._infer(month_number(month.rstrip(".")), int(day)))
            at = _keep(self._seconds, key + clock, base and base + _of_day(clock))
        return at

    def dated(self, year: str, month: str, day: str, clock: str) -> float:
        """The same with a year, as `dmesg -T` prints it."""
        number = month_number(month)
        at = epoch(int(year), number, int(day)) if number else 0.0
        return at + _of_day(clock) - self.offset if at else 0.0

    def _infer(self, month: int, day: int) -> float:
        """The latest such day that had begun when the log was written (a day's grace for clocks and zones)."""
        if not month:
            return 0.0
        year = time.gmtime(self.reference + self.offset).tm_year
        for candidate in (year + 1, year, year - 1, year - 2, year - 3, year - 4):  # 29 February needs the way back
            at = epoch(candidate, month, day)
            if at and at - self.offset <= self._latest:
                return at - self.offset
        return 0.0

    def joined(self, node: str, uptime: float, at: float) -> None:
        """A line of `node` showed both its kernel seconds and wall time: later lines with one have both."""
        self.uptime(node, uptime)
        offset = at - uptime
        known = self._boots.get(node)
        # A syslog daemon stamps the early lines of a boot when it starts: the smallest difference is the true one.
        # One much larger is another boot.
        if known is None or offset < known or offset - known > DAY:
            self._boots[node] = offset

    def booted(self, node: str) -> None:
        """A new boot of `node` begins: what was known of its kernel seconds is void."""
        self._boots.pop(node, None)
        self._last.pop(node, None)

    def uptime(self, node: str, seconds: float) -> float:
        """Wall time of kernel seconds of `node`, 0.0 while no line has joined the two."""
        if self.pinned is not None:
            return self.pinned + seconds
        if seconds + 60 < self._last.get(node, 0.0):  # it ran backwards: a reboot whose first line is not here
            self.booted(node)
        self._last[node] = seconds
        offset = self._boots.get(node)
        return 0.0 if offset is None else offset + seconds


def _keep(cache: dict[str, float], key: str, value: float) -> float:
    if len(cache) > 256:
        cache.clear()
    cache[key] = value
    return value


def _of_day(clock: str) -> int:
    return int(clock[:2]) * 3600 + int(clock[3:5]) * 60 + int(clock[6:8])


def _midnight(day: str) -> float:
    return epoch(int(day[:4]), int(day[5:7]), int(day[8:]))


def _zone(text: str) -> float:
    digits = text[1:].replace(":", "")
    seconds = int(digits[:2]) * 3600.0 + int(digits[2:4] or 0) * 60.0
    return -seconds if text[0] == "-" else seconds
