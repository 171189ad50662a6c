"""The first lines of a story: what someone reads who reads nothing else."""

from __future__ import annotations

from medevac.core.node_lifecycle import OUT
from medevac.report.model import IncidentTold, Story, Summary
from medevac.report.words import count, listed, sentence, span


def headline(story: Story) -> str:
    """One sentence."""
    name = f"Job {story.job}"
    match story.outcome:
        case "undisturbed":
            beside = " Hardware that it did not use failed meanwhile." if _worst(story, touched=False) else ""
            within = f"finished; {count(len(story.in_place), 'fault')} handled in place, without a restart"
            return f"{name} {within if story.in_place else 'finished undisturbed'}.{beside}"
        case "recovered" | "unproven":
            return _survived(story)
        case "gave-up":
            return sentence(f"{name} was given up: {story.why or 'no restart would help'}")
        case "held":
            return f"{name} waits for a person: no checkpoint is known clean."
        case "watched":
            return f"{name} ended with code {story.code}; Medevac only watched."
        case "stopped":
            return f"{name} was stopped by a person."
        case "running":
            last = story.attempts[-1] if story.attempts else None
            where = f", at step {last.reached}" if last and last.reached is not None else ""
            return f"{name} is in attempt {last.number}{where}." if last else f"{name} has not started."


def _survived(story: Story) -> str:
    first, more = story.recoveries[0], len(story.recoveries) - 1
    incident = next((i for i in story.incidents if i.id == first.incident), None)
    what = f"the failure of {incident.root}" if incident else f"a fault ({first.fault})"
    also = f" and {count(more, 'more fault')}" if more else ""
    lost = f"{count(story.lost_steps, 'step')} computed twice"
    if story.outcome == "recovered":
        return f"Job {story.job} survived {what}{also}: progress again after {span(story.down_s)}, {lost}, finished."
    return f"Job {story.job} finished after {what}{also}, without proof of progress past its best earlier step."


def summary(story: Story) -> Summary:
    """A sentence or two for each of the four questions."""
    return Summary(happened=_happened(story), blame=_blame(story), done=_done(story), cost=_cost(story))


def _worst(story: Story, *, touched: bool) -> IncidentTold | None:
    found = [i for i in story.incidents if i.touched == touched and i.severity != "info"]
    return min(found, key=lambda i: (i.severity != "critical", i.start), default=None)


def _happened(story: Story) -> str:
    if not story.recoveries:
        unseen = _in_place(story) or "Nothing disturbed the job."
        if story.outcome == "watched":
            unseen = " ".join(filter(None, [sentence(story.why or "It ended"), _in_place(story)]))
        beside = _worst(story, touched=False)
        if beside:
            return f"{unseen} {sentence(f'{beside.root}, which it did not use, failed: {_main(beside)}')}"
        seen = _worst(story, touched=True)
        return f"{unseen} {sentence(f'{seen.root}: {_main(seen)}')}" if seen else unseen
    first = story.recoveries[0]
    told = f"At step {first.reached}: {first.fault}."
    bad = [attempt for attempt in story.attempts if attempt.bad]
    if bad and bad[0].bad:
        told += f" NaN or infinity was seen at step {bad[0].bad.step} of attempt {bad[0].number}."
    followed = count(len(story.recoveries) - 1, "more fault")
    told += f" {followed} followed." if len(story.recoveries) > 1 else ""
    return " ".join(filter(None, [told, _in_place(story)]))


def _in_place(story: Story) -> str:
    """What the job itself has done about faults; "" where there was none."""
    told = [f"step {one.step} was bad: {one.how}" for one in story.in_place]
    if len(told) > 3:
        told = [*told[:2], f"{len(told) - 2} more faults handled in place"]
    return " ".join(map(sentence, told))


def _main(incident: IncidentTold) -> str:
    return min(incident.findings, key=lambda f: (f.response != "hard", f.response != "soft", f.at)).meaning


def _blame(story: Story) -> str:
    incident = _worst(story, touched=True) or _worst(story, touched=False)
    if incident is None:
        told = "No hardware is blamed." if story.recoveries else "Nobody."
        said = next((attempt.diagnosis for attempt in reversed(story.attempts) if attempt.diagnosis), "")
        return f"{told} {sentence(f'the diagnosis: {said}')}" if said else told
    told = sentence(f"{incident.root}: {_main(incident)}")
    if incident.victims:
        told += f" In the same incident: {listed(incident.victims)}."
    if incident.probable_cause:
        told += f" Probable cause: {incident.probable_cause} ({incident.why})."
    return told


def _done(story: Story) -> str:
    out = [f"{d.node} GPU {d.index}" for d in story.devices if d.state in OUT]
    if story.outcome == "watched":
        would = listed(dict.fromkeys(held.what for held in story.held if not held.what.startswith("write down")))
        return sentence(f"nothing; it would have been: {would}" if would else "nothing")
    told = [f"taken out: {listed(out)}"] if out else []
    if story.in_place:
        told.append(f"by the job itself: {listed(dict.fromkeys(one.how for one in story.in_place))}")
    for recovery in story.recoveries:
        if recovery.to_attempt > recovery.from_attempt:
            attempt = next((a for a in story.attempts if a.number == recovery.to_attempt), None)
            origin = "from nothing" if recovery.resumed is None else f"from step {recovery.resumed}, known clean"
            ranks = f" on {count(len(attempt.ranks), 'rank')}" if attempt and attempt.ranks else ""
            tries = recovery.to_attempt - recovery.from_attempt
            told.append(f"restarted{f' {tries} times, last' if tries > 1 else ''}{ranks} {origin}")
    if len(told) > 4:
        told = [*told[:3], f"{len(told) - 3} more restarts"]
    if story.held:
        left = sum(held.done_at is None for held in story.held)
        told.append(f"{count(left, 'action')} held back" if left else f"{count(len(story.held), 'action')} delayed")
    return " ".join(map(sentence, told)) if told else "Nothing was needed."


def _cost(story: Story) -> str:
    if story.outcome == "watched":
        return "Not known: nothing was done about it." if story.held else "Nothing."
    if not story.recoveries:
        return "No restart; steps that were computed again in place are not counted." if story.in_place else "Nothing."
    told = [f"{count(story.lost_steps, 'step')} computed twice"]
    proven = all(recovery.proof_at is not None for recovery in story.recoveries)
    until = "from the fault to new progress" if proven else "without new progress"
    told.append(f"{span(story.down_s)} {until}")
    gone = sorted({c.step for c in story.checkpoints if c.state != "clean"})
    if gone:
        told.append(f"{count(len(gone), 'checkpoint')} not to be used (step {listed(map(str, gone))})")
    return sentence(", ".join(told))
