"""`medevac run` for real: what is killed, hangs or fails, and the model that comes out all the same."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.e2e.runs import JOB, LIMIT_S, Run, command_line, recovered_once, undisturbed, uuid

from medevac.adapters.lease import read
from medevac.core.actions import Isolate, StartAttempt
from medevac.core.events import AttemptEnded, OrderGiven, StepReported

pytestmark = pytest.mark.e2e


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.close()


def test_an_undisturbed_job_runs_once(run: Run) -> None:
    run.start()
    assert run.wait() == 0, run.printed()
    recovered_once(run, attempts=1)
    assert "final step 40" in run.printed()


def test_a_killed_rank_costs_one_attempt(run: Run) -> None:
    run.start()
    run.checkpoint()
    os.kill(run.rank_pid(random.randrange(run.ranks)), signal.SIGKILL)
    assert run.wait() == 0, run.printed()
    recovered_once(run, attempts=2)
    starts = [action for action in run.actions() if isinstance(action, StartAttempt)]
    assert (starts[1].resume_from or 0) >= 8


def test_a_killed_keeper_costs_one_attempt(run: Run) -> None:
    run.start()
    run.checkpoint()
    os.kill(run.keeper_pid(), signal.SIGKILL)
    assert run.wait() == 0, run.printed()
    recovered_once(run, attempts=2)


def test_a_killed_controller_costs_nothing(run: Run) -> None:
    run.start()
    run.checkpoint()
    os.kill(run.controller_pid(), signal.SIGKILL)
    assert run.wait() == 0, run.printed()
    recovered_once(run, attempts=1)


def test_a_killed_parent_is_replaced(run: Run) -> None:
    run.start()
    run.checkpoint()
    assert run.process
    run.process.kill()
    run.process.wait()
    run.gpu_lost()
    run.until(lambda: run.state_is("finished"), "finished")
    recovered_once(run, attempts=2)
    run.until(lambda: "story" in supervisor_log(run) or "recovered" in supervisor_log(run), "told by the new parent")


def supervisor_log(run: Run) -> str:
    path = run.state / "jobs" / JOB / "supervisor.log"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("how", ["attach", "same command"])
def test_when_both_are_killed_the_ranks_go_on_until_somebody_takes_over(run: Run, how: str) -> None:
    run.start()
    run.checkpoint()
    assert run.process
    rank = run.rank_pid(0)
    run.process.kill()
    os.kill(run.controller_pid(), signal.SIGKILL)
    run.process.wait()
    os.kill(rank, 0)
    run.start(*(("--attach", JOB) if how == "attach" else ()))
    assert run.wait() == 0, run.printed()
    recovered_once(run, attempts=1)


def test_a_lost_gpu_is_left_behind(run: Run) -> None:
    run.start()
    run.checkpoint()
    run.gpu_lost()
    assert run.wait() == 0, run.printed()
    recovered_once(run, attempts=2)
    out = [action for action in run.actions() if isinstance(action, Isolate)]
    assert [(action.gpu, action.mode) for action in out] == [(uuid(1, 0), "hard")]
    starts = [action for action in run.actions() if isinstance(action, StartAttempt)]
    assert uuid(1, 0) not in {gpu for place in starts[1].ranks for gpu in place.gpus}


def test_a_gpu_likely_to_fail_is_left_after_a_checkpoint(run: Run) -> None:
    run.start()
    run.checkpoint()
    run.rows_remapped()
    assert run.wait() == 0, run.printed()
    recovered_once(run, attempts=2)
    assert [event.code for event in run.events(AttemptEnded)] == [83, 0]


def test_a_rank_that_hangs_is_stopped_at_the_learned_limit(tmp_path: Path) -> None:
    run = Run(tmp_path, steps=60)
    try:
        run.start()
        run.checkpoint(3)
        os.kill(run.rank_pid(1), signal.SIGSTOP)
        assert run.wait() == 0, run.printed()
        recovered_once(run, attempts=2)
        hung = [m.trigger for d in run.decisions() for m in d.moved if m.trigger.on == "hung"]
        assert len(hung) == 1
        assert "the limit is" in hung[0].why
    finally:
        run.close()


def test_interrupted_once_the_job_is_stopped_in_order(run: Run) -> None:
    run.start()
    run.checkpoint(1)
    assert run.process
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.printed()
    assert [order.what for order in run.events(OrderGiven)] == ["stop"]
    assert run.state_is("ended")


def test_interrupted_twice_everything_is_killed(run: Run) -> None:
    run.start()
    run.checkpoint(1)
    assert run.process
    os.kill(run.controller_pid(), signal.SIGSTOP)
    run.process.send_signal(signal.SIGINT)
    run.until(lambda: bool(run.events(OrderGiven)), "ordered to stop")
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.printed()
    assert run.attempt().ended is not None


def test_a_second_job_of_the_same_folder_shares_the_controller(tmp_path: Path) -> None:
    run = Run(tmp_path, steps=10_000)
    try:
        run.start()
        run.checkpoint(1)
        controller = run.controller_pid()
        command = [sys.executable, "-m", "medevac.cli.main", "run", "--state-dir", str(run.state)]
        command += ["--cluster", str(run.cluster), "--policy", str(tmp_path / "policy.toml")]
        other = subprocess.run(
            [*command, "--job", "other", "--", "true"], timeout=LIMIT_S, capture_output=True, text=True, check=False
        )
        assert other.returncode == 0, other.stderr
        assert "other: proving -> finished" in other.stderr
        assert run.controller_pid() == controller
        assert run.attempt().ended is None
        run.order("stop", JOB)
        assert run.wait() == 130, run.printed()
    finally:
        run.close()


def test_monitor_mode_touches_nothing(run: Run) -> None:
    run.start("--monitor")
    run.checkpoint()
    run.gpu_lost()
    assert run.wait() == 0, run.printed()
    held = [h for d in run.decisions() for h in d.held]
    assert {type(h.action).__name__ for h in held} >= {"Isolate", "StopAttempt"}
    assert len(run.events(AttemptEnded)) == 1
    assert not (run.state / "isolated.json").exists()
    assert run.events(StepReported)


def test_a_command_that_does_not_exist_is_one_line(run: Run) -> None:
    run.train = ["no-such-command"]
    run.start()
    assert run.wait() == 2
    assert run.printed().strip().splitlines() == [
        f"medevac: job {JOB}: command no-such-command does not exist or may not be executed"
    ]


def supervisor_pid(run: Run) -> int:
    held = read(run.state / "jobs" / JOB / "supervisor.lease")
    assert held, "no parent's lease"
    assert held.process, "no process in the parent's lease"
    return held.process.pid


def is_watched(run: Run) -> bool:
    """A controller and a parent live, or the job is over. With both killed at once a person takes over."""
    if run.state_is("finished"):
        return True
    alive = [bool(command_line(pid)) for pid in (run.controller_pid(), supervisor_pid(run))]
    if not any(alive):
        run.start("--attach", JOB)
        time.sleep(1)
    return all(alive)


def anybody_killed(run: Run, seed: int) -> None:
    """One process after the other, whichever, at any moment."""
    rng = random.Random(seed)
    run.start()
    for round_ in range(4):
        run.checkpoint(2 + 2 * round_)
        time.sleep(rng.uniform(0, 0.5))
        run.until(lambda: bool((keeping := run.attempt().keeping) and keeping.ranks), "an attempt that runs")
        victims = [supervisor_pid(run), run.controller_pid(), run.keeper_pid(), run.rank_pid(0)]
        for pid in rng.sample(victims, rng.choice((1, 1, 2))):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.until(lambda: is_watched(run), "watched again")
    run.until(lambda: run.state_is("finished"), "finished")
    assert run.parameters() == undisturbed(run.steps)


@pytest.mark.parametrize("seed", range(2))
def test_whoever_is_killed_the_model_is_the_same(tmp_path: Path, seed: int) -> None:
    run = Run(tmp_path, steps=120)
    try:
        anybody_killed(run, seed)
    finally:
        run.close()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 130))
def test_whoever_is_killed_however_often(tmp_path: Path, seed: int) -> None:
    run = Run(tmp_path, steps=120)
    try:
        anybody_killed(run, seed)
    finally:
        run.close()
