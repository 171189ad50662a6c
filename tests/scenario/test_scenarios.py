"""Stories of faults in virtual time. `<name>.golden.txt` is what was decided: read its change before you accept it.

MEDEVAC_UPDATE=1 pytest tests/scenario writes the golden files anew.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.scenario.script import read
from tests.scenario.told import told
from tests.scenario.world import World

from medevac.core.actions import HoldJob, Page, PointClean, StartAttempt, StopAttempt
from medevac.core.guards import touches
from medevac.core.lineage import verdicts
from medevac.ports.store import DecisionRecord
from medevac.report.story import build, render_html, to_json

HERE = Path(__file__).parent
SCENARIOS = sorted(HERE.glob("*.jsonl"))
UPDATE = os.environ.get("MEDEVAC_UPDATE") == "1"


@pytest.fixture(params=SCENARIOS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    """A scenario."""
    found: Path = request.param
    return found


def test_decisions_are_as_told_before(path: Path) -> None:
    script = read(path)
    text = f"# {script.about.text}\n\n{told(World(script).run())}"
    golden = path.with_suffix(".golden.txt")
    if UPDATE:
        golden.write_text(text)
    assert text == golden.read_text()


def test_laws_hold(path: Path) -> None:
    """Nothing from a checkpoint that is not clean; in monitor mode nothing is touched; nothing is left pending."""
    world = World(read(path))
    records = world.run()
    decisions = [record.decision for record in records if isinstance(record, DecisionRecord)]
    actions = [action for decision in decisions for action in decision.actions]
    if world.policy.mode == "monitor":
        assert [action for action in actions if touches(action)] == []
    loaded = [a.resume_from for a in actions if isinstance(a, StartAttempt) and a.resume_from is not None]
    job = world.view.jobs[world.script.job.name]
    assert all(step in job.checkpoints for step in loaded)
    assert dict(world.view.pending) == {}
    assert len({decision.id for decision in decisions}) == len(decisions)


def test_the_pointer_stands_before_the_hold(path: Path) -> None:
    """Whoever starts a stopped job finds the newest checkpoint that is known clean; without one nobody is to."""
    world = World(read(path))
    decisions = [record.decision for record in world.run() if isinstance(record, DecisionRecord)]
    pointed, followed = None, world.script.job.policy.lineage != "none"
    for action in (action for decision in decisions for action in decision.actions):
        match action:
            case PointClean():
                pointed = action.step
            case StopAttempt() | StartAttempt() if followed:
                assert pointed == action.resume_from
            case HoldJob():
                assert pointed is None


def test_story_can_be_told(path: Path) -> None:
    world = World(read(path))
    story = build(world.run())
    page = render_html(story)
    assert story.headline in page.replace("&#39;", "'")
    assert "<script" not in page
    told_again = to_json(story)
    assert len(told_again["checkpoints"]) >= len(verdicts(world.view.jobs[world.script.job.name], world.view.doubts))
    if world.finished and world.finished.code == 0:
        assert story.outcome in {"undisturbed", "recovered", "unproven"}


def test_who_is_told_in_monitor_mode() -> None:
    """A page says what must be done, not that it was."""
    records = World(read(HERE / "monitor_mode.jsonl")).run()
    pages = [
        action.text
        for record in records
        if isinstance(record, DecisionRecord)
        for action in record.decision.actions
        if isinstance(action, Page)
    ]
    assert pages == ["GPU-node1-0 on node1 must be taken out: its count of uncorrected errors rose"]
