"""Telling a person."""

from __future__ import annotations

from typing import Protocol

from medevac.core.actions import Page


class Notifier(Protocol):
    """Raises `Unavailable` when nobody could be told."""

    async def page(self, action: Page) -> None: ...
