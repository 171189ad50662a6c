"""A fuzz target for the decoder: whatever the bytes, it does not raise, and what it says has its form.

    python tests/fuzz/decode.py -max_total_time=600 -max_len=4096 tests/fuzz/corpus

The first byte chooses the way in: one record, a log in small blocks, a packed file, or (an `f`) a log that is followed
in pieces, which gives the same as all of it at once. New inputs are written to the
first folder given; keep those that found something, and only those.
"""

from __future__ import annotations

import io
import re
import sys

import msgspec

from medevac.core.events import FaultSeen
from medevac.decode import stream
from medevac.decode.context import Context
from medevac.decode.files import decode_log
from medevac.decode.follow import Feed
from medevac.decode.lines import decode_line
from medevac.decode.readers import Unreadable, open_stream
from medevac.decode.stream import decode_stream

PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
REFERENCE = 1775000000.0


def check(event: FaultSeen) -> None:
    """Whether an event has its form."""
    assert event.kind
    assert event.pci is None or PCI.fullmatch(event.pci), event
    assert 0 <= event.at < 1e12, event
    assert event.code is None or 0 <= event.code < 1_000_000, event
    msgspec.json.encode(event)


def followed(data: bytes, step: int) -> None:
    """A log that comes in pieces of `step` bytes."""
    once, pieces = (Feed("log", Context(reference=REFERENCE)) for _ in range(2))
    want = once.take(data) + once.end()
    seen = [event for start in range(0, len(data), step) for event in pieces.take(data[start : start + step])]
    seen += pieces.end()
    for event in seen:
        check(event)
    assert [(event.line, event.kind) for event in seen] == [(event.line, event.kind) for event in want], (seen, want)


def one(data: bytes) -> None:
    """One input of the fuzzer."""
    if data.startswith(b"f"):
        followed(data[2:], 1 + data[1] if len(data) > 1 else 1)
        return
    way, data = (data[0] % 3, data[1:]) if data else (0, data)
    if way == 0:
        event = decode_line(data, Context(reference=REFERENCE))
        if event is not None:
            check(event)
    elif way == 1:
        stream.BLOCK = 64 + len(data) // 3
        last = 0
        for event in decode_stream(io.BytesIO(data), "log", ctx=Context(reference=REFERENCE)):
            check(event)
            assert last <= event.line <= data.count(b"\n") + 1, event
            last = event.line
    else:
        try:
            for log in open_stream(io.BytesIO(data), "packed", mtime=REFERENCE):
                for event in decode_log(log, Context(reference=log.mtime)):
                    check(event)
        except Unreadable:
            pass


def main() -> None:
    """Run libFuzzer with its own options."""
    import atheris

    atheris.instrument_all()
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
