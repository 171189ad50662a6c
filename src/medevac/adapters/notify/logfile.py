"""Pages as JSON lines of a file."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from medevac.core.actions import Page
from medevac.ports.errors import Unavailable


class LogNotifier:
    """Appends `{"at", "level", "text", "action"}` per page; durable when it returns."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def page(self, action: Page) -> None:
        line = {"at": time.time(), "level": action.level, "text": action.text, "action": action.id}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as out:
                out.write(msgspec.json.encode(line) + b"\n")
        except OSError as problem:
            raise Unavailable(f"{self._path}: the page could not be written: {problem.strerror}") from problem
