"""`medevac replay LOG`: the same decisions from the recorded events, or where another policy would have parted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from medevac.adapters.store.jsonl import load
from medevac.catalog.policy import SHIPPED, load_policy
from medevac.catalog.schema import CatalogError
from medevac.cli.exits import Exit
from medevac.cli.output import CommandError, moment, print_json
from medevac.cli.policy import named
from medevac.controller.replay import Answer, compare, differences, digests, recompute
from medevac.controller.settings import Settings
from medevac.core.policy import Policy
from medevac.ports.store import Record

MOST_FIELDS = 8
MODES = ("act", "monitor")


def replay(
    log: Path,
    /,
    *,
    policy: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> Exit:
    """Compute again what was decided, and compare byte for byte; with --policy: with another policy's decisions.

    Ends with 0 where all is the same, 1 where something differs.

    Parameters
    ----------
    log
        A state folder, its medevac.db, or a log as JSON lines.
    policy
        A policy's name (standard, local, demo) or a TOML file: show in what it would have decided otherwise.
    json
        Print one JSON object.
    """
    records = load(log)
    known = dict(_known(log))
    if policy is None:
        answers = recompute(records, lambda digest: _recorded(log, digest, known))
        apart = [answer for answer in answers if not answer.same()]
    else:
        answers = compare(records, _other(policy, records, known))
        apart = [answer for answer in answers if not answer.same_but_policy()]
    print_json(as_json(answers, apart)) if json else _print(answers, apart, policy)
    return Exit.FOUND if apart else Exit.DONE


def as_json(answers: list[Answer], apart: list[Answer]) -> dict[str, Any]:
    """`events`, `decisions` (recorded), `same`, and `differences`: seq, event, recorded, recomputed."""
    return {
        "events": len(answers),
        "decisions": sum(answer.one is not None for answer in answers),
        "same": not apart,
        "differences": [
            {"seq": a.record.seq, "event": a.record.event, "recorded": a.one, "recomputed": a.other} for a in apart
        ],
    }


def _print(answers: list[Answer], apart: list[Answer], policy: str | None) -> None:
    decided = sum(answer.one is not None for answer in answers)
    told = f"{len(answers):,} events, {decided:,} recorded decisions"
    if not apart:
        print(f"{told}: {'the same, byte for byte' if policy is None else f'{policy} decides the same'}")
        return
    print(f"{told}: {len(apart)} differ" + (", the first:" if policy is None else f" under {policy}:"))
    for answer in apart[: 1 if policy is None else None]:
        print("\n".join(_told(answer, policy)))


def _told(answer: Answer, policy: str | None) -> Iterator[str]:
    record = answer.record
    yield f"event {record.seq} at {moment(record.event.at)}: {type(record.event).__name__}"
    if policy is None:
        for path, one, other in differences(answer.one, answer.other)[:MOST_FIELDS]:
            yield f"  {path}: recorded {_cut(one)}, now {_cut(other)}"
        return
    for label, decision in (("recorded", answer.one), (policy, answer.other)):
        said = "nothing" if decision is None else decision.reason or "no change of state"
        yield f"  {label}: {said}"
        for action in decision.actions if decision else ():
            yield f"      {type(action).__name__} {action.id}"


def _cut(text: str) -> str:
    return text if len(text) <= 160 else f"{text[:160]}..."


def _known(log: Path) -> Iterator[tuple[str, Policy]]:
    """The policies that a log may have been decided by: the shipped ones, and those of the runs beside it."""
    for name in SHIPPED:
        for mode in MODES:
            policy = load_policy(name, "monitor" if mode == "monitor" else "act")
            yield policy.digest, policy
    folder = log if log.is_dir() else log.parent
    for path in sorted([*folder.glob("jobs/*/run.json"), *folder.glob("controller.json")]):
        try:
            policy = msgspec.json.decode(path.read_bytes(), type=Settings).load()
        except (OSError, msgspec.DecodeError, CatalogError):
            continue
        yield policy.digest, policy


def _recorded(log: Path, digest: str, known: dict[str, Policy]) -> Policy:
    if digest not in known:
        raise CommandError(
            f"{log}: was decided by a policy with the digest {digest}, which is none of {', '.join(SHIPPED)} as they "
            f"are now, nor of the runs beside it; compare with a policy of your own: --policy FILE"
        )
    return known[digest]


def _other(policy: str, records: list[Record], known: dict[str, Policy]) -> Policy:
    """The policy to compare with, in the mode of the log."""
    before = [known[digest] for digest in digests(records) if digest in known]
    return named(policy, before[-1].mode if before else "act")
