"""Events wait on disk until the log is read: only then is known which incident each belongs to.

Kept in memory up to 16 MiB, then in a temporary file; in the order of reading.
"""

from __future__ import annotations

import csv
import tempfile
from typing import IO, TYPE_CHECKING, Protocol, Self

import msgspec

from medevac.decode.output import CSV_COLUMNS, EventObject, csv_row, event_object

if TYPE_CHECKING:
    from collections.abc import Iterator

    from medevac.core.events import FaultSeen
    from medevac.decode.annotate import Annotation
    from medevac.decode.incidents import Burst
    from medevac.decode.incidents_told import Members

IN_MEMORY = 16 << 20
_TAIL = b',"incident":null,"role":"alone"}'
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(EventObject).decode


class Text(Protocol):
    """Where CSV goes."""

    def write(self, text: str, /) -> object:
        """Take some text."""


class Spool:
    """A context manager: its file is gone when it is left."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY, prefix="medevac-decode-")  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, fault: FaultSeen, reading: Annotation, burst: Burst) -> None:
        """Keep one event with the burst that it is counted in."""
        self._file.write(b"%d %s\n" % (burst.index, _encode(event_object(fault, reading))))

    def lines(self, members: Members) -> Iterator[bytes]:
        """Each event as a line of JSON, its incident and role filled in."""
        self._file.seek(0)
        for line in self._file:
            index, _, event = line.partition(b" ")
            member = members.get(int(index))
            if member is None:
                yield event
            else:
                yield b'%b,"incident":"%b","role":"%b"}\n' % (event[: -len(_TAIL) - 1], *map(str.encode, member))

    def events(self, members: Members) -> Iterator[EventObject]:
        """The same as objects."""
        return map(_decode, self.lines(members))

    def write_json(self, members: Members, out: IO[bytes]) -> None:
        """All events, one JSON object a line."""
        out.writelines(self.lines(members))

    def write_csv(self, members: Members, out: Text) -> None:
        """All events as CSV with a line of column names."""
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(CSV_COLUMNS)
        writer.writerows(map(csv_row, self.events(members)))
