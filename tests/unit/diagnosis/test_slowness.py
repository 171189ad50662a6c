"""Slow ranks and slow jobs in the live loop: named once an episode, moving nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.builders import Told, running

from medevac.core.decision import Finding
from medevac.core.events import AttemptStarted, StepReported

RANKS = 4
Seconds = Callable[[int, int], float]


class Job:
    """A running job whose ranks report their compute time, one step after the other."""

    def __init__(self, *, ranks: int = RANKS, reports: bool = True) -> None:
        self.told = running(Told(), ranks=ranks)
        self.ranks, self.reports, self.step, self.at = ranks, reports, 1, 10.0
        self.chance = random.Random(1)

    def go(self, steps: int, seconds: Seconds, *, phase: str = "step") -> list[Finding]:
        found: list[Finding] = []
        for _ in range(steps):
            self.step += 1
            times = [seconds(self.step, rank) * self.chance.gauss(1, 0.02) for rank in range(self.ranks)]
            self.at += max(times) + 0.1
            for rank, took in enumerate(times):
                event = StepReported(
                    at=self.at + rank * 1e-3,
                    job="job",
                    attempt=self.told.view.jobs["job"].attempt,
                    step=self.step,
                    rank=rank,
                    phase=phase,  # type: ignore[arg-type]
                    compute_s=took if self.reports else None,
                )
                decision = self.told.tell(event)
                assert not decision.actions or not decision.findings
                found += decision.findings
        return found


def even(_step: int, _rank: int) -> float:
    return 1.0


def rank_2_slow(_step: int, rank: int) -> float:
    return 1.8 if rank == 2 else 1.0


def all_slow(_step: int, _rank: int) -> float:
    return 2.0


def test_an_even_job_has_no_finding() -> None:
    assert Job().go(300, even) == []


def test_a_slow_rank_is_named_once_with_its_place() -> None:
    job = Job()
    job.go(80, even)
    (found,) = job.go(60, rank_2_slow)
    place = job.told.view.jobs["job"].ranks[2]
    assert (found.rule, found.severity, found.response) == ("straggler", "warning", "none")
    assert (found.part.domain, found.part.name, found.part.node) == ("job", "job", place.node)
    assert "rank 2" in found.meaning
    assert place.gpus[0] in found.meaning
    assert next(clause.value for clause in found.clauses if clause.says == "rank") == 2


def test_a_rank_that_was_slow_from_the_start_is_named_without_a_baseline() -> None:
    (found,) = Job().go(40, rank_2_slow)
    assert found.rule == "straggler"


def test_a_second_episode_is_told_again() -> None:
    job = Job()
    assert len(job.go(60, rank_2_slow)) == 1
    assert job.go(60, even) == []
    assert [found.rule for found in job.go(60, rank_2_slow)] == ["straggler"]


def test_a_slow_job_without_reports_of_ranks_has_no_rank() -> None:
    job = Job(reports=False)
    job.go(80, even)
    (found,) = job.go(60, rank_2_slow)
    assert found.rule == "slowdown"
    assert "rank unknown" in found.meaning


def test_all_ranks_slow_together_is_the_job() -> None:
    job = Job()
    job.go(80, even)
    assert [found.rule for found in job.go(60, all_slow)] == ["slowdown"]


def test_slow_steps_evals_and_saves_are_no_stragglers() -> None:
    job = Job()
    job.go(80, even)
    assert job.go(1, lambda _step, rank: 30.0 if rank == 1 else 1.0) == []
    assert job.go(20, rank_2_slow, phase="eval") == []
    assert job.go(80, even) == []


def test_a_new_attempt_begins_afresh() -> None:
    job = Job()
    job.go(10, rank_2_slow)
    before = job.told.view.jobs["job"].slowness
    assert before.slow
    after = before.afresh()
    assert (after.slow, after.rows, after.named) == ((), (), ())
    assert after.drift.baseline == before.drift.baseline


def test_what_an_older_attempt_says_late_is_no_news() -> None:
    job = Job()
    job.go(40, rank_2_slow)
    told = job.told
    places = told.view.jobs["job"].ranks
    late = StepReported(at=job.at, job="job", attempt=0, step=999, rank=2, compute_s=9.0)
    assert told.tell(late, AttemptStarted(at=job.at, job="job", attempt=1, ranks=places)).findings == ()


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 3), st.floats(0, 1e6), st.sampled_from(["step", "eval", "save"])),
        max_size=80,
    )
)
def test_reports_in_any_order_are_taken_in_bounded_memory(reports: list[tuple[int, int, float, str]]) -> None:
    told = running(Told(), ranks=RANKS)
    for at, (step, rank, seconds, phase) in enumerate(reports):
        told.tell(
            StepReported(at=5.0 + at, job="job", attempt=1, step=step, rank=rank, compute_s=seconds, phase=phase)  # type: ignore[arg-type]
        )
    kept = told.view.jobs["job"].slowness
    assert len(kept.rows) <= 2
    assert len(kept.slow) <= 20
    assert len(kept.drift.recent) <= 20
