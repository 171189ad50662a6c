"""`medevac watchdog`: lets go what the controller holds for too long."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from medevac.adapters.lease import RENEW_S
from medevac.adapters.schedulers.slurm import Commands
from medevac.adapters.schedulers.slurm.look import Look
from medevac.cli.services import log_to_stderr
from medevac.controller.config import Config, WatchdogConfig, config_path, load_config
from medevac.controller.settings import LEASE
from medevac.watchdog.watch import Watchdog

GRACE_S = RENEW_S + 1.0


def watchdog(
    *,
    config: Path | None = None,
    state_dir: Path | None = None,
    limit: float | None = None,
    once: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Release jobs that Medevac holds for longer than the limit, or whose controller is gone, until SIGTERM.

    Never a person's hold, nor one of Medevac's that waits for a person.

    Args:
        config: The configuration (else MEDEVAC_CONFIG, else /etc/medevac/medevac.toml).
        state_dir: The controller's state folder, where its lease is (else the configuration's).
        limit: Seconds that a hold may last (else the configuration's, 120).
        once: Look once, print the jobs that were let go, and end.
    """
    found = load_config(config_path(config))
    log_to_stderr()
    dog = _watchdog(found, found.state(state_dir) / LEASE, limit or found.watchdog.limit_s, 0.0 if once else GRACE_S)
    if once:
        for job in asyncio.run(dog.once()):
            print(job)
        return 0
    return asyncio.run(_until_told(dog, found.watchdog))


def _watchdog(config: Config, lease: Path, limit_s: float, grace_s: float) -> Watchdog:
    """In monitor mode Medevac makes no holds, and the watchdog only reads."""
    site = config.slurm
    commands = Commands(mode=config.mode, prefix=site.prefix, deadline_s=site.deadline_s)
    return Watchdog(Look(commands, site), commands.run, lease, limit_s, grace_s=grace_s)


async def _until_told(dog: Watchdog, times: WatchdogConfig) -> int:
    work = asyncio.create_task(dog.forever(times.poll_s))
    for told_to_end in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(told_to_end, work.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await work
    return 0
