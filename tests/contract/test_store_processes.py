"""SQLite's store under SIGKILL, and with several processes at work on it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from medevac.adapters.store import database
from medevac.adapters.store.sqlite import SqliteStore, read_all
from medevac.ports.store import EventRecord
from medevac.testing.store_contract import fault

BATCH = 50
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(database.__file__).parents[3])}

WRITER = """
import asyncio, json, sys
from medevac.adapters.store.sqlite import SqliteStore
from medevac.core.decision import Decision
from medevac.testing.store_contract import fault

async def main(path, batches, size, decide):
    store = SqliteStore.open(path)
    start = int(await store.cursor("writer") or 0)
    for n in range(start, start + batches):
        events = [fault(f"{n}/{i}") for i in range(size)]
        taken = await store.append_events(events, cursor=("writer", str(n + 1)))
        print(json.dumps([record.event.id for record in taken]), flush=True)
        if decide and taken:
            decision = await store.append_decision(Decision(id=f"d{n}", cause=taken[0].seq, at=1.0))
            print(json.dumps([decision.decision.id]), flush=True)
    await store.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), bool(sys.argv[4:])))
"""


def writer(path: Path, batches: int, *more: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", WRITER, str(path), str(batches), str(BATCH), *more]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)


def ids_of(path: Path) -> list[str]:
    """Ids of all records; they must stand in one unbroken sequence."""
    records = list(read_all(path))
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    return [record.event.id if isinstance(record, EventRecord) else record.decision.id for record in records]


@pytest.mark.e2e
def test_what_was_acknowledged_outlives_a_kill_at_any_moment(tmp_path: Path) -> None:
    """Ten writers in turn, each killed after some acknowledgements and in the middle of a later append."""
    path, seed = tmp_path / "medevac.db", random.randrange(10**6)
    dice = random.Random(seed)
    acknowledged: list[str] = []
    for _ in range(10):
        with writer(path, 10**6, "decide") as child:
            assert child.stdout
            for _ in range(dice.randrange(1, 40)):
                acknowledged += json.loads(child.stdout.readline())
            child.kill()
            acknowledged += [id_ for line in child.stdout if line.endswith("\n") for id_ in json.loads(line)]
        kept = ids_of(path)
        assert [id_ for id_ in acknowledged if id_ not in set(kept)] == [], f"seed {seed}"
        batches = Counter(id_.partition("/")[0] for id_ in kept if "/" in id_)
        assert set(batches.values()) == {BATCH}, f"half a batch was taken, seed {seed}"
        assert len(kept) == len(set(kept))


MAKER = """
import os, sys, time
from pathlib import Path
from alembic import command
from medevac.adapters.store.sqlite import SqliteStore

for milliseconds in range(0, 120, 6):
    path = Path(sys.argv[1], str(milliseconds), "medevac.db")
    child = os.fork()
    if child == 0:
        SqliteStore.open(path)
        os._exit(0)
    time.sleep(milliseconds / 1000)
    os.kill(child, 9)
    os.waitpid(child, 0)
"""


@pytest.mark.e2e
async def test_a_kill_while_the_store_is_made_leaves_one_that_opens(tmp_path: Path) -> None:
    """A child is killed 0, 6, 12 ... ms after it began to make a store: before, between and after its steps."""
    argv = [sys.executable, "-c", MAKER, str(tmp_path)]
    await asyncio.to_thread(subprocess.run, argv, check=True, env=ENVIRONMENT, timeout=120)
    for milliseconds in range(0, 120, 6):
        path = tmp_path / str(milliseconds) / "medevac.db"
        store = SqliteStore.open(path)
        await store.append_events([fault("a")])
        await store.close()
        assert ids_of(path) == ["a"]


@pytest.mark.e2e
def test_processes_that_append_the_same_ids_take_each_once(tmp_path: Path) -> None:
    path, batches = tmp_path / "medevac.db", 40
    children = [writer(path, batches) for _ in range(3)]
    taken = [[json.loads(line) for line in child.communicate(timeout=120)[0].splitlines()] for child in children]
    assert [child.returncode for child in children] == [0, 0, 0]
    counted = Counter(id_ for lines in taken for ids in lines for id_ in ids)
    kept = ids_of(path)
    assert set(counted.values()) == {1}
    assert Counter(kept) == counted
    assert {f"{n}/{i}" for n in range(batches) for i in range(BATCH)} <= set(kept)
