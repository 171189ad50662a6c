"""What every store must do; subclass, and give a fixture `store` with an empty one.

class TestMyStore(StoreContract):
@pytest.fixture
async def store(self):
store = MyStore(...)
yield store
await store.close()
"""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise

import pytest

from medevac.core.decision import Decision
from medevac.core.events import AnyEvent, FaultSeen, StepReported, TimePassed
from medevac.ports.errors import Refused
from medevac.ports.store import DecisionRecord, EventRecord, Store

LONG_S = 30.0


def fault(id_: str, *, code: int = 63, at: float = 1.0) -> FaultSeen:
    """An event with this id."""
    return FaultSeen(at=at, id=id_, kind="xid", code=code, node="node1", pci="0000:3b:00.0", details={"row": 7})


class StoreContract:
    """See `medevac.ports.store.Store`, sentence by sentence."""

    async def test_events_come_back_in_order(self, store: Store) -> None:
        events: list[AnyEvent] = [
            fault("a"),
            TimePassed(at=2.0),
            StepReported(at=3.0, id="s", job="j", attempt=1, step=4),
        ]
        taken = await store.append_events(events)
        assert [record.event for record in taken] == events
        assert await store.records() == taken

    async def test_seqs_rise_by_one_over_events_and_decisions(self, store: Store) -> None:
        first = await store.append_events([fault("a"), fault("b")])
        decision = await store.append_decision(Decision(id="d", cause=first[0].seq, at=1.0))
        last = await store.append_events([fault("c")])
        seqs = [*(record.seq for record in first), decision.seq, *(record.seq for record in last)]
        assert seqs[0] > 0
        assert all(later == earlier + 1 for earlier, later in pairwise(seqs))

    async def test_an_id_is_taken_once(self, store: Store) -> None:
        assert len(await store.append_events([fault("a"), fault("a"), fault("b")])) == 2
        again = await store.append_events([fault("b", code=79), fault("c"), fault("a")])
        assert [record.event.id for record in again] == ["c"]
        assert await store.append_events([fault("a")]) == ()
        assert [record.event.id for record in await store.records() if isinstance(record, EventRecord)] == [
            "a",
            "b",
            "c",
        ]

    async def test_events_without_an_id_are_all_taken(self, store: Store) -> None:
        assert len(await store.append_events([TimePassed(at=1.0), TimePassed(at=1.0)])) == 2
        assert len(await store.append_events([TimePassed(at=1.0)])) == 1

    async def test_nothing_to_take(self, store: Store) -> None:
        assert await store.append_events([]) == ()
        assert await store.records() == ()

    async def test_a_decision_is_written_once(self, store: Store) -> None:
        first = await store.append_decision(Decision(id="d", cause=1, at=1.0, reason="because"))
        assert await store.append_decision(Decision(id="d", cause=1, at=1.0, reason="changed")) == first
        assert first.decision.reason == "because"
        assert await store.records() == (first,)

    async def test_an_event_and_a_decision_may_share_an_id(self, store: Store) -> None:
        await store.append_events([fault("same")])
        await store.append_decision(Decision(id="same", cause=1, at=1.0))
        kinds = [type(record) for record in await store.records()]
        assert kinds == [EventRecord, DecisionRecord]

    async def test_reading_goes_on_from_a_seq(self, store: Store) -> None:
        taken = await store.append_events([fault(str(i)) for i in range(10)])
        assert await store.records(after=taken[3].seq, limit=4) == taken[4:8]
        assert await store.records(after=taken[9].seq) == ()
        assert await store.records(limit=3) == taken[:3]

    async def test_a_cursor_is_kept_with_its_events(self, store: Store) -> None:
        assert await store.cursor("log") == ""
        await store.append_events([fault("a")], cursor=("log", "12"))
        await store.append_events([], cursor=("other", "1"))
        await store.append_events([fault("a")], cursor=("log", "13"))
        assert (await store.cursor("log"), await store.cursor("other")) == ("13", "1")

    @pytest.mark.parametrize("at", [math.nan, math.inf])
    async def test_what_cannot_be_read_back_is_refused_whole(self, store: Store, at: float) -> None:
        with pytest.raises(Refused, match="'bad'"):
            await store.append_events([fault("good"), fault("bad", at=at)], cursor=("log", "12"))
        with pytest.raises(Refused, match="'d'"):
            await store.append_decision(Decision(id="d", cause=1, at=at))
        assert await store.records() == ()
        assert await store.cursor("log") == ""

    @pytest.mark.parametrize(
        "text", ["", "\0", "é\n\t\"'\\", "\U0001f525" * 1000, "'; DROP TABLE record; --", "\u2028"]
    )
    async def test_any_text_survives(self, store: Store, text: str) -> None:
        event = FaultSeen(at=1.0, id="id" + text, kind="xid", raw=text, details={text: text}, source=text)
        await store.append_events([event], cursor=("log" + text, text))
        assert await store.append_events([event]) == ()
        (record,) = await store.records()
        assert isinstance(record, EventRecord)
        assert record.event == event
        assert await store.cursor("log" + text) == text

    async def test_a_lone_surrogate_is_refused(self, store: Store) -> None:
        with pytest.raises(Refused):
            await store.append_events([FaultSeen(at=1.0, id="s", kind="xid", raw="\udcff")])
        assert await store.records() == ()

    async def test_waiting_ends_when_a_record_comes(self, store: Store) -> None:
        waiting = asyncio.create_task(store.wait(0, LONG_S * 100))
        await asyncio.sleep(0)
        (record,) = await store.append_events([fault("a")])
        await asyncio.wait_for(waiting, LONG_S)
        await asyncio.wait_for(store.wait(record.seq - 1, LONG_S * 100), LONG_S)

    async def test_waiting_ends_when_the_time_is_up(self, store: Store) -> None:
        (record,) = await store.append_events([fault("a")])
        await asyncio.wait_for(store.wait(record.seq, 0.0), LONG_S)
        await asyncio.wait_for(store.wait(record.seq, 0.1), LONG_S)
        assert await store.records(after=record.seq) == ()

    async def test_many_at_once_get_one_order(self, store: Store) -> None:
        batches = [[fault(f"{i % 7}"), fault(f"own-{i}")] for i in range(30)]
        taken = await asyncio.gather(*(store.append_events(batch) for batch in batches))
        seqs = sorted(record.seq for batch in taken for record in batch)
        assert len(seqs) == 37
        assert [record.seq for record in await store.records()] == seqs

    async def test_closing_twice_is_harmless(self, store: Store) -> None:
        await store.close()
        await store.close()
