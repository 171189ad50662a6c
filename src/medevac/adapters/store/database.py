"""One SQLite file as a store: opening, checking, migrating, and what its errors mean for the caller.

Everything here blocks; `sqlite.py` runs it in a thread of its own.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from medevac.adapters.store.schema import APPLICATION_ID, REVISIONS, stores
from medevac.ports.errors import BadReply, ConfigError, PortError, Unavailable, UnreadableError

BUSY_S = 5.0
"""How long a call waits for another process's transaction; one of ours lasts milliseconds."""

_RETRY = {
    sqlite3.SQLITE_PERM: "not permitted",
    sqlite3.SQLITE_BUSY: "locked by another process",
    sqlite3.SQLITE_LOCKED: "locked",
    sqlite3.SQLITE_NOMEM: "out of memory",
    sqlite3.SQLITE_READONLY: "read-only",
    sqlite3.SQLITE_IOERR: "disk error",
    sqlite3.SQLITE_FULL: "disk full",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened",
}
"""Primary result codes after which the same call may succeed later; all others mean that the file is bad."""


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Database errors as those of the ports, naming the file."""
    try:
        yield
    except DBAPIError as error:
        raise _meaning(path, error.orig or error) from error
    except sqlite3.Error as error:
        raise _meaning(path, error) from error
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}") from error


def _meaning(path: Path, error: BaseException) -> PortError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _RETRY:
        return Unavailable(f"{path}: {_RETRY[code]} ({error})")
    return BadReply(f"{path}: is no readable store ({error}); move it away or restore a backup")


def connect(path: Path, mode: str) -> Engine:
    """An engine with one connection. `mode` is SQLite's: rwc makes the file, rw needs it, ro only reads.

    Transactions are opened by us: Python's own way would leave reads and schema changes outside of them.
    """

    def dial() -> sqlite3.Connection:
        link = sqlite3.connect(
            _uri(path, mode), uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        link.execute("PRAGMA synchronous = FULL")
        return link

    engine = create_engine("sqlite://", creator=dial, poolclass=StaticPool)

    @event.listens_for(engine, "begin")
    def begin(link: Connection) -> None:
        link.exec_driver_sql("BEGIN IMMEDIATE" if link.get_execution_options().get("writes") else "BEGIN")

    return engine


def open_writer(path: Path, *, create: bool) -> tuple[Engine, str]:
    """A store to append to, and its identity; made or brought to the newest schema where need be.

    Raises `ConfigError` (no store there and not `create`, no store of ours, a newer schema), `Unavailable`.
    """
    if create:
        _make_folder(path.parent)
    elif not path.is_file():
        raise _missing(path)
    engine = connect(path, "mode=rwc" if create else "mode=rw")
    with _kept(engine), _bad_file(path, ConfigError), translated(path), _alone(path.parent):
        _prepare(engine, path)
        return engine, _identity(engine)


def open_reader(path: Path) -> tuple[Engine, str]:
    """A store to read from, and its identity; makes nothing that stays.

    A folder that this user cannot write, with no writer at work, is read as the plain file it is. Raises
    `ConfigError` (no store there, no store of ours, another schema), `UnreadableError`, `Unavailable`.
    """
    if not path.is_file():
        raise _missing(path)
    wal = path.with_name(path.name + "-wal")
    lone = not wal.exists() and not os.access(path.parent, os.W_OK)
    engine = connect(path, "mode=ro&immutable=1" if lone else "mode=ro")
    with _kept(engine), _bad_file(path, UnreadableError), translated(path):
        with engine.begin() as link:
            _check(link, path, need_newest=True)
        return engine, _identity(engine)


class Pulse:
    """A number that changes with each commit of any process, so that a waiting loop need not query the log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._link: sqlite3.Connection | None = None

    def read(self) -> int | None:
        """Never blocks; None where it cannot be told now."""
        try:
            if self._link is None:
                self._link = sqlite3.connect(_uri(self._path, "mode=ro"), uri=True, timeout=0, isolation_level=None)
            return int(self._link.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            self.close()
            return None

    def close(self) -> None:
        """Let go of the file; must come before the store's own connection, which then tidies up as the last one."""
        if self._link is not None:
            self._link.close()
            self._link = None


def _identity(engine: Engine) -> str:
    with engine.begin() as link:
        return str(link.execute(select(stores.c.identity)).scalar_one())


def revision(link: Connection) -> str | None:
    """The schema the file is of, None for an empty file."""
    if not link.exec_driver_sql("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").first():
        return None
    row = link.exec_driver_sql("SELECT version_num FROM alembic_version").first()
    return str(row[0]) if row else None


def _prepare(engine: Engine, path: Path) -> None:
    """Check the file, switch it to WAL and migrate it; killed at any point, the next opening goes on from there."""
    with engine.begin() as link:
        _check(link, path, empty_is_fine=True)
        current = revision(link)
    with engine.connect() as link:
        raw = link.connection.dbapi_connection
        assert raw is not None
        raw.execute("PRAGMA journal_mode = WAL")
    if current != REVISIONS[-1]:
        with engine.execution_options(writes=True).begin() as link:
            _migrate(link)


def _migrate(link: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = link
    command.upgrade(config, "head")


def _check(link: Connection, path: Path, *, empty_is_fine: bool = False, need_newest: bool = False) -> None:
    mark = link.exec_driver_sql("PRAGMA application_id").scalar()
    tables = link.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar()
    if empty_is_fine and not tables and mark == 0:
        return
    if mark != APPLICATION_ID:
        raise ConfigError(str(path), "is not a Medevac store; name another folder with --state-dir")
    schema = revision(link)
    if schema not in REVISIONS:
        raise ConfigError(str(path), f"has schema {schema}, newer than {REVISIONS[-1]} of this Medevac; upgrade it")
    if need_newest and schema != REVISIONS[-1]:
        raise ConfigError(str(path), f"has the older schema {schema}; `medevac run` brings it up to date")


@contextmanager
def _kept(engine: Engine) -> Iterator[None]:
    """The file is let go of unless all goes well."""
    with ExitStack() as stack:
        stack.callback(engine.dispose)
        yield
        stack.pop_all()


@contextmanager
def _bad_file(path: Path, kind: type[ConfigError]) -> Iterator[None]:
    """A bad file is, while opening, a path that the user got wrong, or an input that cannot be read."""
    try:
        yield
    except BadReply as error:
        raise kind(str(path), str(error).removeprefix(f"{path}: ")) from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else makes or migrates a store in this folder meanwhile."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            str(folder), f"cannot be made: {error.strerror}; name another folder with --state-dir"
        ) from error


def _uri(path: Path, mode: str) -> str:
    return f"file:{quote(str(path))}?{mode}"


def _missing(path: Path) -> ConfigError:
    return ConfigError(str(path), "no store here; name its folder with --state-dir, or start one with `medevac run`")
