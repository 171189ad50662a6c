"""`medevac controller`: the service beside a scheduler."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

from medevac.cli.services import log_to_stderr
from medevac.controller.config import config_path, load_config
from medevac.controller.service import serve


def controller(*, scheduler: Literal["slurm"], config: Path | None = None, state_dir: Path | None = None) -> int:  # noqa: ARG001 - named on purpose: there will be others
    """Look after the jobs and nodes of a cluster, until SIGTERM.

    It decides and records; it acts where the configuration says mode = "act". Ends with 75 where another controller
    took over.

    Args:
        scheduler: What runs the jobs.
        config: The configuration (else MEDEVAC_CONFIG, else /etc/medevac/medevac.toml).
        state_dir: The state folder (else the configuration's).
    """
    path = config_path(config)
    found = load_config(path)
    log_to_stderr()
    return asyncio.run(serve(found.state(state_dir), found, path.parent))
