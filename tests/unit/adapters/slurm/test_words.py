"""Marks, opt-in, output paths, pointers, and the choke point of commands."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medevac.adapters.schedulers.slurm import SlurmScheduler, pointers, watching
from medevac.adapters.schedulers.slurm.commands import Commands, reads_only
from medevac.adapters.schedulers.slurm.marks import DrainTag, HoldMark, drain_tag, hold_mark, with_mark, without_mark
from medevac.adapters.schedulers.slurm.memory import JobMemory
from medevac.adapters.schedulers.slurm.optin import policy
from medevac.adapters.schedulers.slurm.paths import errors, output
from medevac.adapters.schedulers.slurm.settings import SlurmSettings
from medevac.adapters.schedulers.slurm.values import SlurmJob
from medevac.core.events import JobPolicy
from medevac.ports.errors import OutcomeUnknown, Refused, Unavailable

JOB = SlurmJob(
    id="17", number="17", state="RUNNING", restarts=0, nodes="node[3-4]", user="kim", name="train", folder="/w"
)
NAME = st.from_regex(r"[A-Za-z0-9-]{1,12}", fullmatch=True)
MARK = HoldMark(hold="incident-7", at=1796080000.0, purpose="recovery")


def job(**more: object) -> SlurmJob:
    from msgspec.structs import replace

    return replace(JOB, **more)


# --- marks -----------------------------------------------------------------------------------------------------------


def test_a_mark_reads_as_designed() -> None:
    assert json.loads(with_mark("", MARK)) == {"medevac": {"hold": "incident-7", "at": 1796080000.0, "for": "recovery"}}


@given(st.one_of(st.text(max_size=30), st.dictionaries(st.text(max_size=5), st.integers()).map(json.dumps)))
def test_what_stood_there_is_there_again(before: str) -> None:
    if "medevac" in before:
        return
    marked = with_mark(with_mark(before, MARK), HoldMark(hold="x", at=2.0, purpose="person"))
    found = hold_mark(marked)
    assert found is not None
    assert found.purpose == "person"
    after = without_mark(marked)
    assert after == before or json.loads(after) == json.loads(before) or (before == "{}" and after == "")


@pytest.mark.parametrize("text", ["", "text", "[1]", '{"medevac": 3}', '{"medevac": {"hold": "x"}}'])
def test_what_is_no_mark_is_none(text: str) -> None:
    assert hold_mark(text) is None


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z0-9-]{1,12}", fullmatch=True), st.sampled_from(["soft", "hard"]), min_size=1
    ),
    NAME,
    st.text(max_size=40),
)
def test_a_drains_tag_reads_back(out: dict[str, str], incident: str, why: str) -> None:
    tag = drain_tag(DrainTag(out=out, incident=incident, why=why).text())  # type: ignore[arg-type]
    assert tag is not None
    assert (tag.out, tag.incident) == (out, incident)


def test_sixteen_gpus_of_a_node_are_all_named() -> None:
    out = {f"GPU-{n:08x}-1111-2222-3333-444455556666": "hard" for n in range(16)}
    text = DrainTag(out=out, incident="I7", why="x" * 500).text()  # type: ignore[arg-type]
    tag = drain_tag(text)
    assert tag is not None
    assert tag.out == out


def test_a_persons_reason_is_not_ours() -> None:
    assert drain_tag("fan tray") is None
    assert drain_tag("ask medevac[hard=n1] incident-1: x") is None
    assert drain_tag("medevac[n1] incident-1: x") is None


# --- opt-in ----------------------------------------------------------------------------------------------------------


def test_a_comment_opts_in_and_the_site_fills_in() -> None:
    site = SlurmSettings(
        partitions={"train": JobPolicy(max_restarts=2, signal="USR2")}, qos={"high": JobPolicy(max_restarts=9)}
    )
    assert policy(JOB, site) == (None, ())
    assert policy(job(partition="train"), site)[0] == JobPolicy(max_restarts=2, signal="USR2")
    assert policy(job(partition="train", qos="high"), site)[0] == JobPolicy(max_restarts=9, signal="USR2")
    own = job(partition="train", comment='{"medevac": {"max_restarts": 5}}')
    assert policy(own, site)[0] == JobPolicy(max_restarts=5, signal="USR2")


def test_a_mistake_in_a_comment_costs_only_that_key() -> None:
    found, problems = policy(
        job(comment='{"medevac": {"max_restarts": 3, "max_restart": 4, "signal": 7}}'), SlurmSettings()
    )
    assert found == JobPolicy(max_restarts=3)
    assert len(problems) == 2
    assert "max_restart: unknown key" in problems[0]


@pytest.mark.parametrize("comment", ["", "plain", "{", "[]", '{"other": 1}', '{"medevac": 3}'])
def test_other_comments_opt_nothing_in(comment: str) -> None:
    assert policy(job(comment=comment), SlurmSettings())[0] is None


def test_what_slurm_may_not_requeue_is_only_watched() -> None:
    for odd in (job(comment='{"medevac": {}}', requeue=False), job(comment='{"medevac": {}}', batch=False)):
        found, problems = policy(odd, SlurmSettings())
        assert found == JobPolicy(enabled=False)
        assert "only watched" in problems[0]


# --- output ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("", "/w/slurm-17.out"),
        ("/logs/%x-%j.out", "/logs/train-17.out"),
        ("%5j.%N.out", "/w/00017.node3.out"),
        ("%u/%A_%a.log", "/w/kim/17_4294967294.log"),
        ("100%%.out", "/w/100%.out"),
        ("/logs/plain.out", "/logs/plain.out"),
    ],
)
def test_patterns_of_output(pattern: str, path: str) -> None:
    assert output(job(stdout=pattern)) == path


def test_patterns_of_an_arrays_task() -> None:
    task = job(id="12_3", number="14")
    assert output(task) == "/w/slurm-12_3.out"
    assert output(job(id="12_3", number="14", stdout="%j-%4a.out")) == "/w/14-0003.out"
    # squeue -O StdOut of 22.05 for an array without --output; the file is slurm-12_3.out
    assert output(job(id="12_3", number="14", stdout="/w/slurm-14.out")) == "/w/slurm-12_3.out"
    assert output(job(id="14", number="14", stdout="/w/slurm-14.out")) == "/w/slurm-14.out"


@pytest.mark.parametrize(
    ("stdout", "stderr", "path"),
    [
        ("/l/%j.out", "/l/%j.out", ""),
        ("/l/%j.out", "", ""),
        ("/l/%j.out", "/l/17.out", ""),
        # As 22.05 named the file itself.
        ("a", "b-%x-%A_%a-%N-%n-%s-%t-%u-%%-%4j.err", "/w/b-train-17_4294967294-node3-0-batch-0-kim-%-0017.err"),
    ],
)
def test_errors_with_a_file_of_their_own(stdout: str, stderr: str, path: str) -> None:
    assert errors(job(stdout=stdout, stderr=stderr)) == path


# --- pointers --------------------------------------------------------------------------------------------------------


def test_the_pointer_is_what_the_prolog_prints(tmp_path: Path) -> None:
    folder = tmp_path / "pointers"
    step = pointers.step_folder("/shared/ckpt", 40)
    pointers.write(folder, "17", {"MEDEVAC_RESUME_FROM": step, "MEDEVAC_ATTEMPT": "2", "MEDEVAC_CHECKPOINT_DIR": ""})
    text = (folder / "17").read_text()
    assert text == "export MEDEVAC_RESUME_FROM=/shared/ckpt/step_00000040\nexport MEDEVAC_ATTEMPT=2\n"
    assert stat.S_IMODE((folder / "17").stat().st_mode) == 0o644
    assert [path.name for path in folder.iterdir()] == ["17"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="file"):
        pointers.write(tmp_path / "file", "17", {})


UNREACHED = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
LATE = "echo 'Socket timed out on send/recv operation' >&2; exit 1"

# --- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "reads"),
    [
        ("squeue -a -h", True),
        ("sacct -P", True),
        ("sinfo", True),
        ("scontrol -a -o show node", True),
        ("scontrol -d -o show job 17", True),
        ("scontrol ping", True),
        ("scontrol update NodeName=n1 State=DRAIN", False),
        ("scontrol -o update JobId=1 Comment=show", False),
        ("scontrol -u kim show", False),
        ("scontrol requeuehold 17", False),
        ("scontrol reboot ASAP nextstate=RESUME n1", False),
        ("scontrol cancel_reboot n1", False),
        ("scontrol create reservation ReservationName=show", False),
        ("scontrol delete ReservationName=show", False),
        ("scontrol -o show reservation", True),
        ("scontrol", False),
        ("scancel 17", False),
        ("sacctmgr -n -P show event", True),
        ("sacctmgr -i delete user kim", False),
        ("sacctmgr modify user set show", False),
        ("sbatch job.sh", False),
        ("strigger --set", False),
    ],
)
def test_the_forms_that_only_read(words: str, reads: bool) -> None:
    name, *args = words.split()
    assert reads_only(name, tuple(args)) is reads


@pytest.mark.parametrize(
    "words", ["sdiag -r", "sacctmgr show runawayjobs", "sacctmgr -i show event", "sacctmgr show event -i"]
)
def test_what_resets_or_mends_is_no_reading(words: str) -> None:
    name, *args = words.split()
    assert not reads_only(name, tuple(args))


def fake(folder: Path, name: str, script: str) -> Commands:
    (folder / "bin").mkdir(exist_ok=True)
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Commands(prefix=str(folder), deadline_s=0.5 if "sleep" in script else 30.0)


@pytest.mark.parametrize(
    ("name", "script", "error"),
    [
        ("squeue", UNREACHED, Unavailable),
        ("scontrol", UNREACHED, Unavailable),
        ("scontrol", "echo 'slurm_update error: Invalid node name specified' >&2; exit 1", Refused),
        ("scontrol", LATE, OutcomeUnknown),
        ("squeue", LATE, Unavailable),
        ("squeue", "sleep 30", Unavailable),
        ("scontrol", "sleep 30", OutcomeUnknown),
        ("scontrol", "exit 1", Refused),
    ],
)  # fmt: skip
async def test_a_failed_command_says_what_to_do(tmp_path: Path, name: str, script: str, error: type[Exception]) -> None:
    commands = fake(tmp_path, name, script)
    with pytest.raises(error):
        await commands.run(name, "update", "x")


async def test_bytes_that_are_no_text_are_kept(tmp_path: Path) -> None:
    out = await fake(tmp_path, "squeue", r"printf 'a\377b'").run("squeue")
    assert out.encode("utf-8", "surrogateescape") == b"a\xffb"


async def test_monitor_mode_runs_nothing_else(tmp_path: Path) -> None:
    fake(tmp_path, "scontrol", f"touch {tmp_path}/ran")
    with pytest.raises(Refused, match="monitor mode"):
        await Commands(prefix=str(tmp_path), mode="monitor").run("scontrol", "update", "NodeName=n1")
    assert not (tmp_path / "ran").exists()


async def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="MEDEVAC_SLURM_PREFIX"):
        await Commands(prefix=str(tmp_path)).run("squeue")


# --- numbers that come again ------------------------------------------------------------------------------------------


def test_a_number_that_slurm_gives_again_is_another_job(tmp_path: Path) -> None:
    scheduler = SlurmScheduler(Commands(prefix=str(tmp_path)), tmp_path / "state")
    first = job(start="2026-11-30T23:16:02", submit="2026-11-30T23:10:00", restarts=2)
    memory = JobMemory(name=scheduler.name_of(first), slurm=first.id, submit=first.submit)
    scheduler.memory.save(watching.with_start(memory, first, (), JobPolicy(), 1.0))
    assert scheduler.name_of(first) == "slurm-17"
    assert scheduler.name_of(job(restarts=3, submit="2026-12-01T02:00:00")) == "slurm-17", "requeued"
    second = job(submit="2026-12-24T01:00:00", start="2026-12-24T01:00:05")
    name = scheduler.name_of(second)
    assert name == "slurm-17.1798074000"
    other = JobMemory(name=name, slurm="17", submit=second.submit)
    scheduler.memory.save(watching.with_start(other, second, (), JobPolicy(), 2.0))
    assert scheduler.name_of(second) == name
    assert [memory.runs[-1].started.attempt for memory in scheduler.memory.jobs().values()] == [3, 1]
