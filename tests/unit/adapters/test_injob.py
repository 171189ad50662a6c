"""The hub of a job: what ranks send, whatever they send, and what they are asked."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from medevac.adapters.injob import MAX_PACKET, Hub
from medevac.client import Client
from medevac.core.events import CorruptionSeen, ResumedFrom, StepReported
from medevac.ports.errors import Unavailable

LONG_S = 60.0
JOB = "train"


def client(path: Path, rank: int = 0, attempt: int = 1, more: dict[str, str] | None = None) -> Client:
    environ = {"MEDEVAC_JOB_ID": JOB, "MEDEVAC_ATTEMPT": str(attempt), "RANK": str(rank), "MEDEVAC_SOCKET": str(path)}
    return Client.from_env(environ | (more or {}))


class Reader:
    """Collects what a hub yields."""

    def __init__(self, hub: Hub, cursor: str = "") -> None:
        self.hub = hub
        self.events: list[Any] = []
        self.cursors: list[str] = []
        self._task = asyncio.create_task(self._run(cursor))

    async def _run(self, cursor: str) -> None:
        async for event, place in self.hub.follow(cursor):
            self.events.append(event)
            self.cursors.append(place)

    async def close(self) -> None:
        self._task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self._task


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[Reader]:
    reader = Reader(Hub(tmp_path / "sock", job=JOB))
    await until((tmp_path / "sock").exists)
    yield reader
    await reader.close()


async def test_heartbeats_and_the_resumed_step_come_in(reader: Reader, tmp_path: Path) -> None:
    rank = client(tmp_path / "sock", rank=3)
    rank.resumed(40)
    rank.heartbeat(41, loss=float("nan"))
    await until(lambda: len(reader.events) == 2)
    resumed, step = reader.events
    assert isinstance(resumed, ResumedFrom)
    assert (resumed.rank, resumed.step, resumed.source) == (3, 40, "train/injob")
    assert isinstance(step, StepReported)
    assert (step.step, step.finite, step.loss) == (41, False, None)
    assert step.seen_at >= step.at
    rank.close()


async def test_what_replicas_came_to_comes_in(reader: Reader, tmp_path: Path) -> None:
    rank = client(tmp_path / "sock")
    rank.corruption("again", step=12, since=6, tensors=["0.weight"], rank=3, node="n1", gpu="GPU-1")
    await until(lambda: len(reader.events) == 1)
    seen = reader.events[0]
    assert isinstance(seen, CorruptionSeen)
    assert (seen.outcome, seen.step, seen.since, seen.tensors) == ("again", 12, 6, ("0.weight",))
    assert (seen.rank, seen.node, seen.gpu, seen.attempt) == (3, "n1", "GPU-1", 1)
    rank.close()


async def test_requests_reach_all_ranks_once(reader: Reader, tmp_path: Path) -> None:
    ranks = [client(tmp_path / "sock", rank=rank) for rank in range(8)]
    for rank in ranks:
        rank.heartbeat(1)
    await until(lambda: len(reader.events) == 8)
    assert await reader.hub.send("checkpoint", 1) == 8
    for rank in ranks:
        await until(lambda rank=rank: rank.request() == "checkpoint")  # type: ignore[misc]
        assert rank.request() is None
        rank.close()


async def test_a_rank_that_connects_later_is_asked_too_unless_it_is_of_another_attempt(
    reader: Reader, tmp_path: Path
) -> None:
    assert await reader.hub.send("checkpoint", 2) == 0
    assert await reader.hub.send("ecc-changed", 2) == 0
    old, new = client(tmp_path / "sock", attempt=1), client(tmp_path / "sock", attempt=2)
    old.heartbeat(1)
    new.heartbeat(1)
    await until(lambda: new.request() == "checkpoint")
    assert new.request() is None
    assert old.request() is None
    old.close()
    new.close()


async def test_what_is_no_event_of_this_job_is_counted(reader: Reader, tmp_path: Path) -> None:
    good = msgspec.json.encode(StepReported(at=1.0, job=JOB, attempt=1, step=7))
    bad = [
        b"{}",
        b"\xff\xfe",
        b"[" * 1000,
        b"x" * (MAX_PACKET + 1),
        good.replace(b"train", b"other"),
        good.replace(b"StepReported", b"OrderGiven"),
        good[:-1],
    ]
    rank = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    rank.connect(str(tmp_path / "sock"))
    for packet in [*bad, good]:
        rank.send(packet)
    await until(lambda: reader.events)
    assert reader.hub.bad == len(bad)
    assert [event.step for event in reader.events] == [7]
    rank.close()
    await until(lambda: reader.hub.connected == 0)


async def test_many_ranks_that_say_more_than_is_read_lose_nothing_that_was_taken(tmp_path: Path) -> None:
    hub = Hub(tmp_path / "sock", job=JOB)
    events = hub.follow("")
    first = asyncio.ensure_future(anext(events))
    await until((tmp_path / "sock").exists)
    ranks = [client(tmp_path / "sock", rank=rank) for rank in range(64)]
    for step in range(300):
        for rank in ranks:
            rank.heartbeat(step)
        await asyncio.sleep(0)
    sent = sum(300 - rank.dropped for rank in ranks)
    assert (await first)[0].step == 0
    async with asyncio.timeout(LONG_S):
        for _ in range(sent - 1):
            await anext(events)
    await events.aclose()  # type: ignore[attr-defined]
    for rank in ranks:
        rank.close()


async def test_ranks_come_back_to_a_hub_that_was_started_anew(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    first = Reader(Hub(path, job=JOB))
    await until(path.exists)
    rank = client(path)
    rank.resumed(40)
    await until(lambda: first.events)
    await first.close()
    second = Reader(Hub(path, job=JOB))

    def heard() -> bool:
        rank.heartbeat(41)
        return len(second.events) > 1

    await until(heard)
    assert second.events[0] == msgspec.structs.replace(first.events[0], seen_at=second.events[0].seen_at)
    await second.close()
    rank.close()


async def test_a_socket_left_by_a_killed_controller_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
    left = path.stat().st_ino
    reader = Reader(Hub(path, job=JOB))
    await until(lambda: path.stat().st_ino != left)
    rank = client(path)
    rank.heartbeat(1)
    await until(lambda: reader.events)
    assert path.stat().st_mode & 0o077 == 0
    await reader.close()
    rank.close()


async def test_a_socket_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 120) / "sock"
    with pytest.raises(Unavailable, match="the job's socket cannot be made"):
        await anext(Hub(path).follow(""))


async def test_ranks_without_a_socket_are_read_from_the_checkpoint_folder(tmp_path: Path) -> None:
    environ = {"MEDEVAC_SOCKET": "", "MEDEVAC_CHECKPOINT_DIR": str(tmp_path), "MEDEVAC_NODE": "node7"}
    rank = client(tmp_path, rank=5, more=environ)
    rank.resumed(None)
    rank.heartbeat(1)
    rank.heartbeat(2)
    file = tmp_path / ".medevac" / "node7.5.jsonl"
    await until(lambda: file.exists() and file.read_bytes().count(b"\n") == 3)
    rank.close()
    with file.open("ab") as out:
        out.write(b"torn\n")
    reader = Reader(Hub(tmp_path / "sock", job=JOB, folder=tmp_path))
    await until(lambda: reader.hub.bad == 1)
    await until(lambda: len(reader.events) == 3)
    assert [getattr(event, "step", None) for event in reader.events] == [None, 1, 2]
    assert len({event.id for event in reader.events}) == 3
    await reader.close()
    again = Reader(Hub(tmp_path / "sock", job=JOB, folder=tmp_path), reader.cursors[1])
    await until(lambda: again.events)
    assert [event.id for event in again.events] == [reader.events[2].id]
    await again.close()
    assert [path.name for path in (tmp_path / ".medevac").iterdir()] == ["node7.5.jsonl"]
