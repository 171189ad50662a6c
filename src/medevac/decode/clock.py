"""The source's own time, in UTC, from what a log prefix says; never the time of reading.

A syslog date has no year: it is the one nearest to the last date of the log that has one; before there is any, the
latest that does not lie after `reference` (when the log was last written). Kernel seconds become wall time once a line
of the same boot shows both. 0.0 stands for "not known".
"""

from __future__ import annotations

import datetime as dt
import time

DAY = 86400.0
HALF_YEAR_S = 183 * DAY

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
    """Reads the times of one log.

    `offset` is what its local time is ahead of UTC, in seconds; 0.0: that of the last date that shows its zone.
    `near`: a full date of another log of the same archive, 0.0 for none.
    """

    def __init__(self, reference: float | None = None, offset: float = 0.0, near: float = 0.0) -> None:
        self._near = near
        self._reference = time.time() if reference is None else reference
        self.offset = offset
        self._zone_given = bool(offset)
        self.dated_at = 0.0
        """The last time that a date with its year gave, or that was inferred from one."""
        self._fresh = 0.0
        self.guessed = 0.0
        """The last time whose year is only a guess."""
        self._days: dict[str, float] = {}
        self._seconds: dict[str, float] = {}  # a storm has many lines a second
        self.dates: dict[str, float] = {}  # of the kernel's lines seen last, as they stand before the host
        self.hosts: dict[str, str] = {}
        self._guess_offset = offset
        self._boots: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self.pinned: float | None = None  # wall time of kernel second 0, where the machine itself told it

    @property
    def reference(self) -> float:
        """Unix time before which the log was written; moved on where a log is followed."""
        return self._reference

    @reference.setter
    def reference(self, value: float) -> None:
        if abs(value - self._reference) > DAY:
            self._forget()
            self._reference = value

    def _forget(self) -> None:
        self._days.clear()
        self._seconds.clear()
        self.dates.clear()

    def note(self, at: float, ahead: float = 0.0) -> None:
        """A line of the log has the full date `at`, in a zone that is `ahead` of UTC: it tells the year of others."""
        if ahead and ahead != self.offset and not self._zone_given:
            self.offset = ahead
            self._forget()
        first = not self.dated_at
        self._move(at)
        if first and self.guessed:
            moved = self.again(self.guessed) - self.guessed
            self._boots = {node: boot + moved for node, boot in self._boots.items()}

    def _move(self, at: float) -> None:
        """The log has come to `at`: what was remembered half a year before may be another year's."""
        if abs(at - self._fresh) > HALF_YEAR_S:
            self._forget()
            self._fresh = at
        self.dated_at = at

    def again(self, guess: float) -> float:
        """A time that was given while `guessed`, by what the log has said since about year and zone."""
        local = guess + self._guess_offset
        day = time.gmtime(local)
        return self._nearest(day.tm_mon, day.tm_mday, self.dated_at) + local % DAY

    def keep_prefix(self, date: str, at: float, host: str) -> None:
        """Remember what `date` and `host`, all before ` kernel: ` of a line, stand for."""
        _keep(self.dates, date, at)
        if len(self.hosts) > 4096:
            self.hosts.clear()
        self.hosts[host] = host

    def iso(self, seconds: str, fraction: str | None, zone: str | None) -> float:
        """`2025-01-21T04:41:44`, `.283302` or `,283302`, `Z`, `UTC`, `+00:00`, `+0800`; with none, or the name
        of another zone, the log's own.
        """
        base = self._seconds.get(seconds)
        if base is None:
            day = seconds[:10]
            base = self._days.get(day)
            if base is None:
                base = _keep(self._days, day, _midnight(day))
            base = _keep(self._seconds, seconds, base and base + _of_day(seconds[11:]))
            if base:
                ahead = _zone(zone) or 0.0
                self.note(base - ahead, ahead)
        if not base:
            return 0.0
        if fraction:
            base += float("0." + fraction[1:])
        if not zone:
            return base - self.offset
        if zone in {"Z", "+00:00"}:
            return base
        shown = _zone(zone)
        return base - (self.offset if shown is None else shown)

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
        if not at:
            return 0.0
        at += _of_day(clock) - self.offset
        self.note(at)
        return at

    def _infer(self, month: int, day: int) -> float:
        """The beginning of such a day: nearest to the last full date, else the latest before the log was written."""
        if not month:
            return 0.0
        if self.dated_at:
            at = self._nearest(month, day, self.dated_at)
            if at:
                self._move(at)
            return at
        if self._near:
            at = self._nearest(month, day, self._near)
        else:  # a day's grace for clocks and zones
            at = next((one for one in self._days_of(month, day, self.reference) if one <= self.reference + DAY), 0.0)
        self.guessed, self._guess_offset = at, self.offset
        return at

    def _nearest(self, month: int, day: int, near: float) -> float:
        return min(self._days_of(month, day, near), key=lambda one: abs(one - near), default=0.0)

    def _days_of(self, month: int, day: int, near: float) -> list[float]:
        """When such a day began in the year after `near`, in its year and in those before, the latest first."""
        year = time.gmtime(near + self.offset).tm_year
        years = range(year + 1, year - 5, -1)  # 29 February needs the way back
        return [at - self.offset for one in years if (at := epoch(one, month, day))]

    def joined(self, node: str, uptime: float, at: float) -> None:
        """A line of `node` showed both its kernel seconds and wall time: later lines with one have both."""
        self._passed(node, uptime)
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
        self._passed(node, seconds)
        offset = self._boots.get(node)
        return 0.0 if offset is None else offset + seconds

    def _passed(self, node: str, seconds: float) -> None:
        if seconds + 60 < self._last.get(node, 0.0):  # it ran backwards: a reboot whose first line is not here
            self.booted(node)
        self._last[node] = seconds


def _keep(cache: dict[str, float], key: str, value: float) -> float:
    if len(cache) > 256:
        cache.clear()
    cache[key] = value
    return value


def _of_day(clock: str) -> int:
    return int(clock[:2]) * 3600 + int(clock[3:5]) * 60 + int(clock[6:8])


def _midnight(day: str) -> float:
    return epoch(int(day[:4]), int(day[5:7]), int(day[8:]))


def _zone(text: str | None) -> float | None:
    """Seconds ahead of UTC; None where the text does not say."""
    if text in {"Z", "UTC", "GMT"}:
        return 0.0
    if not text or text[0] not in "+-":
        return None
    digits = text[1:].replace(":", "")
    seconds = int(digits[:2]) * 3600.0 + int(digits[2:4] or 0) * 60.0
    return -seconds if text[0] == "-" else seconds
