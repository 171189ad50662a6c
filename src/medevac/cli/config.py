"""`medevac config init|check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from medevac.cli.output import CommandError, print_json
from medevac.controller.config import check_config, config_path, template

app = App(name="config", help="Write or check the configuration of the services.")


@app.command
def init(*, scheduler: Literal["slurm"], output: Path | None = None) -> int:
    """Print a configuration with every key explained, or write it to a file that is not there yet.

    Parameters
    ----------
    scheduler
        What runs the jobs.
    output
        The file, as in: medevac config init --scheduler slurm --output /etc/medevac/medevac.toml
    """
    text = template(scheduler)
    if output is None:
        print(text, end="")
        return 0
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as problem:
        raise CommandError(f"--output {output}: is there already; name another file, or remove it") from problem
    except OSError as problem:
        raise CommandError(f"--output {output}: cannot be written: {problem.strerror}") from problem
    return 0


@app.command
def check(config: Path | None = None, /, *, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Check a configuration and what it names: each key, the policy, the topology. Ends with 2 where one is wrong.

    Parameters
    ----------
    config
        The file (else MEDEVAC_CONFIG, else /etc/medevac/medevac.toml).
    json
        Print one JSON object.
    """
    path = config_path(config)
    found, policy = check_config(path)
    said = {
        "config": str(path),
        "scheduler": found.scheduler,
        "mode": found.mode,
        "policy": policy.name,
        "digest": policy.digest,
        "state_dir": str(found.state()),
        "ok": True,
    }
    if json:
        print_json(said)
    else:
        print(f"{path}: {found.scheduler}, mode {found.mode}, policy {policy.name} ({policy.digest}): all right")
    return 0
