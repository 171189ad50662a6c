"""A log as JSON lines: what is written loads again, and a bad line is named."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medevac.adapters.store.jsonl import dump, load
from medevac.adapters.store.memory import MemoryStore
from medevac.adapters.store.sqlite import SqliteStore
from medevac.core.actions import Isolate
from medevac.core.decision import Decision
from medevac.ports.errors import ConfigError
from medevac.ports.store import Store
from medevac.testing.store_contract import fault


async def filled(store: Store) -> Store:
    taken = await store.append_events([fault(f"{i}\n\u2028é") for i in range(3)])
    action = Isolate(id="i", node="node1", gpu="GPU-1", mode="soft")
    await store.append_decision(Decision(id="d", cause=taken[-1].seq, at=1.0, actions=(action,)))
    return store


async def test_a_dump_loads_as_the_store_it_came_from(tmp_path: Path) -> None:
    path, lines = tmp_path / "medevac.db", tmp_path / "log.jsonl"
    store = await filled(SqliteStore.open(path))
    with lines.open("w") as fh:
        assert await dump(store, fh) == 4
    records = list(await store.records())
    assert load(lines) == load(path) == load(tmp_path) == records
    await store.close()
    assert load(path) == records


async def test_equal_logs_are_equal_bytes(tmp_path: Path) -> None:
    texts = []
    for store in (MemoryStore(), SqliteStore.open(tmp_path / "medevac.db")):
        out = io.StringIO()
        await dump(await filled(store), out)
        texts.append(out.getvalue())
        await store.close()
    assert texts[0] == texts[1]
    assert texts[0].count("\n") == 4


GOOD = b'{"type":"event","seq":%d,"event":{"type":"TimePassed","at":1.0}}\n'


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (b"", ":2: is no record of a log"),
        (b"hello", ":2: is no record of a log"),
        (b"\xff\xfe", ":2: is no record of a log"),
        (b'{"type":"event","seq":2,"event":{"type":"Meteor","at":1}}', ":2: is no record of a log: .*Meteor"),
        (GOOD[:-10] % 2, ":2: is no record of a log: .*JSON"),
        ((GOOD % 2).replace(b"1.0", b'"1"'), r":2: is no record of a log: .*\$\.event\.at"),
        ((GOOD % 1).strip(), ":2: seq 1 does not follow 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, second: bytes, problem: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(GOOD % 1 + second + b"\n" + GOOD % 3)
    with pytest.raises(ConfigError, match=r"log\.jsonl" + problem):
        load(path)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read: No such file"):
            load(path)


def test_a_database_of_others_is_named(tmp_path: Path) -> None:
    path = tmp_path / "medevac.db"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 100)
    with pytest.raises(ConfigError, match=r"medevac\.db: is no readable store"):
        load(path)


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_any_bytes_are_a_log_or_a_named_line(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(raw)
    try:
        assert load(path) == []
        assert raw == b""
    except ConfigError as error:
        assert error.where in {f"{path}:1", str(path)}  # noqa: PT017 (either outcome is right; a crash is not)
