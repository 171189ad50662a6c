"""The one configuration file of a service: `medevac.toml` (docs/slurm.md). `medevac config init` writes one."""

from __future__ import annotations

import os
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec

from medevac.adapters.attribution import Service, check
from medevac.adapters.schedulers.slurm import SlurmSettings
from medevac.adapters.topology import load_topology
from medevac.controller.settings import Settings, state_folder
from medevac.core.policy import Policy
from medevac.ports.errors import ConfigError

VARIABLE = "MEDEVAC_CONFIG"
SYSTEM = Path("/etc/medevac/medevac.toml")


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: an unknown key is refused."""


class Notify(Section, frozen=True, kw_only=True):
    """`command` is an argv that gets each page's text on stdin; none: pages stand in the log and in pages.jsonl."""

    command: tuple[str, ...] = ()
    timeout_s: float = 30.0


class WatchdogConfig(Section, frozen=True, kw_only=True):
    """A hold of ours that is older than `limit_s`, or whose controller is gone, is released; seconds."""

    limit_s: float = 120.0
    poll_s: float = 2.0


class Config(Section, frozen=True, kw_only=True):
    """All of it. `kernel_log` and `node_folder` (a node's GPU counters and sensors as files) are paths with `{node}` in
    them; faults older than `look_back_s` before the service's very first start are history and not acted upon. Empty
    texts mean the default.
    """

    scheduler: Literal["slurm"] = "slurm"
    mode: Literal["act", "monitor"] = "monitor"
    policy: str = "standard"
    state_dir: str = ""
    kernel_log: str = ""
    node_folder: str = ""
    look_back_s: float = 600.0
    notify: Notify = Notify()
    watchdog: WatchdogConfig = WatchdogConfig()
    attribution: Service = Service()
    slurm: SlurmSettings = SlurmSettings()

    def state(self, given: Path | None = None) -> Path:
        """The state folder: the command line's, the file's, else the usual one."""
        return state_folder(given or (Path(self.state_dir) if self.state_dir else None))

    def settings(self, base: Path) -> Settings:
        """The policy as a controller takes it; a file is named from the folder of the configuration.

        Raises `ConfigError` naming the file.
        """
        text = ""
        if self.policy.endswith(".toml") or "/" in self.policy:
            text = _read(base / self.policy)
        return Settings(policy=self.policy, policy_text=text, mode=self.mode)

    def load_policy(self, base: Path) -> Policy:
        """Raises `ConfigError`, `CatalogError`."""
        return self.settings(base).load()


def config_path(given: Path | None = None) -> Path:
    """`--config`, else MEDEVAC_CONFIG, else /etc/medevac/medevac.toml."""
    return given or Path(os.environ.get(VARIABLE) or SYSTEM)


def load_config(path: Path) -> Config:
    """Read and check a configuration file. Raises `ConfigError` naming file and key."""
    text = _read(path)
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(str(path), f"is not TOML: {problem}") from problem
    try:
        config = msgspec.convert(tables, Config)
    except msgspec.ValidationError as problem:
        why, _, where = str(problem).partition(" - at `$")
        key = where.rstrip("`").replace("[...]", "").lstrip(".")
        raise ConfigError(f"{path}: {key}" if key else str(path), _plain(why)) from problem
    _check(path, config)
    return config


def check_config(path: Path) -> tuple[Config, Policy]:
    """The file and all that it names: policy and topology. Raises `ConfigError`, `CatalogError`."""
    config = load_config(path)
    policy = config.load_policy(path.parent)
    if config.slurm.topology:
        load_topology(Path(config.slurm.topology))
    return config, policy


def template(scheduler: Literal["slurm"]) -> str:
    """The commented file that `medevac config init` writes."""
    return (files("medevac.controller") / "templates" / f"{scheduler}.toml").read_text(encoding="utf-8")


def _plain(why: str) -> str:
    """`Object contains unknown field `x`` in a user's words."""
    if why.startswith("Object contains unknown field "):
        return f"unknown key {why.rpartition(' ')[2].strip('`')!r}: see `medevac config init` for those there are"
    return why


def _check(path: Path, config: Config) -> None:
    for key, example in (("kernel_log", "/logs/{node}/kern.log"), ("node_folder", "/shared/nodes/{node}")):
        if (value := getattr(config, key)) and "{node}" not in value:
            raise ConfigError(f"{path}: {key}", f"must have {{node}} in it, as in {example}")
    times = {
        "watchdog.limit_s": config.watchdog.limit_s,
        "watchdog.poll_s": config.watchdog.poll_s,
        "notify.timeout_s": config.notify.timeout_s,
        "slurm.poll_s": config.slurm.poll_s,
        "slurm.deadline_s": config.slurm.deadline_s,
        "slurm.look_around_s": config.slurm.look_around_s,
    }
    for key, value in times.items():
        if value <= 0:
            raise ConfigError(f"{path}: {key}", f"{value:g} s must be over 0")
    if not 0 < config.slurm.restricted_weight < 2**32 - 2:
        raise ConfigError(f"{path}: slurm.restricted_weight", "must be over 0 and fit into 32 bits")
    check(config.attribution)
    for key in ("topology", "pointers", "restd"):
        value = getattr(config.slurm, key)
        if value and not Path(value).is_absolute():
            raise ConfigError(f"{path}: slurm.{key}", f"{value}: must be an absolute path")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as problem:
        raise ConfigError(str(path), "is not there; `medevac config init` writes one, --config names one") from problem
    except (OSError, UnicodeDecodeError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else "is not UTF-8"
        raise ConfigError(str(path), f"cannot be read: {why}") from problem
