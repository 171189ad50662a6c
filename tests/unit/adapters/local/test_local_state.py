"""The local scheduler's plans and files, without a process started."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from medevac.adapters.schedulers.local import JobSpec, LocalScheduler, launch, shm, socket_path
from medevac.adapters.schedulers.local.files import Attempt, Keeping, ProcessId, load, save
from medevac.adapters.schedulers.local.isolation import Isolated, Isolation
from medevac.adapters.schedulers.local.machine import visible
from medevac.core.actions import Isolate, StartAttempt
from medevac.core.events import Gpu, JobPolicy, Node, RankPlace
from medevac.ports.errors import BadReply, Refused, Unavailable

GPUS = tuple(Gpu(index=i, uuid=f"GPU-{i}{i}", pci=f"0000:0{i}:00.0") for i in range(4))
NODES = {"n": Node(name="n", gpus=GPUS), "cpu": Node(name="cpu")}


def env(spec: JobSpec, places: tuple[RankPlace, ...], rank: int = 0, resume_from: int | None = None) -> dict[str, str]:
    action = StartAttempt(id="s", job=spec.job, attempt=3, ranks=places, resume_from=resume_from)
    return launch.plan(spec, action, NODES, Path("/state"), Path("/shm")).ranks[rank].env


# --- the environment of a rank ----------------------------------------------------------------------------------------


def test_a_rank_sees_the_jobs_gpus_of_its_node_in_order_of_local_rank() -> None:
    places = (
        RankPlace(rank=0, node="n", gpus=("GPU-22",), local_rank=0),
        RankPlace(rank=1, node="n", gpus=("GPU-00",), local_rank=1),
    )
    got = env(JobSpec(job="j", command=("c",), ranks=2), places, rank=1)
    assert got["CUDA_VISIBLE_DEVICES"] == "2,0", "device LOCAL_RANK is the rank's own"
    assert (got["MEDEVAC_GPU"], got["MEDEVAC_PCI"], got["LOCAL_RANK"]) == ("GPU-00", "0000:00:00.0", "1")
    assert (got["RANK"], got["WORLD_SIZE"], got["LOCAL_WORLD_SIZE"]) == ("1", "2", "2")


def test_one_process_gets_its_gpus_and_no_rank() -> None:
    got = env(JobSpec(job="j", command=("c",)), (RankPlace(rank=0, node="n", gpus=("GPU-00", "GPU-33")),))
    assert got["CUDA_VISIBLE_DEVICES"] == "0,3"
    assert got["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert "RANK" not in got


def test_without_gpus_there_is_nothing_to_hide_and_with_none_left_all_are_hidden() -> None:
    spec = JobSpec(job="j", command=("c",))
    assert "CUDA_VISIBLE_DEVICES" not in env(spec, (RankPlace(rank=0, node="cpu"),))
    assert env(spec, (RankPlace(rank=0, node="n"),))["CUDA_VISIBLE_DEVICES"] == ""


def test_the_checkpoint_to_resume_from_is_a_path_or_absent() -> None:
    spec = JobSpec(job="j", command=("c",), checkpoint_dir="/ckpt", env={"A": "1", "MEDEVAC_JOB_ID": "other"})
    place = (RankPlace(rank=0, node="cpu"),)
    got = env(spec, place, resume_from=40)
    assert got["MEDEVAC_RESUME_FROM"] == "/ckpt/step_00000040"
    assert (got["MEDEVAC_JOB_ID"], got["MEDEVAC_ATTEMPT"], got["A"]) == ("j", "3", "1")
    assert "MEDEVAC_RESUME_FROM" not in env(spec, place)
    assert "MEDEVAC_LINEAGE" not in got


def test_a_job_whose_lineage_does_not_count_is_told_so() -> None:
    spec = JobSpec(job="j", command=("c",), checkpoint_dir="/ckpt", policy=JobPolicy(lineage="none"))
    assert env(spec, (RankPlace(rank=0, node="cpu"),))["MEDEVAC_LINEAGE"] == "none"


@pytest.mark.parametrize(
    ("names", "indices"),
    [(None, [0, 1, 2, 3]), ("", []), ("2,0", [2, 0]), ("GPU-33,GPU-1", [3, 1]), ("1,9,2", [1]), ("-1", [])],
)
def test_gpus_that_the_caller_may_use(names: str | None, indices: list[int]) -> None:
    assert [gpu.index for gpu in visible(GPUS, names)] == indices


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_state_file_is_whole_and_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "keeper.json"
    save(path, Keeping(process=ProcessId(pid=1, started=2), at=3.0))
    assert load(path, Keeping) == Keeping(process=ProcessId(pid=1, started=2), at=3.0)
    assert path.stat().st_mode & 0o077 == 0
    assert [p.name for p in tmp_path.iterdir()] == ["keeper.json"]


def test_a_broken_state_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "isolated.json").write_text("{")
    with pytest.raises(BadReply, match=r"isolated\.json: .*move the file away"):
        load(tmp_path / "isolated.json", Isolated)


def test_a_torn_last_exit_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "j" / "attempts" / "1"
    folder.mkdir(parents=True)
    (folder / "exits.jsonl").write_text('{"rank":1,"code":9}\n{"rank":0,"co')
    assert [one.rank for one in Attempt(folder).exits] == [1]


def test_isolations_at_once_are_all_kept(tmp_path: Path) -> None:
    def isolate(number: int) -> None:
        Isolation(tmp_path).add(Isolate(id=f"a{number}", node=f"n{number}", mode="soft"))

    threads = [threading.Thread(target=isolate, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Isolation(tmp_path).modes()) == 16


def test_a_socket_address_is_short_enough(tmp_path: Path) -> None:
    assert socket_path(Path("/s"), "j") == Path("/s/jobs/j/sock")
    long = socket_path(tmp_path / ("x" * 90), "j")
    assert len(str(long)) < 100
    assert long == socket_path(tmp_path / ("x" * 90), "j")
    assert long != socket_path(tmp_path / ("y" * 90), "j")


def test_shared_memory_that_came_later_is_removed(tmp_path: Path) -> None:
    for name in ("old", "sem.old"):
        (tmp_path / name).touch()
    before = shm.segments(tmp_path)
    for name in ("sem.mp-1", "medevac-j-1"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("old")
    assert shm.sweep(tmp_path, before) == ["sem.mp-1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "medevac-j-1", "old", "sem.old"]
    assert shm.sweep(tmp_path / "none", ()) == []


# --- submission -------------------------------------------------------------------------------------------------------


async def test_a_job_is_submitted_once(tmp_path: Path) -> None:
    spec = JobSpec(job="j", command=("true",), ranks=2)
    first = await LocalScheduler(tmp_path).submit(spec)
    assert await LocalScheduler(tmp_path).submit(spec) == first
    assert (first.id, first.ranks) == ("j/submitted", 2)
    assert first.at > 0
    with pytest.raises(Refused, match="another job of this name"):
        await LocalScheduler(tmp_path).submit(JobSpec(job="j", command=("false",)))


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (JobSpec(job="../j", command=("true",)), "job name '../j'"),
        (JobSpec(job="j", command=()), "no command"),
        (JobSpec(job="j", command=("no-such-program",)), "command no-such-program does not exist"),
        (JobSpec(job="j", command=("./no",), cwd="/"), "command ./no does not exist"),
        (JobSpec(job="j", command=("true",), cwd="/no/such"), "folder /no/such does not exist"),
        (JobSpec(job="j", command=("true",), checkpoint_dir="rel"), "'rel' must be an absolute path"),
        (JobSpec(job="j", command=("true",), ranks=-1), "negative"),
        (JobSpec(job="j", command=("true", "\udcff")), "no UTF-8"),
        (JobSpec(job="j", command=("true",), env={"A": "\0"}), "no UTF-8"),
        (JobSpec(job="j", command=("true",), policy=JobPolicy(signal="LOUD")), "'LOUD' is no signal"),
    ],
)
async def test_what_could_never_run_is_refused_in_one_line(tmp_path: Path, spec: JobSpec, problem: str) -> None:
    with pytest.raises(Refused, match=problem) as caught:
        await LocalScheduler(tmp_path).submit(spec)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "jobs").exists()


async def test_a_state_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"file/jobs.*: Not a directory"):
        await LocalScheduler(tmp_path / "file").submit(JobSpec(job="j", command=("true",)))
