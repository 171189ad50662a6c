"""Where events come from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from medevac.core.events import AnyEvent


class Source(Protocol):
    """One stream of observations.

    Each event carries an `id` that the source gives it again after a restart, so nothing is lost or taken twice: a
    source starts from `cursor` (what it said with the last event that was stored, "" at first).
    """

    name: str

    def follow(self, cursor: str) -> AsyncIterator[tuple[AnyEvent, str]]:
        """Events for ever, each with the cursor to go on from. Raises `Unavailable` when the source cannot be read."""
        ...
