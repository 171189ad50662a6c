"""Coverage-guided fuzzing of the line decoder: whatever bytes come, it gives an event or none, and quickly.

python tests/fuzz/decode.py -max_total_time=600 -max_len=4096
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["medevac.decode"]):
    from medevac.decode.context import Context
    from medevac.decode.lines import decode_line
    from medevac.decode.stream import decode_stream

import io

REFERENCE = 1_800_000_000.0


def one(data: bytes) -> None:
    """Each line by itself, then the same bytes as a stream."""
    context = Context(reference=REFERENCE)
    for line in data.split(b"\n"):
        event = decode_line(line, context)
        if event is not None and not event.kind:
            raise AssertionError("an event without a kind")
    for event in decode_stream(io.BytesIO(data), "fuzz"):
        if event.line < 1:
            raise AssertionError("an event without a line")


def main() -> None:
    """Run libFuzzer with its own options."""
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
