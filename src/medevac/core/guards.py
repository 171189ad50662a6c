"""The safety pipeline: each guard may take an action out or delay it, and says why. None can add one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeAlias

from medevac.core.actions import (
    AnyAction,
    ExamineAttempt,
    FinishJob,
    GiveBack,
    Isolate,
    JudgeCheckpoint,
    Page,
    StartAttempt,
    VerifyCheckpoint,
)
from medevac.core.decision import Held, Struct, Trigger
from medevac.core.events import Node
from medevac.core.lineage import verdicts
from medevac.core.node_lifecycle import OUT
from medevac.core.policy import Budget, Policy
from medevac.core.view import View


class Said(Struct, frozen=True, kw_only=True):
    """Why an action does not pass now, and when it may be tried again."""

    why: str
    until: float | None = None


Guard: TypeAlias = Callable[[View, AnyAction, Policy], Said | None]


def screen(view: View, actions: Iterable[AnyAction], trigger: Trigger, policy: Policy) -> list[Held]:
    """The first guard that objects to each action; nothing: all may be done."""
    held = []
    for action in actions:
        for name, guard in PIPELINE:
            said = guard(view, action, policy)
            if said:
                held.append(Held(action=action, guard=name, why=said.why, until=said.until, trigger=trigger))
                break
    return held


def touches(action: AnyAction) -> bool:
    """Whether it changes anything outside Medevac. A job's first start is what its owner asked for."""
    if isinstance(action, Page | FinishJob | VerifyCheckpoint | ExamineAttempt):
        return False
    return not (isinstance(action, StartAttempt) and action.attempt == 1)


def _paused(view: View, action: AnyAction, policy: Policy) -> Said | None:  # noqa: ARG001
    return Said(why="paused by an operator") if view.paused and touches(action) else None


def _monitor_only(view: View, action: AnyAction, policy: Policy) -> Said | None:  # noqa: ARG001
    return Said(why="monitor mode touches nothing") if policy.mode == "monitor" and touches(action) else None


def _ownership(view: View, action: AnyAction, policy: Policy) -> Said | None:  # noqa: ARG001
    if isinstance(action, GiveBack) and view.device(action.gpu or action.node).state not in {*OUT, "restricted"}:
        return Said(why="it was not taken out by Medevac")
    return None


def _budget(view: View, action: AnyAction, policy: Policy) -> Said | None:
    if not isinstance(action, Isolate):
        return None
    budget, more = policy.budget, len(_newly_out(view, action, policy))
    home = view.nodes.get(action.node)
    if not more or home is None:
        return None
    retry = view.now + 6 * policy.recovery.retry_s
    everything = _members(view, lambda _: True, policy)
    out = {member for member in everything if _out(view, member)}
    most = max(budget.cluster_least, int(len(everything) * budget.cluster_share))
    if len(out) + more > most:
        return Said(
            why=f"{len(out)} of {len(everything)} {budget.unit}s are out, the cluster's most is {most}", until=retry
        )
    if len(everything) - len(out) - more < budget.floor_share * len(everything):
        return Said(why=f"capacity would fall under {budget.floor_share:.0%}", until=retry)
    for where, wanted, least, share in _neighbourhoods(home, budget):
        members = _members(view, wanted, policy)
        gone, most = len(out.intersection(members)), max(least, int(len(members) * share))
        if gone + more > most:
            return Said(why=f"{gone} of {len(members)} are out in {where}, its most is {most}", until=retry)
    return None


Neighbourhood: TypeAlias = tuple[str, Callable[[Node], bool], int, float]


def _neighbourhoods(home: Node, budget: Budget) -> Iterator[Neighbourhood]:
    """What a node shares with others and a budget is kept for: its name, who belongs to it, the least and the share."""
    for name in home.partitions:
        yield f"partition {name}", partial(_in_partition, name), budget.cluster_least, budget.cluster_share
    for label, share in (("rack", budget.rack_share), ("nvlink_domain", budget.nvlink_share)):
        if value := getattr(home, label):
            yield f"{label} {value}", partial(_labelled, label, value), 1, share


def _in_partition(name: str, node: Node) -> bool:
    return name in node.partitions


def _labelled(label: str, value: str, node: Node) -> bool:
    return bool(getattr(node, label) == value)


def _members(view: View, wanted: Callable[[Node], bool], policy: Policy) -> list[str]:
    nodes = [node for node in view.nodes.values() if wanted(node)]
    if policy.budget.unit == "node":
        return sorted(node.name for node in nodes)
    return sorted(gpu.uuid for node in nodes for gpu in node.gpus)


def _newly_out(view: View, action: Isolate, policy: Policy) -> list[str]:
    """What the budget counts of it: a GPU takes its node along where nodes are counted, a node all its GPUs."""
    if policy.budget.unit == "gpu" and action.gpu:
        return [] if _out(view, action.gpu) else [action.gpu]
    concerned = _members(view, lambda node: node.name == action.node, policy)
    return [member for member in concerned if not _out(view, member)]


def _out(view: View, member: str) -> bool:
    """Whether a GPU or node is out, itself or by what it is part of or has in it, by whosever hand."""
    node = view.nodes.get(member)
    home = node or view.nodes.get(view.owners.get(member, ""))
    if home and home.out:
        return True
    others = (gpu.uuid for gpu in node.gpus) if node else filter(None, (view.owners.get(member),))
    return any(view.device(name).state in OUT for name in (member, *others))


def _is_out(view: View, action: Isolate) -> bool:
    return view.device(action.gpu or action.node).state in OUT


def _rate(view: View, action: AnyAction, policy: Policy) -> Said | None:
    if not isinstance(action, Isolate) or _is_out(view, action):
        return None
    recent = [at for at, _ in view.isolations if at > view.now - policy.budget.window_s]
    if len(recent) < policy.budget.new_in_window:
        return None
    why = f"{len(recent)} were taken out within {policy.budget.window_s:g} s, the most in that time"
    return Said(why=why, until=min(recent, default=view.now) + policy.budget.window_s)


def _known_clean(view: View, action: AnyAction, policy: Policy) -> Said | None:  # noqa: ARG001
    """Law 5, once more at the door: no start from what was condemned meanwhile."""
    if not isinstance(action, StartAttempt) or action.resume_from is None:
        return None
    job = view.jobs.get(action.job)
    verdict = verdicts(job, view.doubts).get(action.resume_from) if job else None
    if verdict is None or verdict.state != "clean":
        return Said(
            why=f"step {action.resume_from} is not known clean: {verdict.why if verdict else 'it is not there'}"
        )
    return None


PIPELINE: tuple[tuple[str, Guard], ...] = (
    ("paused", _paused),
    ("monitor-only", _monitor_only),
    ("ownership", _ownership),
    ("clean-lineage", _known_clean),
    ("budget", _budget),
    ("rate", _rate),
)


def harmless(action: AnyAction) -> bool:
    """Actions that are done whatever becomes of the others of their trigger."""
    return isinstance(action, JudgeCheckpoint | Page)
