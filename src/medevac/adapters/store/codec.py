"""Events and decisions as the JSON that is stored.

Whatever is taken is decoded again before anyone acts on it: what the live process sees is then exactly what a later
replay will read, and nothing gets into the log that cannot be read back.
"""

from __future__ import annotations

import msgspec

from medevac.core.decision import Decision
from medevac.core.events import AnyEvent
from medevac.ports.errors import BadReply, Refused
from medevac.ports.store import DecisionRecord, EventRecord, Record

_encode = msgspec.json.Encoder().encode
_decode_event = msgspec.json.Decoder[AnyEvent](AnyEvent).decode
_decode_decision = msgspec.json.Decoder(Decision).decode


def encode(value: AnyEvent | Decision) -> str:
    """The value as stored. Raises `Refused` for one that JSON cannot carry (lone surrogates, NaN as a number)."""
    try:
        text = _encode(value)
        _decode_decision(text) if isinstance(value, Decision) else _decode_event(text)
        return text.decode()
    except (ValueError, OverflowError, TypeError) as error:
        raise Refused(f"{type(value).__name__} {value.id!r} cannot be stored: {error}") from error


def decode(seq: int, kind: str, body: str) -> Record:
    """A stored row as its record. Raises `BadReply` for one that this version cannot read."""
    try:
        if kind == "event":
            return EventRecord(seq=seq, event=_decode_event(body))
        if kind == "decision":
            return DecisionRecord(seq=seq, decision=_decode_decision(body))
    except msgspec.DecodeError as error:
        raise BadReply(f"record {seq} cannot be read ({error}): was it written by a newer Medevac?") from error
    raise BadReply(f"record {seq} is of the unknown kind {kind!r}: was it written by a newer Medevac?")
