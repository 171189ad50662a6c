"""A log as JSON lines: one record a line, as `medevac.ports.store` defines it.

{"type":"event","seq":1,"event":{"type":"FaultSeen","at":1.0,...}}
{"type":"decision","seq":2,"decision":{"id":"...","cause":1,...}}
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from medevac.adapters.store.sqlite import read_all
from medevac.ports.errors import PortError, UnreadableError
from medevac.ports.store import Record, Store

_SQLITE = b"SQLite format 3\0"
_decoder = msgspec.json.Decoder[Record](Record)
_encoder = msgspec.json.Encoder()


async def dump(store: Store, fh: IO[str]) -> int:
    """Write all records of a store, in order; returns how many. Raises as `Store.records`, and OSError."""
    count, last = 0, 0
    while chunk := await store.records(after=last, limit=10_000):
        fh.writelines(_encoder.encode(record).decode() + "\n" for record in chunk)
        count, last = count + len(chunk), chunk[-1].seq
    return count


def load(path: str | Path) -> list[Record]:
    """All records of a `medevac.db`, of a folder that holds one, or of a JSON-lines file.

    Raises `UnreadableError` naming the file, and the line where one is wrong.
    """
    file = Path(path)
    if file.is_dir():
        file /= "medevac.db"
    try:
        with file.open("rb") as fh:
            head = fh.read(len(_SQLITE))
            fh.seek(0)
            return list(read_all(file)) if head == _SQLITE else list(_lines(file, fh))
    except OSError as error:
        raise UnreadableError(str(file), f"cannot be read: {error.strerror}") from error
    except PortError as error:
        raise UnreadableError(str(file), str(error).removeprefix(f"{file}: ")) from error


def _lines(file: Path, lines: IO[bytes]) -> Iterator[Record]:
    last = 0
    for number, line in enumerate(lines, 1):
        where = f"{file}:{number}"
        try:
            record = _decoder.decode(line)
        except ValueError as error:
            raise UnreadableError(where, f"is no record of a log: {error}") from error
        if record.seq <= last:
            problem = f"seq {record.seq} does not follow {last}; records must stand in order, once each"
            raise UnreadableError(where, problem)
        last = record.seq
        yield record
