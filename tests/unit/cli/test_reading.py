"""The reading commands: what they say, their JSON, their exit codes, one line for what is wrong."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.scenario.script import read
from tests.scenario.world import World

from medevac.adapters.store.sqlite import SqliteStore
from medevac.cli.main import main
from medevac.client.seal import seal
from medevac.core.events import SealRank
from medevac.core.seal import Seal
from medevac.ports.store import EventRecord

SCENARIOS = Path(__file__).parents[2] / "scenario"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The storm's log as JSON lines."""
    path = tmp_path / "log.jsonl"
    records = World(read(SCENARIOS / "ecc_storm.jsonl")).run()
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    return path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder with the storm in its store."""
    folder = tmp_path / "state"
    asyncio.run(fill(folder / "medevac.db"))
    return folder


async def fill(path: Path) -> None:
    store = SqliteStore.open(path)
    for record in World(read(SCENARIOS / "ecc_storm.jsonl")).run():
        if isinstance(record, EventRecord):
            await store.append_events([record.event])
        else:
            await store.append_decision(record.decision)
    await store.close()


def ask(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> str:
    assert main([str(word) for word in words]) == code
    return capsys.readouterr().out


def wrong(capsys: pytest.CaptureFixture[str], *words: object, code: int = 2) -> str:
    assert main([str(word) for word in words]) == code
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_status_says_how_things_stand(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: dict[str, Any] = json.loads(ask(capsys, "status", "--state-dir", log, "--json"))
    assert [(job["job"], job["state"], job["step"]) for job in told["jobs"]] == [("train", "finished", 60)]
    assert sorted(device["where"] for device in told["devices"]) == ["node1 GPU 0", "node2 GPU 1", "node2 GPU 2"]
    assert [one["severity"] for one in told["incidents"]] == ["critical"]
    assert (told["held"], told["pending"]) == ([], [])
    assert "Out of service: 3" in ask(capsys, "status", "--state-dir", log)


def test_a_state_folder_reads_as_a_log_does(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Jobs: 1" in ask(capsys, "status", "--state-dir", state)
    assert "the same, byte for byte" in ask(capsys, "replay", state)


def decision_that_stopped(log: Path) -> str:
    for line in log.read_bytes().splitlines():
        record = json.loads(line)
        kinds = [action["type"] for action in record.get("decision", {}).get("actions", [])]
        if "StopAttempt" in kinds:
            return str(record["decision"]["id"])
    raise AssertionError("nothing was stopped")


def test_explain_shows_clauses_events_and_outcomes(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = ask(capsys, "explain", decision_that_stopped(log), "--state-dir", log)
    assert "because dbe grew within 1 d: 1 (the rule asks for 1)" in said
    assert "action done     Isolate: take node1 GPU 0 out" in said
    assert "counters of node1 GPU 0: sbe 900, dbe 1" in said


@pytest.mark.parametrize("target", ["GPU-node1-0", "node1 GPU 0", "gpu-node1-0"])
def test_explain_knows_a_gpu_by_its_names(log: Path, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = ask(capsys, "explain", target, "--state-dir", log)
    assert said.startswith("node1 GPU 0 (GPU-node1-0): isolated")
    assert "in doubt from" in said


def test_explain_knows_actions_incidents_nodes_and_jobs(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "outcome: done" in ask(capsys, "explain", "train/start/2", "--state-dir", log)
    incident = json.loads(ask(capsys, "incident", "list", "--state-dir", log, "--json"))
    assert "root: node1 GPU 0" in ask(capsys, "explain", incident["id"], "--state-dir", log)
    assert ask(capsys, "explain", "node3", "--state-dir", log).startswith("node3 (node3): healthy")
    assert "survived the failure of node1 GPU 0" in ask(capsys, "explain", "--state-dir", log)
    assert json.loads(ask(capsys, "explain", "train", "--state-dir", log, "--json"))["outcome"] == "recovered"


def test_explain_writes_the_page(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "story.html"
    ask(capsys, "explain", "--state-dir", log, "--html", page)
    assert page.read_text().startswith("<!doctype html>")
    assert "cannot be written" in wrong(capsys, "explain", "--state-dir", log, "--html", tmp_path / "no" / "x.html")


def test_what_is_not_there_is_said_with_what_is(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = wrong(capsys, "explain", "tarin", "--state-dir", log)
    assert "Did you mean train?" in said
    assert "12 GPUs" in said
    assert "it has" in wrong(capsys, "incident", "show", "I1", "--state-dir", log)
    assert "no such store" in wrong(capsys, "status", "--state-dir", log.parent / "nowhere")
    assert "it has train" in wrong(capsys, "audit", "--job", "other", "--state-dir", log)


def test_audit_lists_each_decision_with_its_outcomes(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in ask(capsys, "audit", "--state-dir", log, "--json").splitlines()]
    assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)
    assert {action["outcome"] for line in lines for action in line["actions"]} == {"done"}
    assert all(line["event"]["type"] for line in lines)
    later = ask(capsys, "audit", "--state-dir", log, "--since", "2026-09-21T14:13:40", "--json").splitlines()
    assert 0 < len(later) < len(lines)
    assert "write 2026-03-01T10:00" in wrong(capsys, "audit", "--state-dir", log, "--since", "yesterday")


def test_checkpoints_of_a_job(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(line) for line in ask(capsys, "checkpoints", "train", "--state-dir", log, "--json").splitlines()]
    assert [row["step"] for row in rows] == list(range(5, 65, 5))
    assert "neither a folder nor a job" in wrong(capsys, "checkpoints", "other", "--state-dir", log)
    assert "/no/folder: there is no such folder" in wrong(capsys, "checkpoints", "/no/folder")


def test_checkpoints_of_a_folder_are_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "ckpt"
    for step in (10, 20):
        place = folder / f"step_{step:08d}"
        place.mkdir(parents=True)
        (place / "model.bin").write_bytes(bytes([step]) * 100)
        seal(place, Seal(job="job", attempt=1, step=step, ranks=(SealRank(rank=0, node="n0"),)))
    assert "the newest clean one is step 20" in ask(capsys, "checkpoints", folder, "--verify")
    (folder / "step_00000020" / "model.bin").write_bytes(b"rot" * 33 + b"!")
    said = ask(capsys, "checkpoints", folder, "--verify", code=1)
    assert "model.bin" in said


def test_replay_finds_what_was_altered(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "the same, byte for byte" in ask(capsys, "replay", log)
    log.write_text(log.read_text().replace('"code":48', '"code":31'))
    assert "an uncorrectable memory error" in ask(capsys, "replay", log, code=1)
    assert json.loads(ask(capsys, "replay", log, "--json", code=1))["same"] is False


def test_replay_compares_with_another_policy(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "calm.toml"
    policy.write_text('name = "calm"\nextends = "demo"\n[recovery]\nbackoff_s = [30.0]\n')
    said = ask(capsys, "replay", log, "--policy", policy, code=1)
    assert "differ under" in said
    assert ask(capsys, "replay", log, "--policy", "demo").strip().endswith("demo decides the same")


def test_a_log_of_an_unknown_policy_says_what_to_do(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digest = json.loads(ask(capsys, "policy", "check", "demo", "--json"))["digest"]
    log.write_text(log.read_text().replace(digest, "0" * 16))
    assert "--policy FILE" in wrong(capsys, "replay", log)


def test_a_policy_is_checked_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "all right" in ask(capsys, "policy", "check", "standard")
    assert "row-remap-storm" in ask(capsys, "policy", "show", "local")
    bad = tmp_path / "bad.toml"
    bad.write_text('name = "bad"\nextends = "standard"\n[budget]\ncluster_share = 3.0\n')
    assert "budget.cluster_share" in wrong(capsys, "policy", "check", bad)
    assert "no such policy" in wrong(capsys, "policy", "show", "nope")


def test_a_topology_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "topology.toml"
    file.write_text('[node.a]\nrack = "r1"\ngpus = [{ index = 0, uuid = "GPU-1", pci = "0000:3b:00.0" }]\n')
    assert "1 node, 1 rack, 1 GPU: all right" in ask(capsys, "topology", "check", file)
    file.write_text('[node.a]\nrak = "r1"\n')
    assert "node.a" in wrong(capsys, "topology", "check", file)


@pytest.mark.parametrize("words", [("status", "--state-dir"), ("audit", "--state-dir"), ("replay",)])
def test_a_store_that_cannot_be_read_is_code_3(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, torn = tmp_path / "medevac.db", tmp_path / "log.jsonl"
    broken.write_bytes(b"SQLite format 3\0" + b"no more of it" * 100)
    torn.write_text('{"type":"event","seq":1')
    assert "is no readable store" in wrong(capsys, *words, broken, code=3)
    assert f"{torn}:1: is no record of a log" in wrong(capsys, *words, torn, code=3)


@pytest.mark.parametrize("words", [("audit", "--job", ""), ("stop", ""), ("release", ""), ("return", "")])
def test_an_empty_name_names_nothing(words: tuple[str, ...], state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "'': " in wrong(capsys, *words, "--state-dir", state)


def test_a_job_is_not_run_under_an_empty_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "job" in wrong(capsys, "run", "--job", "", "--state-dir", tmp_path / "state", "--", "true")
