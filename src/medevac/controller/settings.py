"""How a job is run: `<state>/jobs/<job>/run.json`, so that whoever takes over runs it the same way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from medevac.catalog.policy import load_policy
from medevac.core.policy import Policy
from medevac.ports.errors import ConfigError

STORE = "medevac.db"
LEASE = "controller.lease"
LOG = "controller.log"
ACTING = "controller.json"


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`policy` is a shipped policy's name, or the file that `policy_text` was read from. Paths are absolute."""

    policy: str = "local"
    policy_text: str = ""
    mode: Literal["act", "monitor"] = "act"
    cluster: str = ""
    html: str = ""

    def load(self) -> Policy:
        """The policy. Raises `CatalogError` naming file and key."""
        read = (lambda _: self.policy_text) if self.policy_text else None
        return load_policy(self.policy, self.mode, read)


class Run:
    """The files of one job's run, beside those of the scheduler."""

    def __init__(self, state: Path, job: str) -> None:
        self.state = state
        self.job = job
        self.folder = state / "jobs" / job

    @property
    def supervisor(self) -> Path:
        """The lease of the parent process: one at a time."""
        return self.folder / "supervisor.lease"

    @property
    def known(self) -> bool:
        """Whether the job was submitted here."""
        return (self.folder / "spec.json").exists()

    def save(self, settings: Settings) -> None:
        """Raises `ConfigError` naming the file."""
        _write(self.folder / "run.json", settings)

    def settings(self) -> Settings:
        """As saved; the defaults for a job that was not started by `medevac run`. Raises `ConfigError`."""
        path = self.folder / "run.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=Settings)
        except FileNotFoundError:
            return Settings()
        except (OSError, msgspec.DecodeError) as problem:
            raise ConfigError(str(path), f"cannot be read: {problem}; remove it to run with the defaults") from problem


def act_by(state: Path, settings: Settings) -> None:
    """Leave word of what the controller of this state folder acts by. Raises `ConfigError`."""
    _write(state / ACTING, settings)


def acting_settings(state: Path) -> Settings | None:
    """What the present or last controller acts by; None where that is not known."""
    try:
        return msgspec.json.decode((state / ACTING).read_bytes(), type=Settings)
    except (OSError, msgspec.DecodeError):
        return None


def _write(path: Path, settings: Settings) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        staged = path.with_name(f".{path.name}.{os.getpid()}")
        staged.write_bytes(msgspec.json.encode(settings) + b"\n")
        staged.replace(path)
    except OSError as problem:
        raise ConfigError(
            str(path), f"cannot be written: {problem.strerror}; name another folder with --state-dir"
        ) from problem


def state_folder(given: Path | None = None) -> Path:
    """`--state-dir`, else MEDEVAC_STATE_DIR, else /var/lib/medevac (root), else $XDG_STATE_HOME/medevac."""
    if given is not None:
        return given.absolute()
    if named := os.environ.get("MEDEVAC_STATE_DIR"):
        return Path(named).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/medevac")
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111 - no home, no error
    return Path(base).absolute() / "medevac"
