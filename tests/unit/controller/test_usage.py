"""Wrong use of `medevac run` and of orders: one clear line, exit code 2, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from medevac.cli.main import main


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    assert main(words) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("--policy", "nope", "--", "true"), "nope"),
        (("--policy", "/no/such.toml", "--", "true"), "/no/such.toml"),
        ((), "no command"),
        (("--bogus", "--", "true"), "--bogus"),
        (("--attach", "nojob"), "nojob"),
        (("--attach", "nojob", "--", "true"), "--attach"),
        (("--job-policy", '{"max_restart": 1}', "--", "true"), "max_restart"),
        (("--job-policy", "/no/such.json", "--", "true"), "/no/such.json"),
        (("--cluster", "/no/such", "--", "true"), "/no/such/topology.toml"),
        (("--checkpoint-dir", "/proc/ck", "--", "true"), "/proc/ck"),
        (("--job", "a/b", "--", "true"), "a/b"),
        (("--nproc", "-1", "--", "true"), "negative"),
        (("--", "no-such-command"), "no-such-command"),
        (("--job-policy", '{"signal": "NOPE"}', "--", "true"), "NOPE"),
    ],
)
def test_run(options: tuple[str, ...], names: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert names in said(capsys, "run", "--state-dir", str(tmp_path / "state"), *options)
    assert not list((tmp_path / "state").glob("jobs/*/spec.json"))


def test_a_policy_with_an_unknown_key_names_file_and_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "p.toml"
    policy.write_text('name = "p"\nextends = "local"\n[recovery]\nbackof_s = [1.0]\n')
    line = said(capsys, "run", "--state-dir", str(tmp_path / "s"), "--policy", str(policy), "--", "true")
    assert str(policy) in line
    assert "backof_s" in line


def test_a_file_that_is_no_store_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "medevac.db").write_text("something else, longer than the header of a database")
    assert "medevac.db" in said(capsys, "run", "--state-dir", str(tmp_path), "--", "true", code=3)


@pytest.mark.parametrize("order", [("stop", "train"), ("release", "train"), ("return", "GPU-1"), ("pause",)])
def test_an_order_without_a_store_says_where_it_looked(
    order: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert str(tmp_path) in said(capsys, *order, "--state-dir", str(tmp_path))
