"""Who holds a stalled collective up, and how dumps are read."""

from __future__ import annotations

import contextlib
import json
import pickle  # noqa: TID251 - the format that is read
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medevac.core.flight_recorder import Collective, State, Trace, analyse
from medevac.decode.fr_dump import BadDump, read_dump
from medevac.decode.fr_dump_files import read_dumps, stall_clues

WORLD = (0, 1, 2, 3)


def op(seq: int, state: State, *, group: str = "0", name: str = "all_reduce", size: int = 64) -> Collective:
    return Collective(group=group, seq=seq, op=name, state=state, sizes=((size,),), dtypes=("Float",), created=seq)


def traces(**last: Collective | None) -> dict[int, Trace]:
    """Ranks r0.. with operations up to their last one; None is a rank without a dump."""
    made = {}
    for name, entry in last.items():
        if entry is None:
            continue
        before = tuple(op(seq, "completed", group=entry.group) for seq in range(1, entry.seq))
        made[int(name[1:])] = Trace(rank=int(name[1:]), members={"0": WORLD}, entries=(*before, entry))
    return made


def test_all_completed_is_no_stall() -> None:
    stall = analyse(traces(r0=op(5, "completed"), r1=op(5, "completed"), r2=op(5, "completed"), r3=op(5, "completed")))
    assert stall.held == "none"


def test_a_rank_without_a_dump_is_named_first() -> None:
    stall = analyse(traces(r0=op(5, "started"), r1=op(5, "started"), r2=None, r3=op(5, "started")))
    assert (stall.held, stall.ranks) == ("missing-dump", (2,))


def test_the_rank_that_enqueued_least_is_named() -> None:
    stall = analyse(traces(r0=op(9, "started"), r1=op(9, "started"), r2=op(9, "started"), r3=op(7, "completed")))
    assert (stall.held, stall.ranks, stall.seq) == ("behind", (3,), 9)


def test_an_incomplete_set_still_names_the_one_behind() -> None:
    stall = analyse(traces(r0=op(9, "started"), r1=op(8, "completed")))
    assert (stall.held, stall.ranks, stall.missing) == ("behind", (1,), (2, 3))


def test_a_rank_that_did_not_start_is_named() -> None:
    stall = analyse(traces(r0=op(4, "started"), r1=op(4, "scheduled"), r2=op(4, "started"), r3=op(4, "started")))
    assert (stall.held, stall.ranks) == ("not-started", (1,))


def test_all_started_blames_no_rank() -> None:
    stall = analyse(traces(r0=op(4, "started"), r1=op(4, "started"), r2=op(4, "started"), r3=op(4, "started")))
    assert (stall.held, stall.ranks) == ("all-started", ())


@pytest.mark.parametrize("odd", [op(4, "started", size=65), op(4, "started", name="broadcast")])
def test_another_size_or_operation_is_a_mismatch(odd: Collective) -> None:
    stall = analyse(traces(r0=op(4, "started"), r1=op(4, "started"), r2=odd, r3=op(4, "started")))
    assert (stall.held, stall.ranks) == ("mismatch", (2,))


def test_sizes_of_an_all_to_all_may_differ() -> None:
    last = {f"r{rank}": op(4, "started", name="all_to_all", size=rank) for rank in WORLD}
    assert analyse(traces(**last)).held == "all-started"


def test_a_rank_that_waits_in_another_group_leads_there() -> None:
    """Rank 1 is late in the world group because rank 2 never came to their pair."""
    pair = op(3, "started", group="pair")
    made = traces(r0=op(9, "started"), r1=op(8, "completed"), r2=op(8, "completed"), r3=op(9, "started"))
    members = {"0": WORLD, "pair": (1, 2)}
    made = {
        rank: Trace(rank=rank, members=members, entries=(*trace.entries, pair) if rank == 1 else trace.entries)
        for rank, trace in made.items()
    }
    stall = analyse(made)
    assert (stall.held, stall.group, stall.ranks) == ("behind", "pair", (2,))


def dump(last: int, state: str, **more: Any) -> dict[str, Any]:
    """A dump as PyTorch 2.x writes it."""
    entry = {
        "process_group": ("0", "default_pg"),
        "profiling_name": "nccl:all_reduce",
        "input_sizes": ((8, 8),),
        "input_dtypes": ["BFloat16"],
        "time_created_ns": 1,
        "frames": [{"name": "step", "filename": "train.py", "line": 41}],
        "is_p2p": False,
    }
    entries = [{**entry, "collective_seq_id": seq, "state": "completed"} for seq in range(1, last)]
    entries.append({**entry, "collective_seq_id": last, "state": state})
    return {"version": "2.4", "pg_config": {"0": {"name": "0", "ranks": "[0, 1]"}}, "entries": entries, **more}


@pytest.mark.parametrize("encode", [pickle.dumps, lambda value: json.dumps(value).encode()])
def test_pickle_and_json_read_the_same(encode: Any) -> None:
    trace = read_dump("/x/nccl_trace_rank_1", encode(dump(3, "started")))
    assert trace.rank == 1
    assert trace.members == {"0": (0, 1)}
    assert trace.entries[-1].place == "train.py:41 step"
    assert (trace.entries[-1].op, trace.entries[-1].sizes) == ("all_reduce", ((8, 8),))


def test_old_versions_are_read() -> None:
    old = [{"pg_id": 0, "seq_id": 4, "profiling_name": "nccl:broadcast", "state": "scheduled", "frames": []}]
    assert read_dump("trace_0", pickle.dumps(old)).entries[0].seq == 4
    timed = {"entries": [{"pg_id": 0, "seq_id": 4, "retired": True}]}
    assert read_dump("trace_0", json.dumps(timed).encode()).entries[0].state == "completed"


def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    with pytest.raises(BadDump, match="refused"):
        read_dump("trace_0", pickle.dumps({"entries": [Evil()]}))
    assert not (tmp_path / "ran").exists()


def test_one_bad_file_costs_no_other(tmp_path: Path) -> None:
    (tmp_path / "trace_0").write_bytes(pickle.dumps(dump(5, "started")))
    (tmp_path / "trace_1").write_bytes(pickle.dumps(dump(4, "completed")))
    (tmp_path / "trace_2").write_bytes(b"\x80\x04 torn")
    read = read_dumps([tmp_path])
    assert sorted(read.traces) == [0, 1]
    assert "trace_2" in read.unread[0]
    stall = analyse(read.traces)
    assert stall.ranks == (1,)
    assert stall_clues("d", stall)[0].rank == 1


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(BadDump):
        assert isinstance(read_dump("trace_7", data), Trace)


STATES: tuple[State, ...] = ("scheduled", "started", "completed")


@settings(deadline=None)
@given(
    st.dictionaries(
        st.integers(0, 5),
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 6), st.sampled_from(STATES)), max_size=8),
        max_size=6,
    )
)
def test_any_set_of_traces_has_a_finding_about_its_own_ranks(found: dict[int, list[tuple[str, int, State]]]) -> None:
    made = {
        rank: Trace(
            rank=rank, members={"a": (0, 1, 2), "b": (2, 3, 4, 5)}, entries=tuple(op(q, s, group=g) for g, q, s in rows)
        )
        for rank, rows in found.items()
    }
    stall = analyse(made)
    assert set(stall.ranks) <= set(range(6))
    assert stall.why
