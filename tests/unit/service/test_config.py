"""The configuration file: what it takes, and how it says no."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from medevac.cli.main import main
from medevac.controller.config import Config, check_config, load_config, template
from medevac.ports.errors import ConfigError


def written(folder: Path, text: str) -> Path:
    path = folder / "medevac.toml"
    path.write_text(text)
    return path


def test_the_template_is_the_defaults(tmp_path: Path) -> None:
    config, policy = check_config(written(tmp_path, template("slurm")))
    assert config == Config()
    assert policy.mode == "monitor"


def test_every_key_of_the_template_is_one(tmp_path: Path) -> None:
    text = re.sub(r"^# (?=[a-z_]+ = |\[)", "", template("slurm"), flags=re.MULTILINE)
    config = load_config(written(tmp_path, text))
    assert config.kernel_log == "/var/log/nodes/{node}/kern.log"
    assert config.slurm.partitions["train"].max_restarts == 5
    assert config.slurm.poll_s == Config().slurm.poll_s
    assert config.watchdog == Config().watchdog


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("polls = 3", "medevac.toml: unknown key 'polls'"),
        ("[slurm]\npolls = 3", "medevac.toml: slurm: unknown key 'polls'"),
        ("[slurm.partitions.train]\nmax_restart = 2", "slurm.partitions: unknown key 'max_restart'"),
        ('[slurm]\npoll_s = "x"', "slurm.poll_s: Expected `float`, got `str`"),
        ('kernel_log = "/x"', "kernel_log: must have {node} in it"),
        ('node_folder = "/x"', "node_folder: must have {node} in it"),
        ("[slurm]\nrestricted_weight = 0", "slurm.restricted_weight: must be over 0"),
        ('[slurm]\nrestd = "rest.sock"', "slurm.restd: rest.sock: must be an absolute path"),
        ('mode = "watch"', "mode: Invalid enum value 'watch'"),
        ("[watchdog]\nlimit_s = 0", "watchdog.limit_s: 0 s must be over 0"),
        ('[slurm]\npointers = "here"', "slurm.pointers: here: must be an absolute path"),
        ("mode = ", "is not TOML"),
        ('policy = "mine.toml"', "mine.toml: is not there"),
        ('[slurm]\ntopology = "/nowhere"', "/nowhere: cannot be read"),
    ],
)
def test_a_mistake_is_named(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        check_config(written(tmp_path, text))


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "etc" / "medevac.toml"
    assert main(["config", "init", "--scheduler", "slurm", "--output", str(path)]) == 0
    assert main(["config", "check", str(path)]) == 0
    assert "mode monitor, policy standard" in capsys.readouterr().out
    assert main(["config", "init", "--scheduler", "slurm", "--output", str(path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["config", "check", str(tmp_path / "none")]) == 2
    assert main(["controller", "--scheduler", "slurm", "--config", str(tmp_path / "none")]) == 2
    assert main(["watchdog", "--once", "--config", str(tmp_path / "none")]) == 2


def test_a_policy_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('name = "mine"\nextends = "standard"\n[recovery]\nmax_restarts = 3\n')
    _, policy = check_config(written(tmp_path, 'mode = "act"\npolicy = "mine.toml"'))
    assert (policy.name, policy.mode, policy.recovery.max_restarts) == ("mine", "act", 3)
