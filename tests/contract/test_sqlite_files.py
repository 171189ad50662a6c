"""What SQLite's store promises about its file: opening, reading, several processes, and disks that say no."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from medevac.adapters.store import database
from medevac.adapters.store.schema import APPLICATION_ID, REVISIONS
from medevac.adapters.store.sqlite import SqliteStore
from medevac.core.decision import Decision
from medevac.ports.errors import BadReply, ConfigError, Unavailable
from medevac.testing.store_contract import LONG_S, fault


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "medevac.db"


async def fill(path: Path, *ids: str) -> None:
    store = SqliteStore.open(path)
    await store.append_events([fault(id_) for id_ in ids])
    await store.close()


def snapshot(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


async def ids(store: SqliteStore) -> list[str]:
    return [record.event.id for record in await store.records()]  # type: ignore[union-attr]


async def test_all_is_there_after_opening_again(path: Path) -> None:
    first = SqliteStore.open(path)
    taken = await first.append_events([fault("a")], cursor=("log", "7"))
    decision = await first.append_decision(Decision(id="d", cause=1, at=1.0))
    await first.close()
    second = SqliteStore.open(path, create=False)
    assert await second.records() == (*taken, decision)
    assert await second.cursor("log") == "7"
    assert second.identity == first.identity
    assert await second.append_events([fault("a")]) == ()
    await second.close()
    assert [file.name for file in path.parent.iterdir()] == ["medevac.db"]


async def test_two_stores_have_two_identities(tmp_path: Path) -> None:
    stores = [SqliteStore.open(tmp_path / name / "medevac.db") for name in "ab"]
    assert stores[0].identity != stores[1].identity
    for store in stores:
        await store.close()


def test_the_schemas_we_read_are_the_migrations_we_have() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(database.__file__).parent / "migrations"))
    scripts = ScriptDirectory.from_config(config)
    assert [script.revision for script in scripts.walk_revisions()][::-1] == list(REVISIONS)


async def test_the_file_is_as_the_page_says(path: Path) -> None:
    await fill(path, "a")
    with closing(sqlite3.connect(path)) as link:
        assert link.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert link.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert link.execute("SELECT seq, kind, id, json_extract(body, '$.code') FROM record").fetchall() == [
            (1, "event", "a", 63)
        ]


async def test_commits_are_synced(path: Path) -> None:
    store = SqliteStore.open(path)
    link = store._engine.raw_connection()
    cursor = link.cursor()
    assert cursor.execute("PRAGMA synchronous").fetchone() == (2,)
    cursor.close()
    link.close()
    await store.close()


OPENERS: list[Callable[[Path], SqliteStore]] = [SqliteStore.read, lambda path: SqliteStore.open(path, create=False)]


@pytest.mark.parametrize("opener", OPENERS)
def test_a_reader_makes_nothing(tmp_path: Path, opener: Callable[[Path], SqliteStore]) -> None:
    for path in (tmp_path / "none" / "medevac.db", tmp_path / "medevac.db"):
        with pytest.raises(ConfigError, match=r"medevac\.db: no store here; .*--state-dir"):
            opener(path)
    assert list(tmp_path.iterdir()) == []


def no_database(path: Path) -> None:
    path.write_text("this is a letter to my aunt\n" * 100)


def another_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as link:
        link.execute("CREATE TABLE record (aunt TEXT)")


def torn_header(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 50)


@pytest.mark.parametrize("opener", [*OPENERS, SqliteStore.open])
@pytest.mark.parametrize("make", [no_database, another_database, torn_header])
def test_what_is_no_store_of_ours_is_said_and_left_alone(
    tmp_path: Path, make: Callable[[Path], None], opener: Callable[[Path], SqliteStore]
) -> None:
    path = tmp_path / "medevac.db"
    make(path)
    before = snapshot(tmp_path)
    with pytest.raises(ConfigError, match=r"medevac\.db: is no(t a Medevac| readable) store") as error:
        opener(path)
    assert "\n" not in str(error.value)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("opener", [*OPENERS, SqliteStore.open])
async def test_a_newer_schema_is_said_and_left_alone(path: Path, opener: Callable[[Path], SqliteStore]) -> None:
    await fill(path, "a")
    with closing(sqlite3.connect(path)) as link, link:
        link.execute("UPDATE alembic_version SET version_num = '0999'")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="has schema 0999, newer than 0001"):
        opener(path)
    assert path.read_bytes() == before


async def test_an_empty_file_is_a_store_that_was_not_begun(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    with pytest.raises(ConfigError, match="is not a Medevac store"):
        SqliteStore.read(path)
    await fill(path, "a")
    store = SqliteStore.read(path)
    assert await ids(store) == ["a"]
    await store.close()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file/state: cannot be made: "):
        SqliteStore.open(tmp_path / "file" / "state" / "medevac.db")


async def test_reading_beside_a_writer(path: Path) -> None:
    writer = SqliteStore.open(path)
    reader = SqliteStore.read(path)
    waiting = asyncio.create_task(reader.wait(0, LONG_S * 100))
    await writer.append_events([fault("a")])
    await asyncio.wait_for(waiting, LONG_S)
    assert await ids(reader) == ["a"]
    with pytest.raises(Unavailable, match="reading only"):
        await reader.append_events([fault("b")])
    await reader.close()
    await writer.append_events([fault("b")])
    await writer.close()


async def test_two_objects_share_one_file(path: Path) -> None:
    one, two = SqliteStore.open(path), SqliteStore.open(path)
    for i in range(20):
        await asyncio.gather(one.append_events([fault(f"{i}")]), two.append_events([fault(f"{i}"), fault(f"two-{i}")]))
    records = await one.records()
    assert [record.seq for record in records] == list(range(1, 41))
    assert await two.records() == records
    waiting = asyncio.create_task(one.wait(40, LONG_S * 100))
    await two.append_events([fault("last")])
    await asyncio.wait_for(waiting, LONG_S)
    await one.close()
    await two.close()


async def test_a_locked_store_takes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.1)
    store = SqliteStore.open(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match=r"medevac\.db: locked by another process"):
            await store.append_events([fault("a")], cursor=("log", "1"))
        assert await store.records() == ()
        other.execute("ROLLBACK")
    assert len(await store.append_events([fault("a")])) == 1
    await store.close()


async def test_a_store_that_was_removed_or_replaced_takes_nothing(path: Path) -> None:
    store = SqliteStore.open(path)
    path.rename(path.with_name("moved.db"))
    with pytest.raises(Unavailable, match="removed or replaced"):
        await store.append_events([fault("a")])
    path.touch()
    with pytest.raises(Unavailable, match="removed or replaced"):
        await store.append_decision(Decision(id="d", cause=1, at=1.0))
    await store.close()


async def test_a_closed_store_says_so(path: Path) -> None:
    store = SqliteStore.open(path)
    await store.close()
    with pytest.raises(Unavailable, match="was closed"):
        await store.records()


@pytest.fixture
def file_limit() -> Iterator[Callable[[int], None]]:
    """Set the size that a file of this process may reach: what SQLite then meets is what a full disk gives it."""
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


async def test_a_full_disk_takes_nothing_and_goes_on_when_there_is_room(
    path: Path, file_limit: Callable[[int], None]
) -> None:
    store = SqliteStore.open(path)
    kept: list[str] = []

    async def fill_up() -> None:
        for batch in range(1000):
            names = [f"{batch}-{i}" for i in range(200)]
            await store.append_events([fault(name) for name in names], cursor=("log", str(batch)))
            kept.extend(names)

    file_limit(300_000)
    with pytest.raises(Unavailable, match=r"medevac\.db: disk"):
        await fill_up()
    assert kept
    batches = len(kept) // 200
    assert [record.seq for record in await store.records(limit=10**6)] == list(range(1, len(kept) + 1))
    assert await store.cursor("log") == str(batches - 1)
    file_limit(resource.RLIM_INFINITY)
    assert len(await store.append_events([fault(f"{batches}-{i}") for i in range(200)])) == 200
    await store.close()
    reader = SqliteStore.read(path)
    assert len(await reader.records(limit=10**6)) == len(kept) + 200
    await reader.close()


def test_a_disk_that_is_full_at_the_beginning(path: Path, file_limit: Callable[[int], None]) -> None:
    path.parent.mkdir()
    file_limit(2000)
    with pytest.raises(Unavailable, match=r"medevac\.db: disk"):
        SqliteStore.open(path)
    file_limit(resource.RLIM_INFINITY)
    assert SqliteStore.open(path).identity


def damage(path: Path, page: int) -> None:
    with path.open("r+b") as fh:
        fh.seek(4096 * page)
        fh.write(b"\xa5" * 4096 * 20)


async def test_damage_is_said(path: Path) -> None:
    await fill(path, *(str(i) for i in range(2000)))
    damage(path, 30)
    store = SqliteStore.open(path)
    with pytest.raises(BadReply, match=r"medevac\.db: is no readable store .*backup"):
        await store.records(limit=10**6)
    await store.close()
    damage(path, 1)
    for opener in (SqliteStore.open, SqliteStore.read):
        with pytest.raises(ConfigError, match=r"medevac\.db: is no readable store .*backup"):
            opener(path)


async def test_a_record_of_a_newer_version_is_said(path: Path) -> None:
    await fill(path, "a")
    with closing(sqlite3.connect(path)) as link, link:
        link.execute('INSERT INTO record VALUES (2, \'event\', NULL, \'{"type": "MeteorSeen", "at": 1}\')')
    store = SqliteStore.read(path)
    assert len(await store.records(limit=1)) == 1
    with pytest.raises(BadReply, match=r"record 2 cannot be read .*MeteorSeen.* newer Medevac"):
        await store.records()
    await store.close()


AS_NOBODY = """
import asyncio, os, sys
from medevac.adapters.store.sqlite import SqliteStore
from medevac.ports.errors import Unavailable
from medevac.testing.store_contract import fault

async def main():
    store = SqliteStore.read(sys.argv[1])
    print(len(await store.records()))
    await store.wait(1, 0.2)
    await store.close()
    if sys.argv[2:]:
        store = SqliteStore.open(sys.argv[1], create=False)
        try:
            await store.append_events([fault("mine")])
        except Unavailable as error:
            print(error)
        await store.close()

# After the imports: the interpreter may live where only root may read.
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
asyncio.run(main())
"""


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that another user may enter and read (pytest's own are private)."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    folder = Path("/tmp") / f"medevac-test-{os.getpid()}"
    folder.mkdir(mode=0o755)
    yield folder
    shutil.rmtree(folder)


def as_nobody(path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", AS_NOBODY, str(path), *more]
    environment = os.environ | {"PYTHONPATH": str(Path(database.__file__).parents[3])}
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, env=environment)


@pytest.mark.parametrize("while_open", [True, False])
async def test_another_user_may_read_and_not_write(open_to_all: Path, while_open: bool) -> None:
    path = open_to_all / "medevac.db"
    store = SqliteStore.open(path)
    await store.append_events([fault("a")])
    if not while_open:
        await store.close()
    before = {file.name for file in open_to_all.iterdir()}
    done = await asyncio.to_thread(as_nobody, path)
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert {file.name for file in open_to_all.iterdir()} == before
    await store.close()


async def test_a_read_only_file_takes_nothing(open_to_all: Path) -> None:
    path = open_to_all / "medevac.db"
    await fill(path, "a")
    open_to_all.chmod(0o777)
    done = await asyncio.to_thread(as_nobody, path, "write")
    assert done.stdout.splitlines()[0] == "1"
    assert "read-only" in done.stdout + done.stderr
    open_to_all.chmod(0o755)
    store = SqliteStore.read(path)
    assert await ids(store) == ["a"]
    await store.close()
