"""The stores against their contract, and SQLite's own promises about files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from medevac.adapters.store.memory import MemoryStore
from medevac.adapters.store.sqlite import SqliteStore
from medevac.testing.store_contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    async def store(self) -> MemoryStore:
        return MemoryStore()


class TestSqliteStore(StoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[SqliteStore]:
        store = SqliteStore.open(tmp_path / "state of ü?%#" / "medevac.db")
        yield store
        await store.close()
