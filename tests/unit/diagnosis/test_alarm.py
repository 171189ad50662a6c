"""A crash named while its attempt still runs: lines of its output, through the signatures, as a warning."""

from __future__ import annotations

import pytest
from tests.unit.core.builders import Told, running

from medevac.adapters.sources.output import Printed
from medevac.catalog.signatures import signatures
from medevac.controller import output
from medevac.controller.output import MOST_ALARMS, MOST_CLUES, Alarm, output_parser, troubled
from medevac.core.decision import Finding
from medevac.core.events import AttemptEnded, OutputRead, StepReported

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
WAITS = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000)"


def line(text: str, rank: int = 0, attempt: int = 1) -> Printed:
    return Printed("job", attempt, rank, text, 50.0)


def heard(told: Told, event: OutputRead | None) -> tuple[Finding, ...]:
    assert event
    return told.tell(event).findings


def test_a_line_that_names_the_cause_is_a_warning_with_rank_and_node() -> None:
    told = running(Told(), ranks=4)
    (found,) = heard(told, Alarm(own_files=True).read(line(ECC, 2)))
    node = told.view.jobs["job"].ranks[2].node
    assert (found.rule, found.severity, found.response) == ("crash", "warning", "none")
    assert found.meaning == f"attempt 1 fails: hardware: rank 2 on {node}: {ECC}"
    assert (told.view.jobs["job"].state, told.view.jobs["job"].output) == ("running", None)


def test_it_is_told_once_an_incident_and_once_a_line() -> None:
    told, alarm = running(Told(), ranks=4), Alarm(own_files=True)
    assert len(heard(told, alarm.read(line(ECC, 2)))) == 1
    assert alarm.read(line(ECC, 2)) is None
    assert heard(told, alarm.read(line(ECC, 3))) == ()


def test_what_is_printed_while_we_stop_it_is_our_own_doing() -> None:
    told = running(Told(), ranks=4)
    told.tell(StepReported(at=30.0, job="job", attempt=1, step=21, rank=3, finite=False))
    assert told.view.jobs["job"].state == "stopping"
    assert heard(told, Alarm(own_files=True).read(line(ECC, 2))) == ()


def test_lines_that_only_wait_or_complain_name_nothing() -> None:
    alarm = Alarm(own_files=True)
    assert alarm.read(line("step 3 loss 2.11")) is None
    assert alarm.read(line(WAITS, 1)) is None
    assert alarm.read(line("[E] Connection closed by peer [10.0.0.7]:4242")) is None


def test_what_survivors_stumble_over_is_weighed_with_the_lines_before() -> None:
    told, alarm = running(Told(), ranks=4), Alarm(own_files=True)
    alarm.read(line(WAITS, 1))
    event = alarm.read(line("RuntimeError: a view of a leaf Variable is being used in an in-place operation", 1))
    assert event is None or heard(told, event) == ()


def test_where_all_ranks_share_a_file_the_prefix_says_who_speaks() -> None:
    shared = Alarm(own_files=False)
    (clue, *_) = event.clues if (event := shared.read(line(f"[rank3]: {ECC}"))) else ()
    assert clue.rank == 3
    (clue, *_) = event.clues if (event := Alarm(own_files=False).read(line(ECC))) else ()
    assert clue.rank is None


def test_a_new_attempt_begins_anew_and_an_old_one_is_nobodys() -> None:
    told, alarm = running(Told(), ranks=4), Alarm(own_files=True)
    assert alarm.read(line(ECC, 2))
    second = alarm.read(line(ECC, 2, attempt=2))
    assert second
    assert {clue.line for clue in second.clues} == {1}
    assert heard(told, second) == (), "that attempt is not the one that runs"
    told.tell(AttemptEnded(at=60.0, job="job", attempt=1, code=1))
    assert heard(told, Alarm(own_files=True).read(line(ECC, 1))) == (), "it has ended"


def test_a_flood_is_cut() -> None:
    alarm = Alarm(own_files=True)
    told = [alarm.read(line(ECC, rank)) for rank in range(100)]
    assert 0 < sum(event is not None for event in told) <= MOST_ALARMS
    assert all(len(event.clues) <= MOST_CLUES for event in told if event)


def test_the_words_of_trouble_let_nearly_all_signatures_of_a_crash_through() -> None:
    roots = [one for one in signatures() if one.role == "root" and one.cause != "numerical"]
    crashes = [one for one in roots if one.symptom == "crash"]
    missed = [one.id for one in crashes if not troubled(one.example)]
    assert len(missed) <= len(crashes) // 10, missed


def test_what_a_running_attempt_may_cost_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MOST_LOOKED", 5)
    alarm = Alarm(own_files=True)
    for _ in range(5):
        assert alarm.read(line("WARN: nothing that a signature knows")) is None
    assert alarm.read(line(ECC)) is None, "it is read when the attempt has ended"
    assert alarm.read(line(ECC, attempt=2))


def test_progress_comes_first_and_the_rest_is_looked_at() -> None:
    parse = output_parser(None, lambda: False, own_files=True)
    assert isinstance(parse(line("step 12 loss: 2.1")), StepReported)
    assert isinstance(parse(line(ECC)), OutputRead)
    speaks = output_parser(None, lambda: True, own_files=True)
    assert speaks(line("step 12 loss: 2.1")) is None
    assert isinstance(speaks(line(ECC)), OutputRead)
