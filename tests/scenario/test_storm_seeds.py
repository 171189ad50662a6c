"""The demo's story over 50 seeds, in virtual time, decided on by the code that decides live."""

from __future__ import annotations

import functools

import pytest

from medevac.catalog.policy import load_policy
from medevac.core.actions import Isolate, JudgeCheckpoint, StartAttempt
from medevac.core.policy import Policy
from medevac.ports.store import DecisionRecord
from medevac.sim.storm import Storm
from medevac.sim.world import JOB, World, undisturbed

STEPS = 300
SEEDS = range(50)


@functools.cache
def policy() -> Policy:
    return load_policy("demo")


def actions_of(world: World, kind: type) -> list[object]:
    decisions = [record.decision for record in world.records if isinstance(record, DecisionRecord)]
    return [action for decision in decisions for action in decision.actions if isinstance(action, kind)]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_story_comes_out_right(seed: int) -> None:
    storm = Storm.plan(seed)
    world = World(storm, policy(), steps=STEPS)
    assert world.run() == "finished"

    modes = {action.gpu: action.mode for action in actions_of(world, Isolate) if isinstance(action, Isolate)}
    assert modes == {gpu: "hard" if gpu == storm.victim else "soft" for gpu in storm.stormy}
    (incident,) = world.view.incidents.values()
    assert incident.root.name == storm.victim
    assert incident.probable_cause is not None
    assert incident.probable_cause.domain == "power"
    assert incident.severity == "critical"

    assert (world.training.digest, world.training.sound) == (undisturbed(STEPS), True)
    job = world.view.jobs[JOB]
    assert job.attempt == 2
    assert not job.gpus() & set(storm.stormy)
    resumed = [a.resume_from for a in actions_of(world, StartAttempt) if isinstance(a, StartAttempt)]
    judged = [a for a in actions_of(world, JudgeCheckpoint) if isinstance(a, JudgeCheckpoint) and a.state != "clean"]
    assert resumed[0] is None
    assert all(resumed[1] is not None and resumed[1] < action.step for action in judged)


@pytest.mark.parametrize("seed", range(5))
def test_without_a_fault_nothing_is_done(seed: int) -> None:
    world = World(Storm.plan(seed, fault=False), policy(), steps=STEPS)
    assert world.run() == "finished"
    assert world.view.jobs[JOB].attempt == 1
    assert not world.view.incidents
    assert not actions_of(world, Isolate)


@pytest.mark.parametrize("seed", range(5))
def test_a_gpu_that_the_job_does_not_use_is_taken_out_and_the_job_let_be(seed: int) -> None:
    storm = Storm.plan(seed, fault=False, decoy=True)
    world = World(storm, policy(), steps=STEPS)
    assert world.run() == "finished"
    assert [a.gpu for a in actions_of(world, Isolate) if isinstance(a, Isolate)] == [storm.decoy]
    assert world.view.jobs[JOB].attempt == 1


def test_monitor_mode_only_says_what_it_would_have_done() -> None:
    """Without Medevac's hand the job trains on into NaN."""
    world = World(Storm.plan(7), load_policy("demo", mode="monitor"), steps=STEPS)
    assert world.run() in {"finished", "watched"}
    assert not world.training.sound
    assert not actions_of(world, Isolate)
    held = [h for r in world.records if isinstance(r, DecisionRecord) for h in r.decision.held]
    assert {h.guard for h in held} == {"monitor-only"}
    assert any(isinstance(h.action, Isolate) and h.action.mode == "hard" for h in held)


def test_the_same_seed_gives_the_same_log() -> None:
    worlds = [World(Storm.plan(11), policy(), steps=STEPS) for _ in range(2)]
    for world in worlds:
        world.run()
    assert worlds[0].records == worlds[1].records
