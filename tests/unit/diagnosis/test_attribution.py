"""A second opinion over real HTTP: given, none, late, trickling, failing, absurd. Nothing of it moves anything."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.unit.core.builders import Told, running

from medevac.adapters.attribution import Service, ask, check
from medevac.controller.second_opinion import second_opinions
from medevac.core.decision import Diagnosed
from medevac.core.diagnose_case import Diagnosis
from medevac.core.events import AnyEvent, AttemptEnded, AttributionHeard, RankPlace
from medevac.ports.errors import ConfigError

PLACES = (RankPlace(rank=0, node="n0"), RankPlace(rank=1, node="n1", gpus=("g1",)))
TOLD = Diagnosed(
    job="job",
    attempt=2,
    verdict=Diagnosis(cause="unknown", symptom="hang", confidence=0.0, advice="look", abstained=True),
)
GOOD = {"class": "network", "confidence": 0.8, "suspects": [{"rank": 1}], "why": "its port flaps", "model": "m7"}


class Server:
    """Answers what the test says, and keeps what it was asked."""

    def __init__(self) -> None:
        self.status, self.body, self.delay_s, self.trickles = 200, json.dumps(GOOD).encode(), 0.0, False
        self.asked: list[dict[str, Any]] = []
        self.over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                outer.over.wait(outer.delay_s)
                self.send_response(outer.status)
                self.end_headers()
                while outer.trickles and not outer.over.wait(0.1):
                    self.wfile.write(b" ")
                self.wfile.write(outer.body)

            def log_message(self, *_args: Any) -> None:
                """Say nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}/why"

    def close(self) -> None:
        self.over.set()
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


async def heard(url: str, *, fast_s: float = 30.0) -> AttributionHeard:
    return await ask(Service(url=url, fast_s=fast_s), "fast", TOLD, PLACES, time.time)


async def test_an_answer_is_heard_and_the_question_documented(server: Server) -> None:
    said = await heard(server.url)
    assert (said.outcome, said.cause, said.confidence, said.why) == ("answered", "network", 0.8, "its port flaps")
    assert said.suspects[0].rank == 1
    assert said.id == "job/2/attribution-fast"
    (asked,) = server.asked
    assert set(asked) == {"schema", "phase", "job", "attempt", "ranks", "ours"}
    assert (asked["schema"], asked["phase"], asked["job"], asked["attempt"]) == (1, "fast", "job", 2)
    assert asked["ranks"][1] == {"rank": 1, "node": "n1", "gpus": ["g1"]}
    assert asked["ours"]["verdict"]["cause"] == "unknown"


async def test_no_opinion_is_none(server: Server) -> None:
    server.status, server.body = 204, b""
    assert (await heard(server.url)).outcome == "none"


@pytest.mark.parametrize("trickles", [False, True])
async def test_a_slow_service_is_late(server: Server, trickles: bool) -> None:
    server.trickles, server.delay_s = trickles, 0.0 if trickles else 60.0
    said = await heard(server.url, fast_s=0.5)
    assert said.outcome == "late"
    assert "0.5 s" in said.why


async def test_a_failing_service_has_failed(server: Server) -> None:
    server.status = 503
    said = await heard(server.url)
    assert said.outcome == "failed"
    assert "503" in said.why


async def test_nobody_there_has_failed() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert (await heard(f"http://127.0.0.1:{port}/")).outcome == "failed"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"\xff\xfe",
        b"{}",
        json.dumps(GOOD | {"class": "cosmic-rays"}).encode(),
        json.dumps(GOOD | {"confidence": 7}).encode(),
        json.dumps(GOOD | {"confidence": None}).encode(),
        json.dumps(GOOD | {"suspects": [{"rank": 99}]}).encode(),
        json.dumps(GOOD | {"suspects": [{"node": "elsewhere"}]}).encode(),
        json.dumps(GOOD | {"why": "x" * 100_000}).encode(),
    ],
)
async def test_an_absurd_answer_is_recorded_and_ignored(server: Server, body: bytes) -> None:
    server.body = body
    said = await heard(server.url)
    assert (said.outcome, said.cause, said.suspects) == ("absurd", None, ())
    assert said.why


@pytest.mark.parametrize("outcome", ["answered", "late", "failed", "absurd", "none"])
def test_nothing_is_decided_on_it(outcome: Any) -> None:
    told = running(Told())
    before = told.view.jobs["job"]
    event = AttributionHeard(
        at=9.0, job="job", attempt=1, phase="fast", outcome=outcome, cause="hardware", confidence=1.0
    )
    assert told.tell(event).empty()
    assert told.view.jobs["job"] == before


@pytest.mark.parametrize("service", [Service(url="ftp://x"), Service(url="http://x", fast_s=0), Service(slow_s=-1)])
def test_a_wrong_configuration_is_one_line(service: Service) -> None:
    with pytest.raises(ConfigError, match="attribution"):
        check(service)


class Log:
    """The parts of a controller that are looked at."""

    def __init__(self) -> None:
        self.view = running(Told()).view
        self.taken: list[AnyEvent] = []

    async def take(self, events: tuple[AnyEvent, ...]) -> tuple[()]:
        self.taken += events
        return ()

    def now(self) -> float:
        return 20.0

    async def sleep(self, _seconds: float) -> None:
        await asyncio.sleep(0.01)


async def test_each_failed_attempt_is_asked_about_once_in_both_phases(server: Server) -> None:
    log = Log()
    told = Told()
    running(told)
    told.tell(AttemptEnded(at=19.0, job="job", attempt=1, code=1))
    log.view = told.view
    service = Service(url=server.url, fast_s=30, slow_s=30)
    work = asyncio.create_task(second_opinions(service, log, log, log))  # type: ignore[arg-type]
    async with asyncio.timeout(30):
        while len(log.taken) < 2:
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert sorted(event.id for event in log.taken) == ["job/1/attribution-fast", "job/1/attribution-slow"]
    assert sorted(one["phase"] for one in server.asked) == ["fast", "slow"]


async def test_without_a_service_nothing_is_asked() -> None:
    log = Log()
    await second_opinions(Service(), log, log, log)  # type: ignore[arg-type]
    assert log.taken == []
