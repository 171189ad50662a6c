"""What the ranks print, passed on as it comes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 20


class Output:
    """The output of all attempts in `folder` (`attempts/<n>/rank<k>.log`), whole lines, each with `[rank] ` in front
    where there are several ranks.
    """

    def __init__(self, folder: Path, out: BinaryIO, *, several: bool, from_now: bool = False) -> None:
        self._folder = folder
        self._out = out
        self._several = several
        self._places = {path: path.stat().st_size for path in self._logs()} if from_now else {}
        self._broken = False

    def pass_on(self, *, last: bool = False) -> None:
        """Print what is new; with `last` also a line without an end. A reader that went away is let go."""
        for path in self._logs():
            if self._broken:
                return
            try:
                self._out.writelines(self._new(path, last=last))
                self._out.flush()
            except OSError:
                self._broken = True

    def _logs(self) -> list[Path]:
        found = [path for path in self._folder.glob("attempts/*/rank*.log") if path.stem[4:].isdecimal()]
        return sorted(found, key=lambda path: (int(path.parent.name), int(path.stem[4:])))

    def _new(self, path: Path, *, last: bool) -> Iterator[bytes]:
        place = self._places.get(path, 0)
        prefix = f"[{path.stem[4:]}] ".encode() if self._several else b""
        with path.open("rb") as log:
            log.seek(place)
            while text := log.read(CHUNK):
                whole = text[: text.rfind(b"\n") + 1] or (text if last or len(text) == CHUNK else b"")
                for line in whole.splitlines(keepends=True):
                    yield prefix + line
                place += len(whole)
                if not whole:
                    break
                log.seek(place)
        self._places[path] = place
