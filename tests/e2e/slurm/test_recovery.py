"""A training job of four nodes on a real cluster, hurt and recovered."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.training import Service, Training, gpu_lost, memory_error, rows_remapped

from medevac.adapters.schedulers.slurm.marks import hold_mark
from medevac.core.actions import PointClean, StopAttempt
from medevac.core.events import AttemptEnded, AttemptStarted, CheckpointJudged, ResumedFrom


@pytest.fixture
def service(wide: Cluster, tmp_path: Path) -> Iterator[Service]:
    made = Service(wide, tmp_path)
    yield made
    made.close()


@pytest.fixture
def job(service: Service) -> Training:
    """It has checkpoints, and its pace is known."""
    service.start()
    made = Training(service)
    made.reached(25)
    return made


def resumed(job: Training, attempt: int) -> set[int | None]:
    """The steps that the ranks of an attempt loaded."""
    told = [e for e in job.service.events(ResumedFrom) if (e.job, e.attempt) == (job.job, attempt)]
    return {event.step for event in told}


def out_of_service(cluster: Cluster) -> dict[str, str]:
    """Node -> Reason of those that take no work."""
    said = cluster.call("sinfo", "-h", "-N", "-o", "%N|%T|%E").stdout.splitlines()
    rows = [line.split("|") for line in said]
    return {name: reason for name, state, reason in rows if state.startswith("drain")}


def test_a_killed_rank(job: Training) -> None:
    job.kill_rank(2)
    job.runs_again()
    clean = job.attempt(2).resume_from
    assert clean in job.sealed()
    assert resumed(job, 2) == {clean}
    assert out_of_service(job.cluster) == {}
    assert (job.checkpoints / "latest_clean").exists()
    said = job.service.medevac("slurm", "check", str(job.number), "--config", str(job.service.config))
    assert "recovered by Medevac" in said
    assert f"output: {job.cluster.folder}/jobs/" in said
    assert "told what to load by: MEDEVAC_RESUME_FROM" in said
    assert "mistake" not in said


def test_a_lost_gpu(job: Training) -> None:
    lost = job.node(1)
    gpu_lost(job.cluster, lost)
    job.runs_again()
    assert set(out_of_service(job.cluster)) == {lost}
    assert "medevac[hard=" in out_of_service(job.cluster)[lost]
    assert lost not in job.nodes(2)
    assert resumed(job, 2) == {job.attempt(2).resume_from}
    assert job.attempt(2).resume_from in job.sealed()
    order = [type(action) for action in job.service.actions()]
    assert order.index(PointClean) < order.index(StopAttempt)
    assert "must be taken out" in (job.service.folder / "paged").read_text()


def test_a_hung_rank(job: Training) -> None:
    job.stop_rank(3)
    job.runs_again()
    assert job.ended().why == "stopped"
    assert any("in phase step, the limit is" in decision.reason for decision in job.service.decisions())
    assert resumed(job, 2) == {job.attempt(2).resume_from}


def test_a_gpu_that_is_likely_to_fail(job: Training) -> None:
    worn = job.node(2)
    rows_remapped(job.cluster, worn)
    job.runs_again()
    assert job.ended().code == 83, "it saved a checkpoint and left"
    assert worn not in job.nodes(2)
    assert "medevac[soft=" in out_of_service(job.cluster)[worn]
    assert job.attempt(2).resume_from == job.best(1)


def test_no_clean_checkpoint(job: Training) -> None:
    memory_error(job.cluster, job.node(0))
    job.service.until(lambda: job.service.moved_to(job.job)[-1:] == ["held"], "held")
    mark = None

    def held_for_a_person() -> bool:
        nonlocal mark
        mark = hold_mark(admin_comment(job.cluster, job.number))
        return mark is not None and mark.purpose == "person"

    job.service.until(held_for_a_person, "marked for a person")
    job.cluster.wait_state(job.number, "PENDING")
    job.service.until(
        lambda: "no checkpoint is known clean" in job.service.folder.joinpath("paged").read_text(), "paged"
    )
    freed = job.service.medevac("watchdog", "--once", "--limit", "0.001", "--config", str(job.service.config))
    assert freed.strip() == ""
    assert job.cluster.job(job.number)["Priority"] == "0"
    step = job.sealed()[-1]
    state = ("--state-dir", str(job.service.state))
    job.service.medevac("release", job.job, "--resume-from", str(step), *state)
    job.runs_again()
    assert resumed(job, 2) == {step}


def test_an_attempt_that_loaded_a_suspect_checkpoint_is_stopped(service: Service) -> None:
    """Its script loads the newest one the first time, whatever it is told."""
    service.start()
    newest = "$(ls -d $MEDEVAC_CHECKPOINT_DIR/step_* | tail -n 1)"
    job = Training(service, before=f'[ "$SLURM_RESTART_COUNT" = 1 ] && export MEDEVAC_RESUME_FROM={newest}')
    job.reached(25)
    verdict = {"step": 20, "state": "suspect", "why": "a bad batch", "at": time.time(), "by": "kim"}
    with (job.checkpoints / "medevac-lineage.jsonl").open("a") as lineage:
        lineage.write(json.dumps(verdict) + "\n")
    service.until(lambda: service.events(CheckpointJudged), "the verdict is read")
    job.kill_rank(2)
    job.runs_again(3)
    assert job.ended(2).why == "stopped"
    assert resumed(job, 3) == {10}
    said = [m.trigger for d in service.decisions() for m in d.moved if m.trigger.on == "suspect-resume"]
    assert "which is not known clean" in said[0].why


@pytest.mark.parametrize(("trap", "ends"), [("exit 83", (83, "")), ("", (137, "stopped"))], ids=["leaves", "stays"])
def test_a_soft_drain_of_a_job_without_the_library(service: Service, trap: str, ends: tuple[int, str]) -> None:
    """It is asked by a signal, and stopped when it has not left by its deadline."""
    cluster = service.cluster
    ready = service.folder / "ready"
    number = cluster.submit(
        f"""srun bash -c "trap '{trap}' USR1; touch {ready}.$SLURM_PROCID; while :; do sleep 0.1; done" """,
        "-N2", "--gres=gpu:1", '--comment={"medevac": {"drain_deadline_s": 4}}',
    )  # fmt: skip
    name = f"slurm-{number}"
    service.start()
    service.until(lambda: [*service.folder.glob("ready.*")], "its trap is set")
    service.until(lambda: service.events(AttemptStarted), "seen")
    worn = service.events(AttemptStarted)[0].ranks[0].node
    rows_remapped(cluster, worn)
    service.until(lambda: [e for e in service.events(AttemptStarted) if e.attempt == 2], "running again")
    (ended,) = [event for event in service.events(AttemptEnded) if event.job == name]
    assert (ended.code, ended.why) == ends
    assert worn not in {place.node for event in service.events(AttemptStarted)[1:] for place in event.ranks}
    assert "medevac[soft=" in out_of_service(cluster)[worn]


def admin_comment(cluster: Cluster, number: int) -> str:
    return cluster.call("squeue", "-h", "-j", str(number), "-O", "admin_comment:.").stdout.strip().removesuffix(".")
