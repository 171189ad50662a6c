"""A second opinion on a failed attempt from somebody else's service, over HTTP. It is never needed and moves nothing.

Asked twice at once, as phase `fast` and phase `slow`, each with its deadline, so that a service may answer at once with
what it knows by heart and later with what it had to work out. Whatever goes wrong is said in the event, and no more:
`late`, `failed` (no connection, an HTTP error), `absurd` (not the documented answer, or parts that the job has not),
`none` (204: no opinion). docs/diagnosis.md has both JSON documents.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec.structs import replace

from medevac.core.decision import Diagnosed
from medevac.core.diagnose_case import Cause, Suspect
from medevac.core.events import AttributionHeard, AttributionOutcome, AttributionPhase, RankPlace
from medevac.ports.errors import ConfigError

LARGEST = 1 << 16
"""Bytes of an answer; more is no answer."""
BLOCK = 1 << 12
NO_OPINION = 204


class Service(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom to ask (empty: nobody) and how long each phase may take, seconds."""

    url: str = ""
    fast_s: float = 2.0
    slow_s: float = 120.0


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is posted."""

    schema: int
    phase: AttributionPhase
    job: str
    attempt: int
    ranks: tuple[RankPlace, ...]
    ours: Diagnosed


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """A suspect of an answer."""

    rank: int | None = None
    node: str = ""
    gpu: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What may come back; more fields are ignored."""

    cause: Cause = msgspec.field(name="class")
    confidence: Annotated[float, msgspec.Meta(ge=0, le=1)]
    suspects: Annotated[tuple[Named, ...], msgspec.Meta(max_length=64)] = ()
    why: Annotated[str, msgspec.Meta(max_length=4000)] = ""


class Failed(Exception):
    """No answer; the message says why."""


class Absurd(Exception):
    """An answer that cannot be one; the message says why."""


def check(service: Service) -> Service:
    """The service as it stands. Raises `ConfigError` naming what is wrong."""
    if service.url and urllib.parse.urlsplit(service.url).scheme not in {"http", "https"}:
        raise ConfigError("attribution.url", f"{service.url}: must begin with http:// or https://")
    for name, value in (("fast_s", service.fast_s), ("slow_s", service.slow_s)):
        if not value > 0:
            raise ConfigError(f"attribution.{name}", f"{value:g} s must be over 0")
    return service


async def ask(
    service: Service, phase: AttributionPhase, told: Diagnosed, places: tuple[RankPlace, ...], now: Callable[[], float]
) -> AttributionHeard:
    """One phase, to its deadline. Never raises for what the service does."""
    limit = service.fast_s if phase == "fast" else service.slow_s
    question = Question(schema=1, phase=phase, job=told.job, attempt=told.attempt, ranks=places, ours=told)
    answer: Answer | None = None
    outcome: AttributionOutcome = "none"
    why = ""
    try:
        data = await asyncio.wait_for(
            asyncio.to_thread(_post, service.url, msgspec.json.encode(question), limit), limit
        )
        if data is not None:
            answer, outcome = _read(data, places), "answered"
    except TimeoutError:
        outcome, why = "late", f"no answer within {limit:g} s"
    except Failed as problem:
        outcome, why = "failed", str(problem)
    except Absurd as problem:
        outcome, why = "absurd", str(problem)
    heard = AttributionHeard(
        at=now(),
        id=f"{told.job}/{told.attempt}/attribution-{phase}",
        source=service.url,
        job=told.job,
        attempt=told.attempt,
        phase=phase,
        outcome=outcome,
        why=why,
    )
    return _with_answer(heard, answer) if answer else heard


def _with_answer(heard: AttributionHeard, answer: Answer) -> AttributionHeard:
    named = tuple(Suspect(why="named by the service", rank=s.rank, node=s.node, gpu=s.gpu) for s in answer.suspects)
    return replace(heard, why=answer.why, cause=answer.cause, confidence=answer.confidence, suspects=named)


def _post(url: str, body: bytes, limit: float) -> bytes | None:
    """The answer's bytes, None where the service has no opinion."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")  # noqa: S310 - checked
    try:
        with contextlib.closing(urllib.request.urlopen(request, timeout=limit)) as reply:  # noqa: S310 - checked
            return None if reply.status == NO_OPINION else _all_of(reply, time.monotonic() + limit)
    except TimeoutError:
        raise
    except urllib.error.URLError as problem:
        if isinstance(problem.reason, TimeoutError):
            raise TimeoutError from problem
        raise Failed(str(problem)) from problem
    except (OSError, http.client.HTTPException, ValueError) as problem:
        raise Failed(f"{type(problem).__name__}: {problem}") from problem


def _all_of(reply: http.client.HTTPResponse, until: float) -> bytes:
    """A server that only trickles is left at the deadline."""
    data = b""
    while block := reply.read1(BLOCK):
        data += block
        if len(data) > LARGEST:
            raise Absurd(f"over {LARGEST} bytes")
        if time.monotonic() > until:
            raise TimeoutError
    return data


def _read(data: bytes, places: tuple[RankPlace, ...]) -> Answer:
    try:
        answer = msgspec.json.decode(data, type=Answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise Absurd(f"not an answer: {problem}") from problem
    ranks, nodes = {place.rank for place in places}, {place.node for place in places}
    for one in answer.suspects:
        if (one.rank is not None and one.rank not in ranks) or (one.node and one.node not in nodes):
            raise Absurd(f"names rank {one.rank}, node {one.node!r}: not of this job")
    return answer
