"""What a job's ranks print: `rank<k>.log` of each attempt, line by line through a parser."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from medevac.adapters.clock import SystemClock
from medevac.adapters.sources.tail import Line, Tail
from medevac.core.events import AnyEvent
from medevac.ports.clock import Clock
from medevac.ports.errors import Unavailable

POLL_SECONDS = 0.2


class Printed(NamedTuple):
    """One line of one rank's output; `seen_at` when it was read."""

    job: str
    attempt: int
    rank: int
    text: str
    seen_at: float


Parser = Callable[[Printed], AnyEvent | None]
"""Makes an event of a line, or None. Its `at` may be the line's `seen_at`; `id` and `source` are given here."""


class JobOutput:
    """Follows all ranks of a job's attempts in `<job folder>/attempts/`; older attempts are left when a newer is there
    and they are read to their end.
    """

    def __init__(self, job_folder: Path, parse: Parser, *, clock: Clock | None = None) -> None:
        self.name = f"{job_folder.name}/output"
        self._folder = job_folder
        self._job = job_folder.name
        self._parse = parse
        self._clock = clock or SystemClock()
        self._tails: dict[Path, Tail] = {}

    async def follow(self, cursor: str) -> AsyncIterator[tuple[AnyEvent, str]]:
        """The cursor is JSON: the place in each log of the attempts that are followed."""
        places = msgspec.json.decode(cursor, type=dict[str, str]) if cursor else {}
        try:
            while True:
                quiet = True
                for path in self._logs(places):
                    for line in self._tail(path, places).read():
                        quiet = False
                        places[_key(path)] = line.cursor
                        if event := self._event(path, line):
                            yield event, msgspec.json.encode(places).decode()
                if quiet:
                    self._forget(places)
                    await self._clock.sleep(POLL_SECONDS)
        except OSError as problem:
            raise Unavailable(f"{problem.filename or self._folder}: {problem.strerror}") from problem
        finally:
            for tail in self._tails.values():
                tail.close()
            self._tails.clear()

    def _logs(self, places: dict[str, str]) -> Iterator[Path]:
        """Logs of the attempts from the oldest one that is still followed."""
        oldest = min((int(key.partition("/")[0]) for key in places), default=0)
        found = list((self._folder / "attempts").glob("*/rank*.log"))
        found = [path for path in found if path.parent.name.isdecimal() and int(path.parent.name) >= oldest]
        yield from sorted(found, key=lambda path: (int(path.parent.name), _rank(path)))

    def _tail(self, path: Path, places: dict[str, str]) -> Tail:
        if path not in self._tails:
            self._tails[path] = Tail(path, places.get(_key(path), ""))
        return self._tails[path]

    def _forget(self, places: dict[str, str]) -> None:
        """All is read: only the newest attempt with output, and the one before it, may still say something."""
        numbers = sorted({int(key.partition("/")[0]) for key in places})[:-2]
        for key in [key for key in places if int(key.partition("/")[0]) in numbers]:
            del places[key]
            path = self._folder / "attempts" / f"{key}.log"
            if tail := self._tails.pop(path, None):
                tail.close()

    def _event(self, path: Path, line: Line) -> AnyEvent | None:
        attempt, rank = int(path.parent.name), _rank(path)
        text = line.text.decode("utf-8", "replace").rstrip("\r")
        now = self._clock.now()
        event = self._parse(Printed(self._job, attempt, rank, text, now))
        if event is None:
            return None
        key = f"{self._job}/{attempt}/rank{rank}:{line.key}"
        return msgspec.structs.replace(event, id=key, source=self.name, seen_at=now)


def _rank(path: Path) -> int:
    digits = path.stem.removeprefix("rank")
    return int(digits) if digits.isdecimal() else 0


def _key(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"
