"""Parsers, on what real clusters said. Each text names its Slurm; "unverified" was written from the manual."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medevac.adapters.schedulers.slurm import parse
from medevac.ports.errors import BadReply

MARK = "9c1e44a0"

# scontrol -d -o show job, Slurm 22.05.8, a running job of two nodes with two GPUs each.
JOB = (
    "JobId=1 JobName=j.sh UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901759 Nice=0 Account=(null) "
    "QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 "
    "DerivedExitCode=0:0 RunTime=00:00:01 TimeLimit=365-00:00:00 TimeMin=N/A SubmitTime=2026-11-30T23:07:32 "
    "Partition=train AllocNode:Sid=localhost:27415 ReqNodeList=(null) ExcNodeList=node[5,7-8] NodeList=node[0-1] "
    "BatchHost=node0 NumNodes=2 NumCPUs=2 NumTasks=2 CPUs/Task=1 TRES=cpu=2,node=2,billing=2 JOB_GRES=gpu:4   "
    "Nodes=node[0-1] CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1) MinCPUsNode=1 Features=(null) Command=/tmp/j.sh "
    'WorkDir=/tmp Comment={"medevac": {"max_restarts": 3}}  StdErr=/tmp/o.txt TresPerNode=gres:gpu:2 '
)

# scontrol show node (several lines), Slurm 24.05.5, names changed.
NODES = """\
NodeName=n1 Arch=x86_64 CoresPerSocket=24
   CPUAlloc=0 CPUEfctv=24 CPUTot=24 CPULoad=0.1
   AvailableFeatures=h100,ib
   Gres=gpu:8
   State=IDLE*+DRAIN+CLOUD ThreadsPerCore=2 TmpDisk=0 Weight=10 Owner=N/A MCS_label=N/A
   Partitions=test,train
   BootTime=2026-01-04T12:17:48 SlurmdStartTime=2026-01-24T18:30:45
   Reason=medevac[hard=n1] incident-7: Xid 79, Comment=none of it [root@2026-02-23T13:21:38]
   Comment=in rack 3

NodeName=n2 Arch=x86_64 CoresPerSocket=24
   Gres=(null)
   State=DOWN ThreadsPerCore=2 TmpDisk=0 Weight=1 Partitions=test
   Reason=BUG: ECC Error [on GPU 3] [slurm@2026-02-22T13:21:38]
"""

# scontrol -o show topology, Slurm 22.05.8.
TOPOLOGY = """\
SwitchName=rack0 Level=0 LinkSpeed=1 Nodes=node0,node1
SwitchName=rack1 Level=0 LinkSpeed=1 Nodes=node[2-3]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=node[0-3] Switches=rack[0-1]
"""


def line(**values: str) -> str:
    known = {
        "JobID": "17", "ArrayJobID": "17", "ArrayTaskID": "N/A", "HetJobID": "0", "State": "RUNNING", "RestartCnt": "0",
        "NodeList": "node[0-1]", "NumNodes": "2", "NumTasks": "2", "exit_code": "0", "StartTime": "2026-11-30T23:16:02",
        "EndTime": "NONE", "SubmitTime": "2026-11-30T23:10:00", "Requeue": "1", "BatchFlag": "1",
        "PriorityLong": "4294901750", "Reason": "None", "Partition": "train", "Account": "(null)", "QOS": "(null)",
        "UserName": "kim", "admin_comment": "(null)", "Comment": "(null)", "StdOut": "/tmp/%j.out",
        "StdErr": "/tmp/%j.out", "WorkDir": "/tmp", "Name": "train",
    }  # fmt: skip
    last = len(parse.FIELDS) - 1
    words = [{**known, **values}[field] + ("#" if n < last else "$") + MARK for n, field in enumerate(parse.FIELDS)]
    return "".join(words) + "\n"


def test_the_format_marks_each_field_and_the_end_of_a_job() -> None:
    words = parse.squeue_format(MARK).split(",")
    assert len(words) == len(parse.FIELDS)
    assert words[0] == f"JobID:#{MARK}"
    assert words[-1] == f"Name:${MARK}"


def test_jobs_and_tasks_of_an_array_have_the_ids_that_commands_take() -> None:
    text = (
        line()
        + line(JobID="31", ArrayJobID="30", ArrayTaskID="2")
        + line(JobID="30", ArrayJobID="30", ArrayTaskID="3-9%4")
    )
    assert [job.id for job in parse.squeue(text, MARK)] == ["17", "30_2", "30_3-9%4"]
    assert parse.squeue("", MARK) == ()


def test_a_held_job_and_its_times() -> None:
    (job,) = parse.squeue(line(State="PENDING", PriorityLong="0", RestartCnt="3", NodeList="", NumNodes="4-8"), MARK)
    assert (job.held, job.restarts, job.nodes, job.node_count) == (True, 3, "", 4)
    assert parse.seconds(job.start) == 1796080562.0
    assert parse.seconds(job.end) is None


@given(st.text(max_size=40).filter(lambda text: MARK not in text), st.text(max_size=40))
def test_no_name_or_comment_makes_another_job(name: str, comment: str) -> None:
    text = line(Name=name, Comment=comment.replace(MARK, "")) + line(JobID="18")
    first, second = parse.squeue(text, MARK)
    assert first.name == name
    assert (first.id, second.id) == ("17", "18")


@pytest.mark.parametrize(
    "text",
    [
        line()[:-30],
        line().replace(f"#{MARK}", "", 1),
        line(RestartCnt="many"),
        "slurm_load_jobs error: something new\n",
    ],
)
def test_an_answer_that_is_cut_or_changed_is_no_answer(text: str) -> None:
    with pytest.raises(BadReply):
        parse.squeue(text, MARK)


def test_the_parts_of_a_het_job_are_one() -> None:
    parts = "".join(
        line(JobID=str(40 + n), HetJobID="40", NodeList=f"n{n}", NumNodes="1", NumTasks="2") for n in range(3)
    )
    leader, other = sorted(
        parse.het_groups(parse.squeue(parts + line(), MARK)), key=lambda job: job.number, reverse=True
    )
    assert (leader.id, leader.nodes, leader.node_count, leader.tasks) == ("40", "n0,n1,n2", 3, 6)
    assert other.id == "17"


@pytest.mark.parametrize(
    ("states", "state"),
    [
        ("PENDING COMPLETING", "COMPLETING"),
        ("PENDING RUNNING", "COMPLETING"),
        ("FAILED COMPLETING", "COMPLETING"),
        ("PENDING PENDING", "PENDING"),
        ("RUNNING COMPLETING", "RUNNING"),
        ("FAILED FAILED", "FAILED"),
    ],
)
def test_a_het_job_is_where_the_last_of_its_parts_is(states: str, state: str) -> None:
    parts = (line(JobID=str(40 + n), HetJobID="40", State=word) for n, word in enumerate(states.split()))
    (job,) = parse.het_groups(parse.squeue("".join(parts), MARK))
    assert job.state == state


def test_nodes_on_several_lines_and_on_one() -> None:
    first, second = parse.nodes(NODES)
    assert first.states == {"IDLE", "NOT_RESPONDING", "DRAIN", "CLOUD"}
    assert (first.drained, first.usable, second.usable) == (True, False, False)
    assert (first.features, first.partitions, first.weight) == (("h100", "ib"), ("test", "train"), 10)
    assert first.reason_by == "root"
    assert first.reason.startswith("medevac[hard=n1] incident-7: Xid 79")
    assert (second.reason, second.gres) == ("BUG: ECC Error [on GPU 3]", "")
    one_line = "\n".join(" ".join(block.split()) for block in NODES.split("\n\n"))
    assert [node.states for node in parse.nodes(one_line)] == [first.states, second.states]


def test_nodes_that_are_none_are_no_answer() -> None:
    with pytest.raises(BadReply):
        parse.nodes("something else\n")


def test_exclusions_and_gpus_of_a_job() -> None:
    detail = parse.job_detail(JOB, "j.sh")
    assert detail.excluded == ("node5", "node7", "node8")
    assert detail.gpus == {"node0": (0, 1), "node1": (0, 1)}


def test_a_job_cannot_say_by_its_name_what_is_excluded() -> None:
    name = "x ExcNodeList=node1 Nodes=node0 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:7)"
    detail = parse.job_detail(JOB.replace("JobName=j.sh", f"JobName={name}"), name)
    assert detail == parse.job_detail(JOB, "j.sh")


def test_the_lowest_switch_is_the_rack() -> None:
    assert parse.racks(TOPOLOGY) == {"node0": "rack0", "node1": "rack0", "node2": "rack1", "node3": "rack1"}
    assert parse.racks("") == {}


def test_partitions_and_config() -> None:
    text = "PartitionName=a Default=NO Nodes=n[1-2],m7 State=UP TotalNodes=3\nPartitionName=b Nodes=(null) State=DOWN\n"
    assert [(part.name, part.nodes, part.state) for part in parse.partitions(text)] == [
        ("a", ("n1", "n2", "m7"), "UP"),
        ("b", (), "DOWN"),
    ]
    assert parse.config("Configuration data\nKillWait  = 30 sec\nPrologFlags = Alloc,Contain\n") == {
        "KillWait": "30 sec",
        "PrologFlags": "Alloc,Contain",
    }


def test_a_line_break_in_a_value_is_joined_and_what_cannot_be_read_is_counted() -> None:
    text = "JobID|Comment|State\n1|fine|COMPLETED\n2|two\nlines|FAILED\n3|a|b|c\n4|ok|RUNNING\n5|cut"
    rows, unread = parse.table(text)
    assert [row["JobID"] for row in rows] == ["1", "2", "4"]
    assert rows[1]["Comment"] == "two\nlines"
    assert unread == 2


@given(st.text(max_size=200))
def test_any_table_is_read_or_counted(text: str) -> None:
    rows, unread = parse.table(text)
    assert unread >= 0
    assert all(len(row) <= text.split("\n", maxsplit=1)[0].count("|") + 1 for row in rows)


@pytest.mark.parametrize(
    ("text", "status"),
    [("0", (0, 0)), ("1792", (7, 0)), ("9", (0, 9)), ("0:15", (0, 15)), ("3:0", (3, 0)), ("?", (0, 0))],
)
def test_exit_codes_are_wait_statuses_or_pairs(text: str, status: tuple[int, int]) -> None:
    assert parse.exit_status(text) == status


@pytest.mark.parametrize("text", ["Unknown", "NONE", "N/A", "", "0", "2026-13-45T00:00:00"])
def test_no_time_is_none(text: str) -> None:
    assert parse.seconds(text) is None
