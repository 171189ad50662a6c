"""The example training for real: the same bits at any number of ranks and after any death; wrong memory stays wrong."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from medevac.core.events import AnyEvent, ResumedFrom, StepReported
from medevac.core.seal import decode_seal
from medevac.sim.cluster_folder import make
from medevac.sim.storm import Storm

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
PATIENCE_SECONDS = 120
STEPS = 60


def eventually(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < until, f"it did not come about in {PATIENCE_SECONDS} s"
        time.sleep(0.02)


class Job:
    """Attempts of the training in one folder, with nobody watching over them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, world: int, *arguments: str, env: dict[str, str] | None = None, step_seconds: float = 0.0) -> None:
        self.kill()
        with socket.create_server(("127.0.0.1", 0)) as door:
            port = str(door.getsockname()[1])
        command = [
            sys.executable,
            "examples/train.py",
            "--checkpoint-dir",
            str(self.checkpoints),
            "--steps",
            str(STEPS),
        ]
        command += ["--step-seconds", str(step_seconds), "--save-every", "10", *arguments]
        group = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        self.processes = [
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | ONE_THREAD | group | {"RANK": str(rank)} | (env or {}),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(world)
        ]

    def codes(self) -> list[int]:
        return [process.wait(PATIENCE_SECONDS) for process in self.processes]

    def output(self, rank: int = 0) -> str:
        return self.processes[rank].communicate(timeout=PATIENCE_SECONDS)[0]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()

    def steps(self) -> list[int]:
        return sorted(int(path.parent.name[5:]) for path in self.checkpoints.glob("step_*/medevac.json"))

    def final(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.checkpoints / "final.json").read_bytes())
        return found


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.kill()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The parameters' hash of one rank's run to the end."""
    made = Job(tmp_path_factory.mktemp("undisturbed"))
    made.start(1)
    assert made.codes() == [0]
    made.kill()
    return str(made.final()["parameters"])


@pytest.mark.parametrize("world", [3, 8])
def test_any_number_of_ranks_gives_the_same_bits(job: Job, world: int, undisturbed: str) -> None:
    job.start(world)
    assert job.codes() == [0] * world
    assert job.final()["parameters"] == undisturbed
    assert job.final()["finite"] is True
    assert job.steps() == [10, 20, 30, 40, 50, 60]


def test_it_learns(job: Job) -> None:
    job.start(1)
    losses = [float(line.split()[3]) for line in job.output().splitlines() if line.startswith("step ")]
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.parametrize("victim", [0, 2])
def test_a_lost_peer_ends_all_and_the_rest_of_the_training_is_the_same(job: Job, victim: int, undisturbed: str) -> None:
    job.start(3, step_seconds=0.02)
    eventually(lambda: len(job.steps()) >= 2)
    job.processes[victim].send_signal(signal.SIGKILL)
    codes = job.codes()
    assert codes == [-signal.SIGKILL if rank == victim else 1 for rank in range(3)]
    assert "lost the connection to rank" in job.output(1)
    job.kill()
    job.start(2, "--resume", "newest")
    output = job.output()
    assert job.codes() == [0, 0]
    assert "from step 0" not in output
    assert job.final()["parameters"] == undisturbed


def test_killed_again_and_again_it_comes_to_the_same_end(job: Job, undisturbed: str) -> None:
    for number in range(3):
        job.start(2, "--resume", "newest", step_seconds=0.01)
        eventually(lambda: len(job.steps()) > number)  # noqa: B023 (called in this round)
        job.kill()
    job.start(2, "--resume", "newest")
    assert job.codes() == [0, 0]
    assert job.final()["parameters"] == undisturbed
    assert sorted(path.name for path in job.checkpoints.iterdir() if path.name.startswith(".saving")) == []


def test_wrong_memory_spreads_and_the_newest_checkpoint_keeps_it(job: Job) -> None:
    job.start(3, "--steps", "5000", step_seconds=0.01)
    eventually(lambda: len(job.steps()) >= 2)
    words = np.memmap(job.folder / "mem" / "rank2.bin", dtype=np.float32, mode="r+")
    words[100:104] = np.nan
    clean = job.steps()[-1]
    eventually(lambda: job.steps()[-1] >= clean + 30)
    job.kill()
    newest = job.steps()[-1]
    assert not np.isfinite(np.load(job.checkpoints / f"step_{newest:08d}" / "parameters.npy")).any()
    job.start(2, "--steps", str(newest + 10), "--resume", "newest")
    output = job.output()
    assert job.codes() == [0, 0]
    assert f"step {newest + 10}/{newest + 10} loss nan" in output
    assert job.final()["finite"] is False


def test_under_medevac_it_loads_what_it_was_told_and_reports(job: Job, undisturbed: str) -> None:
    job.start(1)
    assert job.codes() == [0]
    path = job.folder / "sock"
    env = {"MEDEVAC_JOB_ID": "j", "MEDEVAC_ATTEMPT": "2", "MEDEVAC_SOCKET": str(path)}
    env["MEDEVAC_RESUME_FROM"] = str(job.checkpoints / "step_00000030")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(path))
        server.listen(8)
        server.settimeout(PATIENCE_SECONDS)
        job.start(1, "--resume", "newest", env=env)
        peer, _ = server.accept()
        with peer:
            events = [msgspec.json.decode(packet, type=AnyEvent) for packet in iter(lambda: peer.recv(65536), b"")]
    assert job.codes() == [0]
    assert [event.step for event in events if isinstance(event, ResumedFrom)] == [30]
    told = [event for event in events if isinstance(event, StepReported) and event.phase == "step"]
    heartbeats = [event for event in told if event.loss is not None]
    assert [event.step for event in heartbeats] == list(range(31, STEPS + 1))
    saved = [event.step for event in events if isinstance(event, StepReported) and event.phase == "save"]
    assert [event.step for event in told if event.loss is None] == saved, "one when a save is over, too"
    assert all(event.grad_norm and event.compute_s is not None for event in heartbeats)
    assert job.final()["parameters"] == undisturbed
    seal = decode_seal((job.checkpoints / "step_00000040" / "medevac.json").read_bytes())
    assert (seal.job, seal.attempt, seal.parent) == ("j", 2, 30)


def test_under_medevac_nothing_is_loaded_that_medevac_did_not_name(job: Job) -> None:
    job.start(1)
    assert job.codes() == [0]
    job.start(1, "--resume", "newest", env={"MEDEVAC_JOB_ID": "j"})
    assert "from step 0" in job.output()


def test_on_request_it_saves_and_leaves(job: Job) -> None:
    path = job.folder / "sock"
    env = {"MEDEVAC_JOB_ID": "j", "MEDEVAC_ATTEMPT": "1", "MEDEVAC_SOCKET": str(path)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(path))
        server.listen(8)
        server.settimeout(PATIENCE_SECONDS)
        job.start(3, "--steps", "100000", "--save-every", "100000", env=env, step_seconds=0.01)
        peers = [server.accept()[0] for _ in range(3)]
        peers[1].send(b"checkpoint")
        assert job.codes() == [83, 83, 83]
        for peer in peers:
            peer.close()
    (step,) = job.steps()
    assert decode_seal((job.checkpoints / f"step_{step:08d}" / "medevac.json").read_bytes()).step == step


def test_the_seal_says_who_took_part_and_what_their_gpus_had_counted(job: Job) -> None:
    storm = Storm.plan(1)
    make(job.folder / "cluster", storm)
    node = storm.nodes[1]
    gpu = node.gpus[0]
    shown = job.folder / "cluster" / node.name / "gpu0.json"
    shown.write_text(json.dumps({**json.loads(shown.read_text()), "dbe": 5}))
    env = {"MEDEVAC_NODE": node.name, "MEDEVAC_GPU": gpu.uuid, "MEDEVAC_PCI": gpu.pci}
    job.start(2, "--cluster", str(job.folder / "cluster"), env=env)
    assert job.codes() == [0, 0]
    seal = decode_seal((job.checkpoints / "step_00000010" / "medevac.json").read_bytes())
    assert [(one.rank, one.node, one.gpu_uuid, one.pci, one.ecc) for one in seal.ranks] == [
        (rank, node.name, gpu.uuid, gpu.pci, 5) for rank in range(2)
    ]
    assert (job.folder / "mem" / f"{gpu.uuid}.bin").is_file()


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00", b"not an array at all"])
def test_a_checkpoint_that_cannot_be_read_is_named(job: Job, content: bytes) -> None:
    (job.checkpoints / "step_00000010").mkdir(parents=True)
    (job.checkpoints / "step_00000010" / "parameters.npy").write_bytes(content)
    job.start(1, "--resume", "newest")
    output = job.output()
    assert job.codes() == [1]
    assert len(output.splitlines()) == 1
    assert "step_00000010/parameters.npy" in output


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def inject(cluster: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "examples/inject.py", str(cluster), *arguments]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False, timeout=PATIENCE_SECONDS)


def test_the_injector_writes_what_nodes_show_and_the_victims_memory(tmp_path: Path) -> None:
    storm = Storm.plan(5)
    make(tmp_path / "cluster", storm)
    (tmp_path / "mem").mkdir()
    for one in storm.baseline:
        np.zeros(300, dtype=np.float32).tofile(tmp_path / "mem" / f"{one.gpu}.bin")
    before = contents(tmp_path)
    done = inject(tmp_path / "cluster", "--seed", "5", "--memory", str(tmp_path / "mem"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    after = contents(tmp_path)
    assert set(after) == set(before)
    changed = {name for name in after if after[name] != before[name]}
    stormy = [(node, gpu) for node in storm.nodes for gpu in node.gpus if gpu.uuid in storm.stormy]
    assert changed == (
        {f"mem/{storm.victim}.bin"}
        | {f"cluster/{node.name}/env.jsonl" for node in storm.nodes if node.rack == storm.rack}
        | {f"cluster/{node.name}/kmsg" for node, _ in stormy}
        | {f"cluster/{node.name}/gpu{gpu.index}.json" for node, gpu in stormy}
    )
    assert np.isnan(np.fromfile(tmp_path / "mem" / f"{storm.victim}.bin", dtype=np.float32)).any()


def test_the_injector_refuses_another_seeds_cluster(tmp_path: Path) -> None:
    make(tmp_path, Storm.plan(5))
    done = inject(tmp_path, "--seed", "6")
    assert done.returncode == 2
    assert "not a node of seed 6" in done.stderr


def test_restarting_from_the_newest_checkpoint_ends_in_nan(tmp_path: Path) -> None:
    make(tmp_path / "cluster", Storm.plan(4))
    checkpoints = tmp_path / "checkpoints"
    where = ["--memory", str(tmp_path / "mem"), "--checkpoint-dir", str(checkpoints)]
    injector = subprocess.Popen(
        [sys.executable, "examples/inject.py", str(tmp_path / "cluster"), "--seed", "4", *where], cwd=ROOT
    )
    try:
        train = [sys.executable, "examples/train.py", "--steps", "1000", "--step-seconds", "0.03"]
        command = [sys.executable, "examples/without_medevac.py", str(tmp_path / "cluster"), "--restarts", "1"]
        done = subprocess.run(
            [*command, "--checkpoint-dir", str(checkpoints), "--", *train],
            cwd=ROOT,
            env=os.environ | ONE_THREAD,
            text=True,
            capture_output=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
    finally:
        injector.kill()
        injector.wait()
    assert done.returncode == 1
    before, _, restarted = done.stdout.partition("restart 1 of 1")
    assert "loss 1." in before
    losses = [line.split()[3] for line in restarted.splitlines() if line.startswith("step ")]
    assert losses
    assert set(losses) == {"nan"}
