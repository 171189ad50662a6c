"""PyTorch's NCCL flight-recorder dumps, pickled or JSON, as `core.flight_recorder.Trace`.

A dump holds nothing but dicts, lists, tuples, texts and numbers, so the unpickler here knows no class at all: a file
that asks for one is refused before anything of it runs. Format: PyTorch source, torch/csrc/distributed/c10d,
FlightRecorder (versions 1.x and 2.x).
"""

from __future__ import annotations

import io
import pickle  # noqa: TID251 - a foreign format; the unpickler below can build no object
import re
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from medevac.core.flight_recorder import Collective, State, Trace

LARGEST = 1 << 28
"""Bytes; the recorder's ring holds a few thousand entries, about 1 KB each."""


class BadDump(ValueError):
    """Not a flight-recorder dump; the message names the file."""


class _Plain(pickle.Unpickler):
    """Builds plain values only."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise BadDump(f"asks for {module}.{name}, which no dump needs: refused")

    def persistent_load(self, pid: object) -> NoReturn:
        raise BadDump("refers to something outside the file: refused")


def read_dump(name: str, data: bytes) -> Trace:
    """Read one dump. The rank is the dump's own, else the last number of the file name. Raises `BadDump`."""
    try:
        content = _content(data)
        rank = content["rank"] if "rank" in content else rank_of(name)
        members, desc = _groups(content.get("pg_config") or {})
        entries = tuple(_collective(entry, desc) for entry in content.get("entries") or ())
        return Trace(rank=int(rank), members=members, entries=entries, enqueued=_enqueued(content))
    except BadDump as error:
        raise BadDump(f"{name}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise BadDump(f"{name}: not a flight-recorder dump ({type(error).__name__}: {error})") from error


def rank_of(name: str) -> int:
    """`nccl_trace_rank_12.json` is rank 12. Raises `BadDump` for a name without a number."""
    found = re.findall(r"\d+", name.rpartition("/")[2])
    if not found:
        raise BadDump("its name has no rank")
    return int(found[-1])


def _content(data: bytes) -> Mapping[str, Any]:
    if len(data) > LARGEST:
        raise BadDump(f"larger than {LARGEST >> 20} MiB")
    content = msgspec.json.decode(data) if data.lstrip()[:1] in (b"{", b"[") else _unpickle(data)
    if isinstance(content, list):  # version 1.0 was the entries alone
        content = {"entries": content}
    if not isinstance(content, dict) or not isinstance(content.get("entries", []), list | tuple):
        raise BadDump("has no entries")
    return content


def _unpickle(data: bytes) -> Any:
    try:
        return _Plain(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, MemoryError, OverflowError, ImportError, UnicodeDecodeError) as error:
        raise BadDump(f"neither a pickle nor JSON ({error})") from error


def _groups(config: Mapping[str, Any]) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Members by group, and the name of a group by each of its names."""
    members: dict[str, tuple[int, ...]] = {}
    names: dict[str, str] = {}
    for key, value in config.items():
        ranks = value.get("ranks", ()) if isinstance(value, dict) else value
        text = ranks if isinstance(ranks, str) else " ".join(map(str, ranks))
        members[str(key)] = tuple(int(rank) for rank in re.findall(r"\d+", text))
        names[str(key)] = str(key)
        if isinstance(value, dict) and "name" in value:
            names[str(value["name"])] = str(key)
    return members, names


def _enqueued(content: Mapping[str, Any]) -> dict[str, int]:
    status = content.get("pg_status") or {}
    return {str(group): int(said.get("last_enqueued_collective", 0)) for group, said in status.items()}


def _collective(entry: Mapping[str, Any], names: Mapping[str, str]) -> Collective:
    group = entry.get("process_group", entry.get("pg_name", entry.get("pg_id", "0")))
    group = str(group[0]) if isinstance(group, list | tuple) else str(group)
    p2p = bool(entry.get("is_p2p"))
    seq = entry.get("p2p_seq_id" if p2p else "collective_seq_id", entry.get("seq_id", 0))
    frames = entry.get("frames") or ()
    return Collective(
        group=names.get(group, group) + (" p2p" if p2p else ""),
        seq=int(seq),
        op=str(entry.get("profiling_name", "")).removeprefix("nccl:").partition(" ")[0],
        state=_state(entry),
        sizes=tuple(tuple(int(n) for n in size) for size in entry.get("input_sizes") or ()),
        dtypes=tuple(str(kind) for kind in entry.get("input_dtypes") or ()),
        created=int(entry.get("time_created_ns") or 0),
        place=_place(frames[0]) if frames else "",
    )


def _state(entry: Mapping[str, Any]) -> State:
    state = entry.get("state")
    if state in ("completed", "started", "scheduled"):
        return state  # type: ignore[no-any-return]
    if entry.get("retired") or entry.get("time_discovered_completed_ns"):
        return "completed"
    return "started" if entry.get("time_discovered_started_ns") else "scheduled"


def _place(frame: Any) -> str:
    if isinstance(frame, dict):
        return f"{frame.get('filename', '')}:{frame.get('line', '')} {frame.get('name', '')}".strip()
    return str(frame)
