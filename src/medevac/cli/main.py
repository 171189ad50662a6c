"""`medevac`: the table of commands. To add one: a module with a function, and a row here.

A command is imported when it is asked for. It returns an `Exit`; what a user can mend is raised as `CommandError` (or
a `ConfigError` or `CatalogError` of the parts below) and becomes one line and exit code 2, never a traceback; an input
that cannot be read or reached becomes exit code 3.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from medevac import __version__
from medevac.catalog.schema import CatalogError
from medevac.cli.exits import Exit
from medevac.cli.output import CommandError, say_error
from medevac.ports.errors import ConfigError, PortError, UnreadableError

if TYPE_CHECKING:
    from cyclopts import App

HELP = """Keeps distributed training running through GPU faults, and never trains on from corrupted state."""


class Command(NamedTuple):
    """A row of the table: the name typed, `module:function`, and its line in the help."""

    name: str
    target: str
    help: str


COMMANDS = (
    Command("decode", "medevac.cli.decode:decode", "Say what the GPU faults in a log mean, and what to do."),
    Command("xid", "medevac.cli.xid:xid", "Explain an Xid code."),
    Command("sxid", "medevac.cli.xid:sxid", "Explain an NVSwitch SXid code."),
    Command("diagnose", "medevac.cli.diagnose:diagnose", "Say why a job died, hung or slowed down."),
    Command("check-log", "medevac.cli.check_log:check_log", "Say whether a job's progress can be followed by its log."),
    Command("run", "medevac.cli.run:run", "Keep a command running through GPU faults."),
    Command("return", "medevac.cli.orders:give_back", "Give a GPU or node back to service."),
    Command("release", "medevac.cli.orders:release", "Let a job that waits for a person go on."),
    Command("pause", "medevac.cli.orders:pause", "Touch nothing until `medevac resume`."),
    Command("resume", "medevac.cli.orders:resume", "End a pause."),
    Command("stop", "medevac.cli.orders:stop", "Stop a job."),
    Command("status", "medevac.cli.status:status", "Say how things stand: jobs, devices, incidents, what waits."),
    Command("explain", "medevac.cli.explain:explain", "Say why: of a decision, incident, action, GPU or job."),
    Command("audit", "medevac.cli.audit:audit", "List every decision and action with how it came out."),
    Command("incident", "medevac.cli.incident:app", "List incidents, or show one."),
    Command("checkpoints", "medevac.cli.checkpoints:checkpoints", "List checkpoints: which are clean, and why."),
    Command("replay", "medevac.cli.replay:replay", "Compute decisions again, or compare two policies, on a log."),
    Command("policy", "medevac.cli.policy:app", "Check a policy, or show one with all that it extends."),
    Command("topology", "medevac.cli.policy:topology", "Check a topology file."),
    Command(
        "trace",
        "medevac.cli.trace:trace",
        "Say who holds a stalled collective up (NCCL flight recorders), or what a GPU has touched.",
    ),
    Command("controller", "medevac.cli.controller:controller", "Look after a cluster's jobs and nodes, as a service."),
    Command("watchdog", "medevac.cli.watchdog:watchdog", "Release jobs that Medevac holds for too long."),
    Command("node-check", "medevac.cli.node_check:node_check", "Say whether this node may take work (Prolog, Epilog)."),
    Command("slurm", "medevac.cli.slurm:app", "Check how a Slurm job is looked after."),
    Command("compare", "medevac.cli.compare:compare", "Set monitor mode's recommendations beside what operators did."),
    Command("drill", "medevac.cli.drill:app", "Inject a fault on the playground."),
    Command("config", "medevac.cli.config:app", "Write or check the configuration of the services."),
    Command("completion", "medevac.cli.completion:completion", "Print the completion script of a shell."),
)


def build(only: str | None = None) -> App:
    """The cyclopts app with every command of the table, or with one of them."""
    from cyclopts import App

    app = App(name="medevac", help=HELP, version=__version__, help_format="plaintext", result_action="return_value")
    for command in COMMANDS:
        if only in {None, command.name}:
            app.command(command.target, name=command.name, help=command.help)
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; gives the exit code."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    try:
        code = run(tokens)
        sys.stdout.flush()
    except BrokenPipeError:  # `medevac decode ... | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except KeyboardInterrupt:
        return 130
    except (PortError, UnreadableError) as error:
        say_error(str(error))
        return Exit.UNREADABLE
    except (CommandError, ConfigError, CatalogError) as error:
        say_error(str(error))
        return Exit.USAGE
    return code


def run(tokens: list[str]) -> int:
    """Parse and run; a command that returns nothing was done."""
    from cyclopts import CycloptsError

    name = tokens[0] if tokens and not tokens[0].startswith("-") else None
    names = [command.name for command in COMMANDS]
    if name is not None and name not in names:
        import difflib

        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "see: medevac --help"
        raise CommandError(f"unknown command {name!r}: {hint}")
    try:
        result = build(name)(tokens, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise CommandError(f"{error} (see: medevac {f'{name} ' if name else ''}--help)") from error
    return result if isinstance(result, int) else Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
