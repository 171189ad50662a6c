"""The story says what the log says: who, what, when, what it cost."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console
from tests.scenario.script import read
from tests.scenario.world import START, World

from medevac.core.decision import Diagnosed, Finding, Incident, Part
from medevac.core.diagnose_case import Clue, Diagnosis
from medevac.core.events import StepReported
from medevac.ports.store import DecisionRecord, EventRecord, Record
from medevac.report import words
from medevac.report.chart import LEFT, RIGHT, WIDTH, draw
from medevac.report.story import Story, build, render_html, render_text, to_json

SCENARIOS = Path(__file__).parents[2] / "scenario"


def log(name: str) -> Sequence[Record]:
    return World(read(SCENARIOS / f"{name}.jsonl")).run()


def story(name: str) -> Story:
    return build(log(name))


def text(told: Story) -> str:
    console = Console(width=160, file=io.StringIO(), record=True)
    render_text(told, console)
    return console.export_text()


def test_the_storm_is_told_right() -> None:
    told = story("ecc_storm")
    assert told.outcome == "recovered"
    assert told.code == 0
    assert told.headline == (
        "Job train survived the failure of node1 GPU 0: progress again after 7.3 s, 7 steps computed twice, finished."
    )
    (incident,) = told.incidents
    assert (incident.root, incident.victims) == ("node1 GPU 0", ("node2 GPU 1", "node2 GPU 2"))
    assert incident.probable_cause == "the power of rack1"
    assert [a.number for a in told.attempts] == [1, 2]
    assert (told.attempts[1].told, told.attempts[1].loaded) == (20, 20)
    assert told.attempts[0].bad is not None


def test_a_recovery_has_its_marks_in_order_and_its_cost() -> None:
    (recovery,) = story("ecc_storm").recoveries
    marks = [
        recovery.fault_at,
        recovery.detected_at,
        recovery.stopped_at,
        recovery.restarted_at,
        recovery.first_step_at,
        recovery.proof_at,
    ]
    assert None not in marks
    assert marks == sorted(mark for mark in marks if mark is not None)
    assert [name for name, _ in recovery.spans()] == ["detection", "stop", "restart", "first step", "proof"]
    assert (recovery.reached, recovery.resumed, recovery.lost_steps) == (27, 20, 7)


def test_a_checkpoint_that_was_saved_again_keeps_its_first_verdict() -> None:
    states = [(c.step, c.attempt, c.state, c.replaced) for c in story("ecc_storm").checkpoints if c.step == 25]
    assert states == [(25, 1, "suspect", True), (25, 2, "clean", False)]


def test_the_checkpoint_that_was_loaded_says_by_whom() -> None:
    assert [(c.step, c.used) for c in story("ecc_storm").checkpoints if c.used] == [(20, (2,))]


def test_a_decoy_is_told_apart() -> None:
    told = story("decoy")
    assert told.outcome == "undisturbed"
    assert told.recoveries == ()
    assert [incident.touched for incident in told.incidents] == [False]
    assert "did not use" in told.headline
    assert told.summary.cost == "Nothing."


@pytest.mark.parametrize(
    ("name", "outcome", "headline"),
    [
        ("hang", "recovered", "5.5 s in phase step, the limit is 5.0 s; behind the others: rank 5; rank 5 (process 45"),
        ("no_progress", "gave-up", "3 attempts in a row"),
        ("nan_twice", "gave-up", "step 23 again"),
        ("monitor_mode", "watched", "only watched"),
        ("suspect_resume", "recovered", "the failure of node1 GPU 0"),
    ],
)
def test_each_end_has_its_headline(name: str, outcome: str, headline: str) -> None:
    told = story(name)
    assert told.outcome == outcome
    assert headline in told.headline


def handled(records: Sequence[Record], *told: tuple[int, int, str]) -> Sequence[Record]:
    """The log with steps that ranks found bad and that the job has handled: rank, step, how."""
    nth, record = next(
        (n, r)
        for n, r in enumerate(records)
        if isinstance(r, EventRecord) and isinstance(r.event, StepReported) and r.event.step == 3
    )
    assert isinstance(record, EventRecord)
    assert isinstance(record.event, StepReported)
    bad = [
        replace(record, event=replace(record.event, rank=rank, step=step, finite=False, handled=how))
        for rank, step, how in told
    ]
    return [*records[: nth + 1], *bad, *records[nth + 1 :]]


def test_what_the_job_handled_in_place_is_no_undisturbed_job() -> None:
    back = "rolled back to step 2"
    told = build(handled(log("decoy"), (1, 3, back), (2, 3, back), (1, 4, "skipped")))
    assert told.outcome == "undisturbed"
    assert told.headline.startswith("Job train finished; 2 faults handled in place, without a restart. Hardware that")
    assert told.summary.happened.startswith("Step 3 was bad: rolled back to step 2. Step 4 was bad: skipped.")
    assert told.summary.done.endswith("By the job itself: rolled back to step 2 and skipped.")
    assert told.summary.cost.startswith("No restart;")
    assert [(one.attempt, one.step, one.how) for one in told.in_place] == [(1, 3, back), (1, 4, "skipped")]
    many = build(handled(log("decoy"), *((1, step, "skipped") for step in range(3, 9))))
    assert "Step 4 was bad: skipped. 4 more faults handled in place." in many.summary.happened


def test_what_was_handled_before_a_restart_is_told_beside_it() -> None:
    told = build(handled(log("ecc_storm"), (1, 3, "done again")))
    assert "survived the failure of node1 GPU 0" in told.headline
    assert told.summary.happened.endswith("Step 3 was bad: done again.")
    assert "By the job itself: done again." in told.summary.done
    assert story("ecc_storm").in_place == ()


def test_other_jobs_of_the_state_folder_are_not_in_the_story() -> None:
    script = read(SCENARIOS / "rank_crash.jsonl")
    earlier = World(replace(script, job=replace(script.job, name="other"))).run()
    both = [*earlier, *(behind(record, earlier[-1].seq) for record in log("rank_crash"))]
    told, alone = build(both, "train"), story("rank_crash")
    starts = [moment.text for moment in told.timeline if moment.text.startswith("start attempt")]
    assert starts == [moment.text for moment in alone.timeline if moment.text.startswith("start attempt")]
    assert told.start > alone.start, "it begins with its own submission"
    assert build(both, "other").end == build(earlier, "other").end


def test_a_job_that_was_only_watched_ends_when_it_ends() -> None:
    alone = log("monitor_mode")
    script = read(SCENARIOS / "rank_crash.jsonl")
    later = World(replace(script, job=replace(script.job, name="other"))).run()
    both = [*alone, *(behind(record, alone[-1].seq) for record in later)]
    assert build(both, "train").end == build(alone, "train").end


def test_a_slowdown_of_the_job_is_no_hardware_that_it_did_not_use() -> None:
    slow = Finding(rule="slow", part=Part(domain="job", name="train"), severity="warning", meaning="slower", at=START)
    incident = Incident(
        id="I1", root=slow.part, severity="warning", start=START, last=START, findings=(slow,), victims=()
    )
    records = list(log("ecc_storm"))
    nth = next(n for n, record in enumerate(records) if isinstance(record, DecisionRecord))
    first = records[nth]
    assert isinstance(first, DecisionRecord)
    records[nth] = replace(first, decision=replace(first.decision, incidents=(*first.decision.incidents, incident)))
    assert [one.touched for one in build(records).incidents if one.id == "I1"] == [True]


def behind(record: Record, seq: int) -> Record:
    """The same record further down a log."""
    if isinstance(record, DecisionRecord):
        decision = replace(record.decision, cause=record.decision.cause + seq)
        return replace(record, seq=record.seq + seq, decision=decision)
    return replace(record, seq=record.seq + seq)


def test_a_held_job_waits_for_a_person() -> None:
    until_held = [r for r in log("no_clean_checkpoint") if r.seq <= 260]
    orders = [r.seq for r in until_held if "OrderGiven" in str(msgspec.to_builtins(r))]
    told = build([r for r in until_held if r.seq < orders[0]])
    assert told.outcome == "held"
    assert "waits for a person" in told.headline
    assert {c.state for c in told.checkpoints} == {"suspect"}


def test_what_guards_held_back_is_told_with_when_it_was_done() -> None:
    told = story("budget_held_then_due")
    assert [(held.guard, held.done_at is not None) for held in told.held] == [("rate", True)]
    assert {held.guard for held in story("monitor_mode").held} == {"monitor-only"}
    assert all(held.done_at is None for held in story("monitor_mode").held)


def test_several_restarts_in_one_recovery_are_one() -> None:
    (recovery,) = story("suspect_resume").recoveries
    assert (recovery.from_attempt, recovery.to_attempt) == (1, 3)


def test_a_running_job_can_be_told() -> None:
    whole = log("ecc_storm")
    for upto in range(3, len(whole), 37):
        told = build(whole[:upto])
        assert told.headline
        assert render_html(told)


def test_the_json_says_the_same() -> None:
    told = to_json(story("ecc_storm"))
    assert told["version"] == 1
    assert set(told["recoveries"][0]["spans"]) == {"detection", "stop", "restart", "first step", "proof"}
    assert msgspec.json.decode(msgspec.json.encode(told)) == msgspec.json.decode(msgspec.json.encode(told))
    assert msgspec.convert(told, Story) == story("ecc_storm")


def test_what_the_output_says_is_told_where_no_hardware_is_blamed() -> None:
    whole = list(log("rank_crash"))
    at = next(n for n, r in enumerate(whole) if isinstance(r, DecisionRecord) and "exit code 1" in r.decision.reason)
    record = whole[at]
    assert isinstance(record, DecisionRecord)
    clue = Clue(signature="assert", role="root", cause="user-code", text="AssertionError: batch is empty")
    verdict = Diagnosis(cause="user-code", symptom="crash", confidence=0.9, advice="restart", root=(clue,))
    diagnosed = Diagnosed(job="train", attempt=1, verdict=verdict)
    whole[at] = replace(record, decision=replace(record.decision, diagnoses=(diagnosed,)))
    told = build(whole)
    assert told.attempts[0].diagnosis == "user-code, 90% sure: AssertionError: batch is empty"
    assert told.summary.blame.endswith("The diagnosis: user-code, 90% sure: AssertionError: batch is empty.")


def test_a_log_without_a_job_is_refused() -> None:
    with pytest.raises(ValueError, match="the log has no job"):
        build([])
    with pytest.raises(ValueError, match="no job 'other'; it has train"):
        build(log("decoy"), "other")


def test_the_text_leads_with_the_headline_and_names_no_uuid_before_the_end() -> None:
    told = text(story("ecc_storm"))
    assert told.index("survived the failure") < told.index("From fault to progress") < told.index("Timeline")
    assert "GPU-node1-0" not in told[: told.index("Out of service")]


def test_the_page_needs_nothing_else_and_escapes_what_it_shows() -> None:
    page = render_html(story("ecc_storm"))
    assert not re.findall(r"<script|<link|src=|href=|url\(", page)
    nasty = msgspec.structs.replace(story("ecc_storm"), command=("<img src=x>",))
    assert "<img" not in render_html(nasty)


def test_the_drawing_is_well_formed_and_stays_in_its_frame() -> None:
    page = render_html(story("ecc_storm"))
    svg = page[page.index("<svg") : page.index("</svg>") + 6]
    assert ET.fromstring(svg).tag == "svg"
    chart = draw(story("ecc_storm"))
    assert chart is not None
    xs = [dot.x for dot in chart.dots] + [mark.x for mark in chart.marks]
    assert all(LEFT <= x <= WIDTH - RIGHT for x in xs)


def test_labels_of_marks_hide_no_other() -> None:
    chart = draw(story("ecc_storm"))
    assert chart is not None
    rows = [(mark.row, mark.x) for mark in chart.marks if not mark.left]
    assert len(rows) == len(set(rows))


def test_a_job_that_told_no_step_has_no_drawing() -> None:
    whole = log("ecc_storm")
    assert draw(build(whole[:6])) is None


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.123, "0.12 s"),
        (9.96, "10.0 s"),
        (99.96, "1 min 40 s"),
        (65, "65.0 s"),
        (3599, "59 min 59 s"),
        (7260, "2 h 1 min"),
    ],
)
def test_durations_are_said_short(seconds: float, said: str) -> None:
    assert words.span(seconds) == said


def test_times_are_said_in_utc() -> None:
    assert words.clock(START + 0.26) == "14:13:20.3"
    assert words.date(START) == "2026-09-21 14:13:20 UTC"
