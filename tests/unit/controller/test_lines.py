"""What the parent says and passes on."""

from __future__ import annotations

import io
from pathlib import Path

from medevac.controller.stream import Output
from medevac.controller.supervise import Progress
from medevac.controller.tell import line
from medevac.core.actions import FinishJob, HoldJob, JudgeCheckpoint, StartAttempt
from medevac.core.decision import Decision, Moved, Trigger
from medevac.core.events import ActionSettled, AnyEvent, OrderGiven
from medevac.ports.store import DecisionRecord, EventRecord


def log(tmp_path: Path, attempt: int, rank: int, text: str) -> None:
    path = tmp_path / "attempts" / str(attempt) / f"rank{rank}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as out:
        out.write(text)


def test_lines_of_several_ranks_have_the_rank_in_front(tmp_path: Path) -> None:
    out = io.BytesIO()
    output = Output(tmp_path, out, several=True)
    log(tmp_path, 1, 0, "one\ntwo\nthr")
    log(tmp_path, 1, 10, "ten\n")
    output.pass_on()
    assert out.getvalue() == b"[0] one\n[0] two\n[10] ten\n"
    log(tmp_path, 1, 0, "ee\nend")
    output.pass_on()
    output.pass_on(last=True)
    assert out.getvalue() == b"[0] one\n[0] two\n[10] ten\n[0] three\n[0] end"


def test_a_single_process_prints_as_if_alone_and_attempts_follow_each_other(tmp_path: Path) -> None:
    out = io.BytesIO()
    output = Output(tmp_path, out, several=False)
    log(tmp_path, 10, 0, "later\n")
    log(tmp_path, 9, 0, "sooner\n")
    output.pass_on()
    assert out.getvalue() == b"sooner\nlater\n"


def test_one_who_attaches_hears_only_what_is_new(tmp_path: Path) -> None:
    log(tmp_path, 1, 0, "old\n")
    out = io.BytesIO()
    output = Output(tmp_path, out, several=False, from_now=True)
    log(tmp_path, 1, 0, "new\n")
    log(tmp_path, 2, 0, "newer\n")
    output.pass_on()
    assert out.getvalue() == b"new\nnewer\n"


def test_a_reader_that_went_away_is_let_go(tmp_path: Path) -> None:
    class Closed(io.BytesIO):
        def writelines(self, lines: object) -> None:
            raise BrokenPipeError

    log(tmp_path, 1, 0, "one\n")
    output = Output(tmp_path, Closed(), several=False)
    output.pass_on()
    output.pass_on()


def test_a_decision_is_one_line() -> None:
    start = StartAttempt(id="s", job="train", attempt=2, reason="from step 40, the newest checkpoint known clean")
    judge = JudgeCheckpoint(id="j", job="train", step=60, state="condemned", reason="rank 3 took part")
    said = line(Decision(id="D7", cause=7, at=0.0, reason="GPU-1: lost", actions=(judge, start)))
    assert said.endswith(
        "D7 GPU-1: lost; checkpoint 60 is condemned: rank 3 took part; "
        "attempt 2 starts, from step 40, the newest checkpoint known clean, one process"
    )
    assert line(Decision(id="D8", cause=8, at=0.0)) == ""


def progress(*steps: AnyEvent | Decision) -> Progress:
    made = Progress("train")
    for seq, one in enumerate(steps, 1):
        made.take(
            DecisionRecord(seq=seq, decision=one) if isinstance(one, Decision) else EventRecord(seq=seq, event=one)
        )
    return made


def moved(target: str, action: FinishJob | HoldJob | None = None) -> Decision:
    trigger = Trigger(machine="job", who="train", on="x")
    actions = () if action is None else (action,)
    return Decision(
        id=f"to-{target}", cause=1, at=0.0, moved=(Moved(trigger=trigger, source="", target=target),), actions=actions
    )


def test_the_end_counts_when_it_is_settled() -> None:
    finish = FinishJob(id="f", job="train", code=4)
    assert progress(moved("running")).code is None
    assert progress(moved("gave-up", finish)).code is None
    settled = ActionSettled(at=0.0, action="f", outcome="done")
    assert progress(moved("gave-up", finish), settled).code == 4


def test_a_held_job_waits_until_it_is_released() -> None:
    hold = HoldJob(id="h", job="train", purpose="person")
    settled = ActionSettled(at=0.0, action="h", outcome="done")
    assert progress(moved("held", hold), settled).code == 5
    release = OrderGiven(at=0.0, what="release", who="alex", target="train")
    assert progress(moved("held", hold), settled, release).code is None
    assert progress(moved("held", hold), settled, release, moved("backing-off")).code is None
