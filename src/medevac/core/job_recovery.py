"""The recovery of a job, attempt by attempt, as one table."""

from __future__ import annotations

from medevac.core.machine import Machine, rows

RUNS = ("proving", "running")
ALIVE = ("starting", *RUNS, "leaving", "stopping")
WAITS = ("backing-off", "choosing")

TRANSITIONS = (
    *rows(("new",), "submitted", "backing-off", says="what its folder holds is read first"),
    *rows(("starting",), "started", "proving", says="its ranks are there"),
    *rows(
        (*WAITS, "held", "gave-up", "watched"), "started", "proving", says="the scheduler, or a person, ran it again"
    ),
    *rows(("starting",), "refused", "backing-off", says="the scheduler said no"),
    *rows(("starting",), "no-place", "backing-off", "page", "too little is in service for it"),
    *rows(("starting",), "refused-often", "held", "hold", "the scheduler says no again and again"),
    *rows(("proving",), "progress", "running", "recovered", "its step passed the best earlier one"),
    *rows(("running",), "room", "leaving", "ask", "it runs on less than it could have again"),
    *rows((*RUNS, "starting"), "pre-failure", "leaving", "ask", "a GPU of it is likely to fail"),
    *rows((*RUNS, "starting", "leaving"), "critical", "stopping", "stop", "a GPU of it failed"),
    *rows((*RUNS, "leaving"), "hung", "stopping", "stop", "no progress within the limit"),
    *rows(("leaving",), "due", "stopping", "stop", "it did not leave in time"),
    *rows((*RUNS, "leaving"), "non-finite", "stopping", "stop", "a rank reports NaN or infinity"),
    *rows((*RUNS, "starting", "leaving"), "suspect-resume", "stopping", "stop", "it runs from a suspect checkpoint"),
    *rows(ALIVE, "completed", "finished", "finish", "it ended well"),
    *rows(ALIVE, "failed", "backing-off", says="its attempt is over"),
    *rows(ALIVE, "no-progress", "gave-up", "give-up", "attempts in a row passed no earlier step"),
    *rows(ALIVE, "too-many", "gave-up", "give-up", "as many restarts as the policy allows"),
    *rows(ALIVE, "user-code", "gave-up", "give-up", "the job's own mistake: a restart would not help"),
    *rows((*ALIVE, *WAITS), "array-failed", "held", "hold-array", "the tasks of its array fail alike"),
    *rows(ALIVE, "only-watched", "watched", "pass-on", "nothing is done: it ended with its own code"),
    *rows(("backing-off",), "due", "choosing", "verify", "time to go on from the newest clean checkpoint"),
    *rows(("backing-off", "choosing"), "nothing-saved", "starting", "start", "no checkpoint: from nothing"),
    *rows(("choosing",), "bad-checkpoint", "choosing", "verify", "its files differ from its seal: the next older one"),
    *rows(("choosing",), "good-checkpoint", "starting", "start", "its files are as they were sealed"),
    *rows(("choosing", "backing-off"), "no-clean", "held", "hold", "no checkpoint is known clean"),
    *rows(("choosing", "backing-off"), "no-place", "backing-off", "page", "no healthy GPU is free"),
    *rows(("held", "gave-up"), "order-release", "backing-off", "release", "a person let it go on"),
    *rows((*ALIVE, *WAITS), "order-stop", "ended", "end", "a person stopped it"),
    *rows(("held",), "order-stop", "ended", "end", "a person stopped it"),
)

JOB = Machine(name="job", initial="new", final=("finished", "ended"), table=TRANSITIONS)

OVER = (*JOB.final, "watched")
"""States in which nothing is kept for a next attempt."""
