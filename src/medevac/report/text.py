"""A story in the terminal."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from medevac.core.node_lifecycle import OUT
from medevac.report.model import IncidentTold, Recovery, Story
from medevac.report.words import clock, count, date, listed, span

GOOD = {"undisturbed", "recovered"}
VERDICT = {"clean": "green", "suspect": "yellow", "condemned": "red"}
SEVERITY = {"info": "cyan", "warning": "yellow", "critical": "red"}
KIND = {
    "environment": ("~", "yellow"),
    "fault": ("!", "red"),
    "detection": ("?", "cyan"),
    "decision": ("=", "bold"),
    "done": ("+", "green"),
    "refused": ("x", "red"),
    "held": ("|", "yellow"),
    "ended": (".", "dim"),
    "start": (">", "blue"),
    "first-step": (">", "blue"),
    "proof": ("*", "bold green"),
    "order": ("@", "magenta"),
    "outcome": ("#", "bold"),
}
MOST_LINES = 60


def render_text(story: Story, console: Console) -> None:
    """Print the story: the headline first, then the more exact the further down."""
    console.print(_head(story))
    for title, body in (
        ("From fault to progress", _recoveries(story)),
        ("Incidents", _incidents(story)),
        ("Timeline", _timeline(story)),
        ("Attempts", _attempts(story)),
        ("Checkpoints", _checkpoints(story)),
        ("Held back by guards", _held(story)),
        ("Out of service", _devices(story)),
    ):
        if body is not None:
            console.print()
            console.print(Text(title, style="bold underline"))
            console.print(Padding(body, (0, 0, 0, 2)))


def _head(story: Story) -> Panel:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    told = story.summary
    for label, text in (
        ("What happened", told.happened),
        ("Who is to blame", told.blame),
        ("What was done", told.done),
        ("What it cost", told.cost),
    ):
        table.add_row(label, Text(text))
    colour = "green" if story.outcome in GOOD else "red" if story.outcome == "gave-up" else "yellow"
    when = f"{date(story.start)}, {span(story.end - story.start)}"
    return Panel(Group(Text(story.headline, style=f"bold {colour}"), Text(), table), subtitle=when, border_style=colour)


def _recoveries(story: Story) -> RenderableType | None:
    if not story.recoveries:
        return None
    return Group(*(line for recovery in story.recoveries for line in _recovery(recovery)))


def _recovery(recovery: Recovery) -> list[Text]:
    title = Text.assemble((f"{recovery.number}. ", "bold"), recovery.fault, (f"  {recovery.decision}", "dim"))
    marks = Text("   fault ", style="red")
    for name, seconds in recovery.spans():
        marks.append(f"--{span(seconds)}--> ", style="dim").append(f"{name} ", style="green")
    if recovery.proof_at is None:
        marks.append("(no progress was proved)", style="yellow")
    else:
        marks.append(f"= {span(recovery.proof_at - recovery.fault_at)}", style="bold")
    origin = "nothing" if recovery.resumed is None else f"step {recovery.resumed}"
    lost = f"   step {recovery.reached} was reached, {origin} was loaded: {count(recovery.lost_steps, 'step')} lost"
    return [title, marks] if recovery.to_attempt == recovery.from_attempt else [title, marks, Text(lost)]


def _incidents(story: Story) -> RenderableType | None:
    return Group(*(line for incident in story.incidents for line in _incident(incident))) if story.incidents else None


def _incident(incident: IncidentTold) -> list[Text]:
    aside = "" if incident.touched else "  (the job did not use it)"
    lines = [
        Text.assemble(
            (f"{incident.id} ", "bold"),
            (incident.severity, SEVERITY[incident.severity]),
            f"  root: {incident.root}",
            (f"{'  closed' if incident.closed else ''}{aside}", "dim"),
        )
    ]
    if incident.victims:
        lines.append(Text(f"   also hit: {listed(incident.victims)}"))
    if incident.probable_cause:
        lines.append(Text(f"   probable cause: {incident.probable_cause} ({incident.why})", style="yellow"))
    for finding in incident.findings:
        lines.append(Text(f"   {clock(finding.at)}  {finding.label}: {finding.meaning} [{finding.rule}]"))
        lines += [Text(f"                 {clause}", style="dim") for clause in finding.clauses]
    return lines


def _timeline(story: Story) -> RenderableType | None:
    moments = story.timeline
    if not moments:
        return None
    table = Table.grid(padding=(0, 1))
    for style in ("dim", "dim", "", "", "dim"):
        table.add_column(style=style, no_wrap=style == "dim")
    for moment in moments[:MOST_LINES]:
        mark, style = KIND[moment.kind]
        after = f"+{span(moment.after)}" if moment.after is not None and moment.after >= 0 else ""
        table.add_row(clock(moment.at), after, Text(mark, style), Text(moment.text, style), moment.decision)
    left = len(moments) - MOST_LINES
    return Group(table, Text(f"... {left} more; the HTML page has all", style="dim")) if left > 0 else table


def _attempts(story: Story) -> RenderableType | None:
    if not story.attempts:
        return None
    table = Table("attempt", "started", "loaded", "ranks", "reached", "how it ended", "why", box=None, pad_edge=False)
    for one in story.attempts:
        step = one.loaded if one.loaded is not None else one.told
        table.add_row(
            str(one.number),
            clock(one.started) if one.started else "-",
            "-" if step is None else f"step {step}",
            f"{len(one.ranks)} on {', '.join(one.nodes)}" if one.ranks else "-",
            "-" if one.reached is None else f"step {one.reached}",
            one.how,
            Text("; ".join(filter(None, [one.why, one.diagnosis]))),
        )
    return table


def _checkpoints(story: Story) -> RenderableType | None:
    if not story.checkpoints:
        return None
    table = Table("step", "attempt", "sealed", "verdict", "why", box=None, pad_edge=False)
    for one in story.checkpoints:
        used = f"loaded by attempt {listed(map(str, one.used))}" if one.used else ""
        again = "saved again later" if one.replaced else ""
        table.add_row(
            str(one.step),
            str(one.attempt),
            clock(one.sealed_at) if one.sealed_at else "-",
            Text(one.state, VERDICT[one.state]),
            Text("; ".join(filter(None, [one.why, used, again]))),
        )
    return table


def _held(story: Story) -> RenderableType | None:
    if not story.held:
        return None
    lines = []
    for held in story.held:
        later = f"; done {span(held.done_at - held.at)} later" if held.done_at is not None else ""
        lines.append(Text(f"{clock(held.at)}  {held.guard}: {held.what} ({held.why}{later})"))
    return Group(*lines)


def _devices(story: Story) -> RenderableType | None:
    out = [device for device in story.devices if device.state in OUT]
    if not out:
        return None
    table = Table("GPU", "rack", "state", "why", "UUID", box=None, pad_edge=False)
    for one in out:
        table.add_row(f"{one.node} GPU {one.index}", one.rack, one.state, Text(one.why), Text(one.uuid, "dim"))
    return table
