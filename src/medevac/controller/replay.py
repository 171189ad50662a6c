"""What a log would be decided to today: the same decisions byte for byte, or where two policies part. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from medevac.controller.step import advance, paired, refold
from medevac.core.decision import Decision
from medevac.core.policy import Policy
from medevac.core.view import View
from medevac.ports.store import DecisionRecord, EventRecord, Record

PolicyOf: TypeAlias = Callable[[str], Policy]
"""The policy of a digest. Raises what its caller knows how to tell a user."""

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Decision).decode


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What two deciders said to one event; None: nothing."""

    record: EventRecord
    one: Decision | None
    other: Decision | None

    def same(self) -> bool:
        """The same bytes."""
        return _bytes(self.one) == _bytes(self.other)

    def same_but_policy(self) -> bool:
        """The same, the digest of the policy that each names apart."""
        return _bytes(self.one, digest=False) == _bytes(self.other, digest=False)


def _bytes(decision: Decision | None, *, digest: bool = True) -> bytes:
    """As the log holds it: through JSON once, where a whole number that may be a fraction becomes one."""
    if decision is None:
        return b""
    return encode(decode(encode(decision if digest else replace(decision, policy=""))))


def digests(records: Iterable[Record]) -> tuple[str, ...]:
    """The policies that the recorded decisions name, in order."""
    named = [record.decision.policy for record in records if isinstance(record, DecisionRecord)]
    return tuple(dict.fromkeys(named))


def recompute(records: Sequence[Record], policy_of: PolicyOf) -> list[Answer]:
    """Each event with the recorded decision and the one that the same policy gives now.

    The policy in force at an event is that of its recorded decision, else of the one before. What was never decided
    (the log ends with events behind its last decision) is not compared: its loop may have stood still there.
    """
    pairs = list(paired(records))
    last = max((record.seq for record, recorded in pairs if recorded is not None), default=0)
    named = digests(records)
    if not named:
        return []
    policy = policy_of(named[0])
    view = View.under(policy)
    answers: list[Answer] = []
    for record, recorded in pairs:
        if record.seq > last:
            break
        if recorded is not None and recorded.policy != policy.digest:
            policy = policy_of(recorded.policy)
            view = _taken_over([answer.record for answer in answers], records, policy)
        view, decision = advance(view, record, policy)
        answers.append(Answer(record=record, one=recorded, other=None if decision.empty() else decision))
    return answers


def _taken_over(events: Sequence[EventRecord], records: Sequence[Record], policy: Policy) -> View:
    """The view of a loop that begins here with another policy: from what was recorded, as it does live."""
    seen = {record.seq for record in events}
    earlier = [r for r in records if (r.seq if isinstance(r, EventRecord) else r.decision.cause) in seen]
    view = View.under(policy)
    for after, _, _ in refold(view, earlier):
        view = after
    return view


def compare(records: Sequence[Record], policy: Policy) -> list[Answer]:
    """Each event with the recorded decision and the one that `policy` gives on the same history, left to itself.

    Behind the first difference the world would have gone on otherwise: what was recorded there answers to what was
    done, not to what this policy would have done.
    """
    view, answers = View.under(policy), []
    for record, recorded in paired(records):
        view, decision = advance(view, record, policy)
        answers.append(Answer(record=record, one=recorded, other=None if decision.empty() else decision))
    return answers


def differences(one: Decision | None, other: Decision | None) -> list[tuple[str, str, str]]:
    """The fields in which two decisions part, as (path, one, other); the deepest path that says it."""
    return list(_differences("", _plain(one), _plain(other)))


def _plain(decision: Decision | None) -> object:
    return None if decision is None else msgspec.json.decode(encode(decode(encode(decision))))


def _differences(path: str, one: object, other: object) -> Iterable[tuple[str, str, str]]:
    if one == other:
        return
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from _differences(f"{path}.{key}" if path else str(key), one.get(key), other.get(key))
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _differences(f"{path}[{index}]", left, right)
    else:
        yield path or "decision", _short(one), _short(other)


def _short(value: object) -> str:
    return "nothing" if value is None else encode(value).decode()
