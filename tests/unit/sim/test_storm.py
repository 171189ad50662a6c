"""The plan of the demo's story: right for every seed, and shown as a real node would show it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medevac.adapters.topology import load_topology
from medevac.decode.context import Context
from medevac.decode.lines import decode_line
from medevac.sim.cluster_folder import TOPOLOGY, ClusterFolder, make
from medevac.sim.lines import double_bit_error, row_remapped, stamped
from medevac.sim.storm import RANKS, Corruption, Counters, Environment, KernelMessage, Storm

LIMIT = 10
"""Rows that a GPU may remap in a day before it is taken out."""

seeds = st.integers(min_value=0, max_value=10**6)


def rows(storm: Storm) -> dict[str, list[KernelMessage]]:
    found = defaultdict(list)
    for one in storm.shown:
        if isinstance(one, KernelMessage) and one.xid == 63:
            found[one.gpu].append(one)
    return found


def used(storm: Storm) -> set[str]:
    return {gpu.uuid for node in storm.nodes for gpu in node.gpus if gpu.index < 2}


@given(seeds)
def test_three_gpus_of_one_rack_remap_too_many_rows(seed: int) -> None:
    storm = Storm.plan(seed)
    remapped = rows(storm)
    assert set(remapped) == set(storm.stormy)
    assert len(storm.stormy) == 3
    racks = {gpu.uuid: node.rack for node in storm.nodes for gpu in node.gpus}
    assert {racks[gpu] for gpu in storm.stormy} == {storm.rack}
    for messages in remapped.values():
        assert len({one.message for one in messages}) == len(messages) > LIMIT
        assert messages[LIMIT - 1].at - messages[0].at > 0.5


@given(seeds)
def test_the_victim_is_used_by_the_job_and_its_memory_goes_bad_with_the_error(seed: int) -> None:
    storm = Storm.plan(seed)
    assert storm.victim in used(storm)
    (worst,) = [one for one in storm.shown if isinstance(one, KernelMessage) and one.xid == 48]
    (corruption,) = [one for one in storm.shown if isinstance(one, Corruption)]
    assert worst.gpu == corruption.gpu == storm.victim
    assert worst.at == corruption.at
    counted = [one for one in storm.shown if isinstance(one, Counters) and one.dbe]
    assert {one.gpu for one in counted} == {storm.victim}
    assert counted[0].at == worst.at
    # No GPU is over the limit before: the job is where it was when the error strikes.
    assert all(len([one for one in messages if one.at < worst.at]) <= LIMIT for messages in rows(storm).values())


@given(seeds)
def test_power_fails_first_and_counters_only_climb(seed: int) -> None:
    storm = Storm.plan(seed)
    first = storm.shown[0]
    assert isinstance(first, Environment)
    assert (first.rack, first.component, first.state) == (storm.rack, "psu", "failed")
    assert [one.at for one in storm.shown] == sorted(one.at for one in storm.shown)
    last = {one.gpu: one for one in storm.baseline}
    for one in storm.shown:
        if isinstance(one, Counters):
            before = last[one.gpu]
            assert (one.sbe, one.dbe, one.remapped_rows) >= (before.sbe, before.dbe, before.remapped_rows)
            last[one.gpu] = one
    for gpu in storm.stormy:
        assert last[gpu].remapped_rows == len(rows(storm)[gpu])
        assert last[gpu].sbe > 100


@given(seeds)
def test_a_seed_is_one_plan(seed: int) -> None:
    assert msgspec.json.encode(Storm.plan(seed)) == msgspec.json.encode(Storm.plan(seed))


def test_seeds_move_everything() -> None:
    plans = [Storm.plan(seed) for seed in range(50)]
    assert {plan.rack for plan in plans} == {"rack1", "rack2"}
    assert {len(plan.nodes[0].gpus) for plan in plans} == {2, 3}
    assert len({plan.victim for plan in plans}) == 50
    assert len({plan.shown[0].at for plan in plans}) > 40


@pytest.mark.parametrize(("spares", "gpus"), [(True, 12), (False, 8)])
def test_spares_can_be_given_and_taken(spares: bool, gpus: int) -> None:
    storm = Storm.plan(3, spares=spares)
    assert len(storm.baseline) == gpus
    assert len(used(storm)) == RANKS
    assert len({(gpu.uuid, gpu.pci) for node in storm.nodes for gpu in node.gpus}) == gpus


@given(seeds)
def test_a_decoy_fails_beside_the_job(seed: int) -> None:
    storm = Storm.plan(seed, fault=False, decoy=True)
    assert storm.victim == ""
    assert {one.gpu for one in storm.shown if isinstance(one, KernelMessage)} == {storm.decoy}
    assert storm.decoy not in used(storm)
    assert 48 in {one.xid for one in storm.shown if isinstance(one, KernelMessage)}


def test_without_fault_and_decoy_nothing_happens() -> None:
    assert Storm.plan(3, fault=False).shown == ()


@given(st.integers(min_value=0, max_value=2**40), st.sampled_from([63, 48]))
def test_the_lines_read_back(address: int, xid: int) -> None:
    message = row_remapped("0000:3b:00.0", address) if xid == 63 else double_bit_error("0000:3b:00.0", address, 3, 1)
    event = decode_line(stamped(message, "node3", 1796078564.798717), Context())
    assert event is not None
    assert (event.kind, event.code, event.pci, event.node) == ("xid", xid, "0000:3b:00.0", "node3")
    assert event.at == pytest.approx(1796078564.798717, abs=1e-5)


def test_a_cluster_folder_holds_what_nodes_show(tmp_path: Path) -> None:
    storm = Storm.plan(3)
    make(tmp_path, storm)
    topology = load_topology(tmp_path / TOPOLOGY)
    assert topology.nodes == storm.nodes
    assert topology.kernel_logs == {node.name: tmp_path / node.name / "kmsg" for node in storm.nodes}
    folder = ClusterFolder(tmp_path, storm.nodes)
    for one in storm.shown:
        folder.show(one, 1796078564.0 + one.at)
    for node in storm.nodes:
        lines = (tmp_path / node.name / "kmsg").read_text().splitlines()
        assert len(lines) == len(
            [one for one in storm.shown if isinstance(one, KernelMessage) and one.node == node.name]
        )
        sensors = [json.loads(line) for line in (tmp_path / node.name / "env.jsonl").read_text().splitlines()]
        assert len(sensors) == (node.rack == storm.rack)
    victim = next(node for node in storm.nodes for gpu in node.gpus if gpu.uuid == storm.victim)
    index = next(gpu.index for gpu in victim.gpus if gpu.uuid == storm.victim)
    counters = json.loads((tmp_path / victim.name / f"gpu{index}.json").read_text())
    assert set(counters) == {"uuid", "pci", "sbe", "dbe", "remapped_rows", "temperature"}
    assert counters["dbe"] == 1
    with pytest.raises(FileExistsError, match="empty folder"):
        make(tmp_path, storm)
