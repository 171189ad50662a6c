"""The store on SQLite: WAL, every commit synced, one thread that owns the connection.

One thread, because SQLite takes one writer at a time anyway, and a loop that waits for a disk must not stand still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeAlias, TypeVar, cast

from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.dialects.sqlite import insert

from medevac.adapters.store import database
from medevac.adapters.store.codec import decode, encode
from medevac.adapters.store.schema import cursors, records
from medevac.core.decision import Decision
from medevac.core.events import AnyEvent
from medevac.ports.errors import Unavailable
from medevac.ports.store import DecisionRecord, EventRecord, Record

POLL_S = 0.05
"""How late, at most, a record of another process is noticed; one look costs microseconds."""

T = TypeVar("T")
_Row: TypeAlias = dict[str, str | None]

_add_record = insert(records).on_conflict_do_nothing()
_add_cursor = insert(cursors)
_set_cursor = _add_cursor.on_conflict_do_update(index_elements=["source"], set_={"value": _add_cursor.excluded.value})
_head = select(func.coalesce(func.max(records.c.seq), 0))
_rows = select(records.c.seq, records.c.kind, records.c.body).order_by(records.c.seq)


class SqliteStore:
    """`medevac.ports.store.Store` in one file. Several processes may have it open, all of them appending."""

    def __init__(self, path: Path, engine: Engine, identity: str, *, readonly: bool) -> None:
        """Use `open` or `read`."""
        self.identity = identity
        """Given when the store was made: tells its writings from another store's."""
        self.path = path
        self._engine = engine
        self._writing = None if readonly else engine.execution_options(writes=True)
        self._file = _file_id(path)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._grown = asyncio.Event()
        self._pulse = database.Pulse(path)
        self._closed = False

    @classmethod
    def open(cls, path: str | Path, *, create: bool = True) -> Self:
        """Open for appending; with `create` the folder and file are made where they are missing.

        Raises `ConfigError` (not `create` and nothing there; no store of ours; of a newer schema), `Unavailable`.
        """
        file = Path(path)
        return cls(file, *database.open_writer(file, create=create), readonly=False)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Open for reading only; makes and changes nothing. Raises as `open`."""
        file = Path(path)
        return cls(file, *database.open_reader(file), readonly=True)

    async def append_events(
        self, events: Sequence[AnyEvent], *, cursor: tuple[str, str] | None = None
    ) -> tuple[EventRecord, ...]:
        rows: list[_Row] = [{"kind": "event", "id": event.id or None, "body": encode(event)} for event in events]
        if not rows and not cursor:
            return ()
        return cast("tuple[EventRecord, ...]", await self._write(lambda link: _append(link, rows, cursor)))

    async def append_decision(self, decision: Decision) -> DecisionRecord:
        row: _Row = {"kind": "decision", "id": decision.id, "body": encode(decision)}

        def write(link: Connection) -> DecisionRecord:
            _append(link, [row], None)
            same = (records.c.kind == "decision") & (records.c.id == decision.id)
            return cast("DecisionRecord", decode(*link.execute(_rows.where(same)).one()))

        return await self._write(write)

    async def records(self, *, after: int = 0, limit: int = 1000) -> tuple[Record, ...]:
        return await self._run(self._engine, lambda link: _read(link, after, limit))

    async def wait(self, after: int, timeout_s: float) -> None:
        """Woken at once by this object's own appends, within `POLL_S` by those of other processes."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        looked_at: int | None = None
        while True:
            self._grown.clear()
            pulse = self._pulse.read()
            if pulse is None or pulse != looked_at:
                looked_at = pulse
                if await self._run(self._engine, lambda link: int(link.execute(_head).scalar_one())) > after:
                    return
            left = until - loop.time()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self._grown.wait(), min(POLL_S, left))
            except TimeoutError:
                continue

    async def cursor(self, source: str) -> str:
        wanted = select(cursors.c.value).where(cursors.c.source == source)
        return await self._run(self._engine, lambda link: link.execute(wanted).scalar()) or ""

    async def close(self) -> None:
        """Let go of the file, after what was begun; harmless when repeated."""
        if not self._closed:
            self._closed = True
            self._pulse.close()
            await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.dispose)
            self._thread.shutdown(wait=False)

    async def _write(self, work: Callable[[Connection], T]) -> T:
        if self._writing is None:
            raise Unavailable(f"{self.path}: opened for reading only")
        if _file_id(self.path) != self._file:
            raise Unavailable(f"{self.path}: was removed or replaced under us; start again")
        result = await self._run(self._writing, work)
        self._grown.set()
        return result

    async def _run(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        """One transaction in the store's thread."""

        def transaction() -> T:
            with database.translated(self.path), engine.begin() as link:
                return work(link)

        if self._closed:
            raise Unavailable(f"{self.path}: the store was closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, transaction)


def read_all(path: Path) -> Iterator[Record]:
    """All records of a store's file, in order, for one who does not wait for more. Raises as `SqliteStore.read`."""
    engine, _ = database.open_reader(path)
    try:
        with database.translated(path), engine.begin() as link:
            last = 0
            while chunk := _read(link, last, 10_000):
                yield from chunk
                last = chunk[-1].seq
    finally:
        engine.dispose()


def _append(link: Connection, rows: list[_Row], cursor: tuple[str, str] | None) -> tuple[Record, ...]:
    """Add what is not there yet; the write lock is ours, so all that is above the old head is what was added."""
    head = int(link.execute(_head).scalar_one())
    if rows:
        link.execute(_add_record, rows)
    if cursor:
        link.execute(_set_cursor, {"source": cursor[0], "value": cursor[1]})
    return _read(link, head, len(rows))


def _read(link: Connection, after: int, limit: int) -> tuple[Record, ...]:
    rows = link.execute(_rows.where(records.c.seq > after).limit(limit))
    return tuple(decode(*row) for row in rows)


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
