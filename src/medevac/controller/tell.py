"""A decision as a line for the one who watches."""

from __future__ import annotations

import time

from medevac.core.actions import AnyAction, Isolate, JudgeCheckpoint, Page, RequestCheckpoint, StartAttempt
from medevac.core.decision import Decision


def line(decision: Decision) -> str:
    """`12:00:01 D17 reason; what is done`, in the reader's own time zone."""
    done = [words for action in decision.actions if (words := _of(action))]
    said = "; ".join(part for part in (decision.reason, *done) if part)
    return f"{time.strftime('%H:%M:%S', time.localtime(decision.at))} {decision.id} {said}" if said else ""


def _of(action: AnyAction) -> str:
    """The action in words; "" for one that the reason tells already."""
    match action:
        case StartAttempt():
            ranks = f"{len(action.ranks)} ranks" if len(action.ranks) > 1 else "one process"
            return f"attempt {action.attempt} starts, {action.reason}, {ranks}"
        case Isolate():
            return f"{action.gpu or action.node} is taken out ({action.mode})"
        case JudgeCheckpoint():
            return f"checkpoint {action.step} is {action.state}: {action.reason}"
        case RequestCheckpoint():
            return f"attempt {action.attempt} is asked to save and leave within {action.deadline_s:g} s"
        case Page():
            return f"PAGE ({action.level}): {action.text}"
        case _:
            return ""
