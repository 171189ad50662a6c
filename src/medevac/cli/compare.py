"""`medevac compare`: what monitor mode recommended beside what operators did."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from medevac.adapters.schedulers.slurm import Commands
from medevac.adapters.schedulers.slurm.history import deeds
from medevac.cli.audit import moment_of
from medevac.cli.exits import Exit
from medevac.cli.history import read
from medevac.cli.output import moment, print_json, print_rows
from medevac.controller.advice import advised
from medevac.controller.config import Config, config_path, load_config
from medevac.core.compare import Advice, Compared, Deed, Summary
from medevac.core.compare import compare as beside

COLUMNS = ("", "what", "Medevac", "why", "operators", "who", "earlier by")
BEFORE_S = 3600.0
STYLES = {"agreed": "green", "differed": "yellow", "missed": "red", "open": "dim"}


def compare(
    *,
    since: str = "30d",
    within: str = "24h",
    state_dir: Path | None = None,
    config: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> Exit:
    """Set what monitor mode recommended beside what operators did, by Slurm's accounting: agreed, differed, missed, and
    how much earlier. Ends with 3 where Slurm keeps no accounting.

    Parameters
    ----------
    since
        From then on: 2026-03-01T10:00, unix seconds, or so long ago (90s, 15m, 6h, 30d).
    within
        For how long after a recommendation an operator's doing still answers it.
    state_dir
        The state folder, or the file of a store (else that of the configuration).
    config
        The configuration (else MEDEVAC_CONFIG, else /etc/medevac/medevac.toml).
    json
        Print one JSON object.
    """
    start, now = moment_of(since), time.time()
    within_s = now - moment_of(within, "--within")
    path = config_path(config)
    found = _compared(load_config(path), path.parent, state_dir, start, now, within_s)
    if json:
        print_json({"since": start, "until": now, "within_s": round(within_s), **msgspec.to_builtins(found)})
    else:
        _print(found, start)
    return Exit.DONE


def _compared(config: Config, base: Path, state_dir: Path | None, start: float, now: float, within_s: float) -> Summary:
    history = read(config.state(state_dir))
    view, said = advised(history.records, config.load_policy(base))
    site = config.slurm
    commands = Commands(mode="monitor", prefix=site.prefix, deadline_s=site.deadline_s)
    done = asyncio.run(deeds(commands, start - BEFORE_S))
    ours = [deed for deed in done if deed.subject in view.jobs or deed.subject in view.nodes]
    result = beside(
        [advice for advice in said if advice.at >= start], ours, now=now, within_s=within_s, before_s=BEFORE_S
    )
    rows = tuple(row for row in result.rows if row.advice or (row.deed and row.deed.at >= start))
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in result.counts}
    return msgspec.structs.replace(result, rows=rows, counts=counts)


def _print(found: Summary, start: float) -> None:
    told = ", ".join(f"{count} {verdict}" for verdict, count in found.counts.items())
    print(f"since {moment(start)}: {told}")
    if found.earlier_s:
        print(
            f"where both did the same, Medevac said it earlier by {_span(found.earlier_s['median'])} (median; "
            f"{_span(found.earlier_s['least'])} to {_span(found.earlier_s['most'])})"
        )
    if found.rows:
        print_rows(COLUMNS, [_row(row) for row in found.rows], STYLES)


def _row(row: Compared) -> tuple[str, ...]:
    why = row.advice.why if row.advice else row.deed.why if row.deed else ""
    who = row.deed.who if row.deed else ""
    earlier = "" if row.earlier_s is None else _span(row.earlier_s)
    return (row.verdict, row.subject, _said(row.advice), why, _said(row.deed), who, earlier)


def _said(one: Advice | Deed | None) -> str:
    return "nothing" if one is None else f"{one.what} {moment(one.at)}"


def _span(seconds: float) -> str:
    sign, left = ("-" if seconds < 0 else ""), abs(seconds)
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if left >= 2 * length:
            return f"{sign}{left / length:.1f} {unit}"
    return f"{sign}{left:.0f} s"
