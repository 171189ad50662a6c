"""The store: events a second made durable, what repeats cost, and how soon another process sees a record.

    python benchmarks/store.py [--json] [--folder DIR]

Each event goes the whole way: encoded, decoded again as a reader will, compared by id, written, synced to disk
(WAL, synchronous=FULL), read back with its place in the log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from medevac.adapters.store.codec import encode
from medevac.adapters.store.sqlite import SqliteStore
from medevac.core.events import FaultSeen

BATCH = 1000
FACTS = 29
COPIES = 800_000
ROUNDS = 40


def fault(id_: str) -> FaultSeen:
    return FaultSeen(
        at=1796000000.5,
        seen_at=1796000000.9,
        id=id_,
        source="kmsg:node1",
        kind="xid",
        code=63,
        node="node1",
        pci="0000:3b:00.0",
        details={"row": "0x1f", "message": "Row Remapper: New row marked for remapping, reset gpu to activate."},
        raw="NVRM: Xid (PCI:0000:3b:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row (0x1f) marked",
    )


def batches(count: int, size: int, prefix: str = "") -> Iterator[list[FaultSeen]]:
    for start in range(0, count, size):
        yield [fault(f"{prefix}{i}") for i in range(start, start + size)]


def report(name: str, value: float, unit: str, **more: object) -> dict[str, object]:
    return {"name": name, "value": round(value, 3), "unit": unit, **more}


def plain_rate(folder: Path, count: int) -> float:
    """The same bodies through bare sqlite3 in the same batches: no ids compared, nothing read back."""
    rows = [[(event.id, encode(event)) for event in batch] for batch in batches(count, BATCH)]
    with closing(sqlite3.connect(folder / "plain.db", isolation_level=None)) as link:
        link.execute("PRAGMA journal_mode = WAL")
        link.execute("PRAGMA synchronous = FULL")
        link.execute("CREATE TABLE record (seq INTEGER PRIMARY KEY, id TEXT, body TEXT)")
        start = time.perf_counter()
        for chunk in rows:
            link.execute("BEGIN IMMEDIATE")
            link.executemany("INSERT INTO record (id, body) VALUES (?, ?)", chunk)
            link.execute("COMMIT")
        return count / (time.perf_counter() - start)


async def durable_rate(folder: Path, count: int, size: int) -> float:
    store = SqliteStore.open(folder / f"rate{size}" / "medevac.db")
    start = time.perf_counter()
    for number, batch in enumerate(batches(count, size)):
        await store.append_events(batch, cursor=("bench", str(number)))
    took = time.perf_counter() - start
    await store.close()
    return count / took


async def repeats(folder: Path) -> list[dict[str, object]]:
    """A storm: the same few facts again and again, as a source that repeats itself would give them."""
    path = folder / "repeats" / "medevac.db"
    store = SqliteStore.open(path)
    facts = [fault(f"fact-{i}") for i in range(FACTS)]
    await store.append_events(facts)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    for offset in range(0, COPIES, BATCH):
        await store.append_events([facts[(offset + i) % FACTS] for i in range(BATCH)])
    took = time.perf_counter() - start
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    kept = len(await store.records(limit=COPIES))
    await store.close()
    size = path.stat().st_size / 1024
    return [
        report("store.repeats.kept", kept, "events", copies=COPIES, facts=FACTS),
        report("store.repeats.rate", COPIES / took, "events/s"),
        report("store.repeats.memory", grown / 1024, "MiB more at most"),
        report("store.repeats.file", size, "KiB"),
    ]


WRITER = """
import asyncio, sys, time
from medevac.adapters.store.sqlite import SqliteStore
from medevac.core.events import TimePassed

async def main():
    store = SqliteStore.open(sys.argv[1])
    for line in sys.stdin:
        await store.append_events([TimePassed(at=time.time())])
    await store.close()

asyncio.run(main())
"""


async def notice_delay(folder: Path) -> float:
    """Median seconds from another process's durable append to the end of `wait` here."""
    path = folder / "notice" / "medevac.db"
    store = SqliteStore.open(path)
    delays, seen = [], 0
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE) as writer:  # noqa: ASYNC220
        assert writer.stdin
        for _ in range(ROUNDS):
            writer.stdin.write(b"\n")
            writer.stdin.flush()
            await store.wait(seen, 60)
            (record,) = await store.records(after=seen)
            delays.append(time.time() - record.event.at)  # type: ignore[union-attr]
            seen = record.seq
    await store.close()
    return statistics.median(delays)


async def measure(folder: Path) -> list[dict[str, object]]:
    # First, while this process is still small: its peak is what is measured.
    repeated = await repeats(folder)
    plain = plain_rate(folder, 100_000)
    rate = await durable_rate(folder, 100_000, BATCH)
    compared = {"reference": "bare sqlite3", "reference_value": round(plain, 3), "ratio": round(rate / plain, 3)}
    return [
        report("store.durable", rate, "events/s", batch=BATCH, **compared),
        report("store.durable.small", await durable_rate(folder, 20_000, 100), "events/s", batch=100),
        report("store.durable.single", await durable_rate(folder, 1_000, 1), "events/s", batch=1),
        *repeated,
        report("store.notice", await notice_delay(folder) * 1000, "ms"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--folder", type=Path, help="where to write (default: the system's place for temporary files)")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="medevac-bench-", dir=args.folder))
    try:
        results = asyncio.run(measure(folder))
    finally:
        shutil.rmtree(folder)
    for result in results:
        print(json.dumps(result) if args.json else f"{result['name']:24} {result['value']:>14,} {result['unit']}")


if __name__ == "__main__":
    main()
