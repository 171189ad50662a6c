"""Incidents as a table on the terminal, and progress while a log is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from medevac.catalog.load import Catalog
from medevac.catalog.schema import NOT_PUBLISHED
from medevac.cli.output import SEVERITY_STYLES, console, errors, moment, on_terminal, print_rows, table
from medevac.decode.incidents import Incident
from medevac.decode.wording import blame_words, fact_words, root_words

WORTH_A_BAR = 16_000_000
"""Bytes: a smaller log is read before a bar could be seen."""
OTHERS_SHOWN = 4


COLUMNS = ("when (UTC)", "severity", "node", "what", "blame", "job dies", "do now", "do after")


DIES = {True: "yes", False: "no", None: "depends"}


def show_incidents(incidents: Iterable[Incident], catalog: Catalog) -> None:
    """One row an incident: three columns on a terminal, all of COLUMNS between tabs in a pipe."""
    if not on_terminal():
        print_rows(COLUMNS, (_row(incident, catalog) for incident in incidents))
        return
    from rich.text import Text

    made = table("when (UTC)", "what", "blame, and what to do")
    made.columns[0].no_wrap = True
    made.show_lines = True
    for incident in incidents:
        when, severity, node, what, blame, dies, now, after = _row(incident, catalog)
        style = SEVERITY_STYLES[severity]
        made.add_row(
            Text.assemble(when, "\n", (severity, style)),
            Text(f"{what}\non {node}" if incident.nodes else what),
            Text(f"{blame}\nnow: {now}\nafter: {after}\nthe job dies: {dies}"),
        )
    console().print(made)


def _row(incident: Incident, catalog: Catalog) -> tuple[str, ...]:
    return (
        moment(incident.first),
        incident.severity,
        nodes_words(incident),
        what_words(incident),
        blame_words(incident.blame),
        DIES[incident.kills_job],
        action_words(incident.action_now, catalog),
        action_words(incident.action_after, catalog),
    )


def nodes_words(incident: Incident) -> str:
    """The node of the root, and how many more."""
    if not incident.nodes:
        return "-"
    first = (incident.root and incident.root.node) or incident.nodes[0]
    return first if len(incident.nodes) == 1 else f"{first} and {len(incident.nodes) - 1} more"


def what_words(incident: Incident) -> str:
    """`Xid 79 on 0000:3b:00.0: The GPU no longer answers on PCIe; with it: 8 Xid 45`."""
    others: dict[str, int] = {}
    for fact in incident.facts:
        name = fact_words(fact)
        others[name] = others.get(name, 0) + fact.count
    root = fact_words(incident.root or incident.facts[0])
    count = others.pop(root)
    words = f"{root_words(incident)}: {incident.meaning}" + (f" ({count} lines)" if count > 1 else "")
    if incident.repeats:
        words += f"; seen here {incident.repeats} time{'s' * (incident.repeats > 1)} before"
    if others:
        shown = [f"{number} {name}" for name, number in list(others.items())[:OTHERS_SHOWN]]
        more = len(others) - len(shown)
        words += f"; with it: {', '.join(shown)}" + (f" and {more} more kind{'s' * (more > 1)}" if more else "")
    return words


def action_words(name: str, catalog: Catalog) -> str:
    """What a bucket asks for, in words."""
    bucket = catalog.buckets.get(name)
    return name if name == NOT_PUBLISHED or bucket is None else bucket.meaning


def show_summary(incidents: int, events: int) -> None:
    """One line on a terminal, nothing in a pipe."""
    if not on_terminal():
        return
    text = f"{incidents} incident{'s' * (incidents != 1)} from {events} event{'s' * (events != 1)}."
    hint = " More: medevac decode --json, medevac xid CODE" if incidents else ""
    console().print(text + hint, style="quiet")


@contextmanager
def progress_bar(size: int) -> Iterator[Callable[[int], None] | None]:
    """Bytes, rate and time left on stderr where that is a terminal; gives what takes the bytes done, or None."""
    if not on_terminal(stderr=True) or 0 < size < WORTH_A_BAR:
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors(), transient=True) as bar:
        task = bar.add_task("", total=size or None)
        yield lambda done: bar.update(task, advance=done)
