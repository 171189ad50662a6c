"""What is written on nodes, and counted, without a Slurm."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medevac.adapters.schedulers.slurm import parse
from medevac.adapters.schedulers.slurm.counts import Counts, counted
from medevac.adapters.schedulers.slurm.hostlist import compress, expand
from medevac.adapters.schedulers.slurm.nodemark import NodeMark, node_mark, with_node_mark
from medevac.adapters.schedulers.slurm.values import SlurmNode
from medevac.core.actions import GiveBack
from medevac.ports.errors import Refused

BACK = GiveBack(id="back", node="n1", gpu="GPU-1")
MARK = NodeMark(low={"GPU-1": "I7"}, weight=10, left=("train",))

# scontrol -o show node, Slurm 22.05.8, of a node that was restricted.
NODE = (
    "NodeName=node0 Arch=x86_64 CoresPerSocket=4  CPUAlloc=0 CPUEfctv=4 CPUTot=4 CPULoad=0.95 "
    "AvailableFeatures=a,medevac_restricted ActiveFeatures=a,medevac_restricted Gres=gpu:2 NodeAddr=127.0.0.1 "
    "NodeHostName=vm Port=45723 Version=22.05.8 OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=1000 AllocMem=0 "
    "FreeMem=19837 Sockets=1 Boards=1 State=IDLE+DRAIN+REBOOT_REQUESTED ThreadsPerCore=1 TmpDisk=0 Weight=99 Owner=N/A "
    "MCS_label=N/A Partitions=train  BootTime=2026-12-01T02:32:31 SlurmdStartTime=2026-12-01T02:41:52 "
    "LastBusyTime=2026-12-01T02:41:52 CfgTRES=cpu=4,mem=1000M,billing=4 AllocTRES= CapWatts=n/a CurrentWatts=0 "
    "AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s "
    "Reason=medevac[hard=node0] incident-7: why [root@2026-12-01T02:42:09] "
    'Comment={"medevac":{"low":{"GPU-1":"I7"},"weight":10}} Extra=x y\n'
)

# scontrol -o show reservation, Slurm 22.05.8.
RESERVATIONS = (
    "ReservationName=medevac_I7_node1 StartTime=2026-12-01T02:42:22 EndTime=2027-12-01T02:42:22 Duration=365-00:00:00 "
    "Nodes=node1 NodeCnt=1 CoreCnt=4 Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES "
    "TRES=cpu=4 Users=root Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a "
    "MaxStartDelay=(null)\n"
)


@given(st.one_of(st.text(max_size=30), st.dictionaries(st.text(max_size=5), st.integers()).map(json.dumps)))
def test_what_stood_in_a_comment_is_there_again(before: str) -> None:
    if "medevac" in before:
        return
    marked = with_node_mark(with_node_mark(before, MARK), NodeMark(fewer={"GPU-2": "soft"}, gres="accel:4"))
    assert node_mark(marked).fewer == {"GPU-2": "soft"}
    after = with_node_mark(marked, NodeMark())
    assert after == before or json.loads(after) == json.loads(before) or (before == "{}" and after == "")


def test_a_mark_is_read_back_and_others_keep_theirs() -> None:
    marked = with_node_mark('{"rack": 3}', MARK)
    assert json.loads(marked)["rack"] == 3
    assert node_mark(marked) == MARK
    assert with_node_mark("", NodeMark()) == ""


@pytest.mark.parametrize("text", ["", "text", "[1]", '{"medevac": 3}', '{"medevac": {"low": 7}}', "{"])
def test_what_is_no_mark_says_nothing(text: str) -> None:
    assert node_mark(text) == NodeMark()


@pytest.mark.parametrize(
    ("gres", "fewer", "left"),
    [
        ("accel:4", 1, "accel:3"),
        ("bw:10,accel:h100:8", 2, "bw:10,accel:h100:6"),
        ("accel:1", 1, None),
        ("accel:4", 4, None),
        ("accel", 1, None),
        ("accel:4(S:0-1)", 1, None),
        ("accel:a:2,accel:b:2", 1, None),
        ("accel:no", 1, None),
        ("gpu:4", 1, None),
        ("", 1, None),
        ("(null)", 1, None),
    ],
)
def test_only_a_plain_count_is_reduced_and_never_to_nothing(gres: str, fewer: int, left: str | None) -> None:
    assert counted(gres, "accel", fewer) == left


def test_a_node_with_all_that_is_changed_of_it() -> None:
    (node,) = parse.nodes(NODE)
    assert (node.features, node.active, node.weight, node.complete) == (
        ("a", "medevac_restricted"), ("a", "medevac_restricted"), 99, True,
    )  # fmt: skip
    assert (node.boot, node.reason) == ("2026-12-01T02:32:31", "medevac[hard=node0] incident-7: why")
    assert node_mark(node.comment) == NodeMark(low={"GPU-1": "I7"}, weight=10)
    assert not node.usable
    (unread,) = parse.nodes(NODE.replace(" Weight=99", "").replace("BootTime=2026-12-01T02:32:31", "BootTime=None"))
    assert (unread.complete, unread.boot) == (False, "")
    bare = "AvailableFeatures=a,medevac_restricted ActiveFeatures=a,medevac_restricted "  # 24.05 has none of it then
    (plain,) = parse.nodes(NODE.replace(bare, ""))
    assert (plain.complete, plain.features, plain.active) == (True, (), ())
    (maintained,) = parse.nodes(NODE.replace("IDLE+DRAIN+REBOOT_REQUESTED", "IDLE+MAINTENANCE+RESERVED"))
    assert not maintained.usable


def test_reservations() -> None:
    assert parse.reservations(RESERVATIONS) == {"medevac_I7_node1": ("node1",)}
    assert parse.reservations("No reservations in the system\n") == {}


def test_lists_with_ranges_are_short() -> None:
    assert compress(f"node{n:04}" for n in range(5000)) == "node[0000-4999]"
    assert compress(["node1", "node2", "node4", "login", "node10"]) == "login,node[1-2,4],node10"


@given(st.lists(st.from_regex(r"[a-z]{1,5}-?[0-9]{0,4}", fullmatch=True), max_size=30))
def test_what_is_compressed_expands_to_the_same(names: list[str]) -> None:
    assert set(expand(compress(names))) == set(names)


class Node:
    """A Slurm with one node, of which one accelerator is left out."""

    def __init__(self) -> None:
        self.words = [with_node_mark("", NodeMark(fewer={"GPU-1": "hard"}, gres="accel:4"))]

    async def comment(self, _name: str) -> str:
        return self.words[0]

    async def run(self, *words: str) -> str:
        self.words.append(words[-1])
        return ""


@pytest.mark.parametrize("name", ["", "other"])
async def test_a_count_stays_marked_where_the_setting_has_changed_since(name: str) -> None:
    """Else it would stay too low, and nobody would know why."""
    node: Any = Node()
    with pytest.raises(Refused, match="accel:4"):
        await Counts(node, node, name).more(SlurmNode(name="n1", states=frozenset(), gres="accel:3"), BACK)
    assert len(node.words) == 1
