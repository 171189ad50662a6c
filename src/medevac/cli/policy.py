"""`medevac policy check|show` and `medevac topology check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from medevac.adapters.topology import load_topology
from medevac.catalog.policy import SECTIONS, load_policy
from medevac.cli.exits import Exit
from medevac.cli.output import CommandError, print_json, print_rows
from medevac.core.policy import Policy, Rule
from medevac.report.words import count

app = App(name="policy", help="Check a policy, or show one with all that it extends.")
topology = App(name="topology", help="Check a topology file.")


def named(policy: str, mode: Literal["act", "monitor"] = "act") -> Policy:
    """The shipped policy of that name, or the one of that file. Raises `CommandError`, `CatalogError`."""
    if not policy.endswith(".toml") and "/" not in policy:
        return load_policy(policy, mode)
    try:
        text = Path(policy).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else "is not UTF-8"
        raise CommandError(f"{policy}: cannot be read: {why}") from problem
    return load_policy(policy, mode, lambda _: text)


@app.command
def check(policy: str, /, *, json: Annotated[bool, Parameter(negative="")] = False) -> Exit:
    """Check a policy: each key and number of it, its rules and what they name. Ends with 2 where something is wrong.

    Parameters
    ----------
    policy
        A TOML file, or the name of a policy that comes with Medevac.
    json
        Print one JSON object.
    """
    found = named(policy)
    if json:
        print_json({"policy": found.name, "digest": found.digest, "rules": len(found.rules), "ok": True})
    else:
        print(f"{policy}: policy {found.name}, {count(len(found.rules), 'rule')}, digest {found.digest}: all right")
    return Exit.DONE


@app.command
def show(policy: str, /, *, json: Annotated[bool, Parameter(negative="")] = False) -> Exit:
    """Show a policy whole, with what it extends filled in.

    Parameters
    ----------
    policy
        The name of a policy that comes with Medevac, or a TOML file.
    json
        Print one JSON object.
    """
    found = named(policy)
    told: dict[str, Any] = msgspec.to_builtins(found)
    if json:
        print_json(told)
        return Exit.DONE
    print(f"policy {found.name}, digest {found.digest}")
    for section in SECTIONS:
        print(f"\n[{section}]")
        for key, value in told[section].items():
            print(f"{key} = {msgspec.json.encode(value).decode()}")
    print(f"\n{count(len(found.rules), 'rule')}:")
    print_rows(("rule", "severity", "response", "when", "source"), [_row(rule) for rule in found.rules])
    return Exit.DONE


@topology.command(name="check")
def check_topology(file: Path, /, *, json: Annotated[bool, Parameter(negative="")] = False) -> Exit:
    """Check a topology file, and say what it describes. Ends with 2 where something is wrong.

    Parameters
    ----------
    file
        A topology.toml, or the folder that holds one.
    json
        Print one JSON object.
    """
    found = load_topology(file)
    gpus = sum(len(node.gpus) for node in found.nodes)
    if json:
        print_json({"nodes": found.nodes, "kernel_logs": {k: str(v) for k, v in found.kernel_logs.items()}})
        return Exit.DONE
    racks = len({node.rack for node in found.nodes if node.rack})
    print(f"{file}: {count(len(found.nodes), 'node')}, {count(racks, 'rack')}, {count(gpus, 'GPU')}: all right")
    logs = found.kernel_logs
    rows = [
        (n.name, n.rack or "-", n.feed or "-", n.nvlink_domain or "-", str(len(n.gpus)), str(logs.get(n.name, "-")))
        for n in found.nodes
    ]
    print_rows(("node", "rack", "feed", "NVLink domain", "GPUs", "kernel log"), rows)
    return Exit.DONE


def _row(rule: Rule) -> tuple[str, ...]:
    when = " and ".join(_predicate(msgspec.to_builtins(one)) for one in rule.when)
    return rule.id, rule.severity, rule.response, when, rule.source


def _predicate(told: dict[str, Any]) -> str:
    shown = {key: value for key, value in told.items() if key != "is" and value not in ((), [], {})}
    codes = shown.get("codes", ())
    if len(codes) > 6:
        shown["codes"] = [*codes[:6], "..."]
    return f"{told['is']}({', '.join(f'{key}={_value(value)}' for key, value in shown.items())})"


def _value(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
