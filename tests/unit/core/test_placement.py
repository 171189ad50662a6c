"""Where ranks go: never on what is out, on what they had, the same every time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core.builders import NODES

from medevac.core.events import Gpu, Node
from medevac.core.placement import place

GPUS = [gpu.uuid for node in NODES for gpu in node.gpus]
OUT = st.sets(st.sampled_from([*GPUS, *(node.name for node in NODES)]))


def used(places: object) -> list[str]:
    return [gpu for one in places or () for gpu in one.gpus]  # type: ignore[attr-defined]


@given(out=OUT, ranks=st.integers(1, 16), size=st.integers(1, 3))
def test_never_on_what_is_out(out: set[str], ranks: int, size: int) -> None:
    placed = place(NODES, ranks, size, out)
    gpus = used(placed)
    assert not out & set(gpus)
    assert not out & {one.node for one in placed or ()}
    assert len(gpus) == len(set(gpus))
    assert all(len(one.gpus) == size for one in placed or ())
    assert [one.rank for one in placed or ()] == list(range(len(placed or ())))


@given(out=OUT, ranks=st.integers(1, 16))
def test_as_many_ranks_as_fit(out: set[str], ranks: int) -> None:
    free = [gpu.uuid for node in NODES if node.name not in out for gpu in node.gpus if gpu.uuid not in out]
    placed = place(NODES, ranks, 1, out)
    assert len(placed or ()) == min(ranks, len(free))
    assert (placed is None) is (not free)


@given(out=OUT, ranks=st.integers(1, 12))
def test_the_same_input_gives_the_same_places(out: set[str], ranks: int) -> None:
    before = place(NODES, ranks)
    assert place(NODES, ranks, 1, out, before or ()) == place(NODES, ranks, 1, frozenset(out), before or ())


@given(out=OUT, ranks=st.integers(1, 12))
def test_what_is_still_usable_is_kept(out: set[str], ranks: int) -> None:
    before = used(place(NODES, ranks))
    homes = {gpu.uuid: node.name for node in NODES for gpu in node.gpus}
    usable = {gpu for gpu in before if gpu not in out and homes[gpu] not in out}
    assert usable <= set(used(place(NODES, ranks, 1, out, place(NODES, ranks) or ())))


def test_ranks_spread_over_the_nodes_and_local_ranks_count_per_node() -> None:
    placed = place(NODES, 8)
    assert placed is not None
    assert [(one.node, one.local_rank) for one in placed] == [(f"n{n}", i) for n in range(4) for i in range(2)]


def test_one_process_gets_the_usable_gpus_of_one_node() -> None:
    placed = place(NODES, 0, out={"n0", "g11"})
    assert placed is not None
    assert [(one.node, one.gpus) for one in placed] == [("n1", ("g10", "g12"))]


def test_without_gpus_ranks_go_round_the_nodes() -> None:
    bare = tuple(Node(name=name) for name in "abc")
    placed = place(bare, 4, out={"b"})
    assert placed is not None
    assert [(one.rank, one.node) for one in placed] == [(0, "a"), (1, "a"), (2, "c"), (3, "c")]


def test_nothing_usable_is_none() -> None:
    assert place(NODES, 4, out={node.name for node in NODES}) is None
    assert place((Node(name="a", gpus=(Gpu(index=0, uuid="x"),)),), 1, 2) is None
