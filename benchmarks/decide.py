"""How many events a second are taken in and decided on, in one process: the storm of a small cluster, many times.

    python benchmarks/decide.py --json

`decide_events_per_s`: apply and decide alone. `taken_and_decided_events_per_s`: durable in SQLite first, in batches of
500, the decisions too (DESIGN of the loop: written down before done).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

from medevac.adapters.store.sqlite import SqliteStore
from medevac.catalog.policy import load_policy
from medevac.controller.step import advance
from medevac.core.events import AnyEvent
from medevac.core.policy import Policy
from medevac.core.view import View
from medevac.ports.store import EventRecord
from medevac.sim.storm import Storm
from medevac.sim.world import World

AIM = 10_000
BATCH = 500


def history(seed: int, policy: Policy) -> list[AnyEvent]:
    """The events of one stormy run."""
    world = World(Storm.plan(seed), policy, steps=600)
    world.run()
    return [record.event for record in world.records if isinstance(record, EventRecord)]


def decided(events: list[AnyEvent], policy: Policy) -> float:
    """Events a second through the pure core."""
    view, began = View.under(policy), time.perf_counter()
    for seq, event in enumerate(events, 1):
        view, _ = advance(view, EventRecord(seq=seq, event=event), policy)
    return len(events) / (time.perf_counter() - began)


async def taken(events: list[AnyEvent], policy: Policy, folder: Path) -> float:
    """Events a second through store and core."""
    store = SqliteStore.open(folder / "medevac.db")
    view, began = View.under(policy), time.perf_counter()
    for start in range(0, len(events), BATCH):
        for record in await store.append_events(events[start : start + BATCH]):
            view, decision = advance(view, record, policy)
            if not decision.empty():
                await store.append_decision(decision)
    rate = len(events) / (time.perf_counter() - began)
    await store.close()
    return rate


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    policy = load_policy("demo")
    rounds = [history(seed, policy) for seed in range(given.rounds)]
    pure = statistics.median(decided(events, policy) for events in rounds)
    durable = []
    for events in rounds:
        with tempfile.TemporaryDirectory() as folder:
            durable.append(asyncio.run(taken(events, policy, Path(folder))))
    for name, value in (("decide_events_per_s", pure), ("taken_and_decided_events_per_s", statistics.median(durable))):
        row = {"name": name, "value": round(value), "unit": "events/s", "reference": "aim", "reference_value": AIM}
        row["ratio"] = round(value / AIM, 2)
        print(json.dumps(row) if given.json else f"{name}: {value:,.0f} events/s (aim {AIM:,})")


if __name__ == "__main__":
    main()
