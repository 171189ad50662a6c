"""What nodes check themselves, and the service beside a cluster whose nodes are rebooted and come anew."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.slurm.cluster import Cluster, free_ports, until
from tests.e2e.slurm.test_contract import topology
from tests.e2e.slurm.test_nodes import boot, hard, made, shown
from tests.e2e.slurm.training import Service, gpu_lost

from medevac.adapters.schedulers.slurm import SlurmScheduler
from medevac.cli.main import main
from medevac.controller.resumed import BY
from medevac.core.events import ClusterSeen, EccCounted, OrderGiven


@pytest.fixture
def slurm(odd: Cluster) -> Cluster:
    return odd


@pytest.fixture
def scheduler(slurm: Cluster, tmp_path: Path) -> SlurmScheduler:
    (tmp_path / "topology.toml").write_text(topology(slurm))
    return made(slurm, tmp_path)


# --- what nodes check themselves --------------------------------------------------------------------------------------


async def test_the_snippets_keep_work_off_a_node_with_a_fresh_fault(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    """Prolog and HealthCheckProgram as they are shipped; a drain of ours keeps its reason."""
    await scheduler.isolate(hard("node2"))
    reason = (await scheduler.look.node("node2")).reason
    gpu_lost(slurm, "node1")
    (slurm.folder / "checks").touch()
    try:
        until(lambda: "DRAIN" in shown(slurm, "node1", "State")[0], "node1 is drained")
        assert "Xid 79" in (await scheduler.look.node("node1")).reason
        assert (await scheduler.look.node("node2")).reason == reason
        number = slurm.submit("true", "-N1", "--nodelist=node0")
        slurm.wait_state(number, "COMPLETED")
        assert await scheduler.isolated() == {"GPU-node2-0": "hard"}, "a drain by the site's own check is not ours"
    finally:
        (slurm.folder / "checks").unlink()
        (slurm.folder / "kmsg" / "node1").write_text("")


def test_node_check_sees_our_drain_and_nothing_where_slurm_is_silent(
    slurm: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = slurm.folder / "kmsg" / "node1"
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    words = ["node-check", "--node", "node1", "--kernel-log", str(log)]
    assert main(words) == 0
    slurm.call("scontrol", "update", "NodeName=node1", "State=DRAIN", "Reason=fan tray")
    assert main(words) == 0
    slurm.call("scontrol", "update", "NodeName=node1", "State=DRAIN", "Reason=medevac[soft=GPU-1] I7: row remaps")
    assert main(words) == 1
    assert main([*words[:-1], str(tmp_path / "none")]) == 1, "an unreadable log hides no mark"
    assert "taken out by Medevac: row remaps (I7)" in capsys.readouterr().out
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "no.conf"))
    assert main(words) == 0


# --- the service -----------------------------------------------------------------------------------------------------


@pytest.fixture
def service(slurm: Cluster, tmp_path: Path) -> Iterator[Service]:
    made_ = Service(slurm, tmp_path)
    yield made_
    made_.close()


def test_a_lost_gpu_is_rebooted_and_a_new_node_is_looked_after(service: Service) -> None:
    """By one controller: drained, rebooted through Slurm, back; then a node that was not there when it began."""
    cluster = service.cluster
    with service.config.open("a") as config:
        config.write("look_around_s = 1.0\n")
    service.start()
    gpu_lost(cluster, "node2")
    until((cluster.folder / "rebooted").exists, "Slurm runs the RebootProgram")
    boot(cluster, "node2")
    service.until(lambda: service.moved_to("GPU-node2-0")[-1:] == ["healthy"], "mended")
    assert service.moved_to("GPU-node2-0") == ["hard-draining", "isolated", "isolated", "healthy"]
    until(lambda: shown(cluster, "node2", "State") == ("IDLE",), "node2 takes work")

    before = cluster.conf.read_text()
    try:
        begins_anew(cluster, before + new_node(before))
        service.until(lambda: "node9" in {n.name for e in service.events(ClusterSeen) for n in e.nodes}, "it is seen")
        (cluster.folder / "kmsg" / "node9").touch()
        gpu_lost(cluster, "node9")
        until(lambda: "DRAIN" in shown(cluster, "node9", "State")[0], "node9 is drained")
        assert "medevac[hard=node9]" in cluster.call("scontrol", "-o", "show", "node", "node9").stdout
        assert service.stop() == 0
    finally:
        begins_anew(cluster, before)


def test_a_node_that_a_person_resumes_is_in_service_for_us_too(service: Service) -> None:
    """Without a word to Medevac; a new fault of the same GPU takes it out anew."""
    cluster, gpu, once = service.cluster, "GPU-node2-0", ["hard-draining", "isolated"]
    service.config.with_name("unmended.toml").write_text(UNMENDED)
    text = service.config.read_text().replace('policy = "standard"', 'policy = "unmended.toml"')
    service.config.write_text(f"{text}look_around_s = 1.0\n")

    def out() -> dict[str, str]:
        told = json.loads(service.medevac("status", "--state-dir", str(service.state), "--json"))
        return {device["name"]: device["state"] for device in told["devices"]}

    service.start()
    gpu_lost(cluster, "node2")
    service.until(lambda: service.moved_to(gpu) == once, "isolated")
    assert out() == {gpu: "isolated"}
    time.sleep(5.0)  # until a look around has seen it out by our hand
    cluster.call("scontrol", "update", "NodeName=node2", "State=RESUME")
    service.until(lambda: out() == {}, "healthy", 30.0)
    assert service.moved_to(gpu) == [*once, "returning", "healthy"]
    (order,) = service.events(OrderGiven)
    assert (order.what, order.target, order.who) == ("return", gpu, BY)
    assert shown(cluster, "node2", "State") == ("IDLE",)
    gpu_lost(cluster, "node2")
    service.until(lambda: service.moved_to(gpu) == [*once, "returning", "healthy", *once], "isolated again")
    assert "DRAIN" in shown(cluster, "node2", "State")[0]
    assert out() == {gpu: "isolated"}
    assert service.stop() == 0


UNMENDED = """
name = "unmended"
extends = "standard"

[mending]
automatic = []
"""


def new_node(conf: str) -> str:
    """A line of slurm.conf for node9, like that of node0, with a port of its own."""
    line = next(line for line in conf.splitlines() if line.startswith("NodeName=node0 "))
    line = re.sub(r"Port=\d+", f"Port={free_ports(1)[0]}", line).replace("Gres=gpu:2", "Gres=")
    return line.replace("NodeName=node0 ", "NodeName=node9 ") + "\n"


def begins_anew(cluster: Cluster, conf: str) -> None:
    cluster.conf.write_text(conf)
    cluster.kill("slurmctld")
    cluster.start_controller()


def test_a_worn_gpu_restricts_its_node_until_a_person_lifts_it(service: Service, tmp_path: Path) -> None:
    cluster, text = service.cluster, service.config.read_text()
    service.config.write_text(f'node_folder = "{tmp_path}/nodes/{{node}}"\n{text}look_around_s = 1.0\n')
    for node in cluster.nodes:
        (tmp_path / "nodes" / node).mkdir(parents=True)
    counts = tmp_path / "nodes" / "node1" / "gpu0.json"
    counts.write_text('{"uuid": "GPU-node1-0", "sbe": 10, "remapped_rows": 90}')
    service.start()
    service.until(lambda: service.events(EccCounted), "the counters are read")
    counts.write_text('{"uuid": "GPU-node1-0", "sbe": 330, "remapped_rows": 90, "dbe": 0}')
    service.until(lambda: len(service.events(EccCounted)) > 1, "they are read again")
    assert shown(cluster, "node1", "Weight") == ("1",), "0.4 is not under 0.4"
    policy = service.config.with_name("worn.toml")
    policy.write_text('name = "worn"\nextends = "standard"\n' + RULE)
    service.stop()
    service.config.write_text(service.config.read_text().replace('policy = "standard"', 'policy = "worn.toml"'))
    service.start()
    until(lambda: shown(cluster, "node1", "Weight") == ("100000",), "node1 is restricted")
    assert service.moved_to("GPU-node1-0") == ["restricted"]
    assert "medevac_restricted" in shown(cluster, "node1", "ActiveFeatures")[0]
    service.medevac("return", "GPU-node1-0", "--state-dir", str(service.state))
    until(lambda: shown(cluster, "node1", "Weight") == ("1",), "the restriction is lifted")
    service.until(lambda: service.moved_to("GPU-node1-0")[-1:] == ["healthy"], "healthy")
    assert service.stop() == 0


RULE = """
[[rule]]
id = "low-health-score"
meaning = "its health score is under 0.45"
severity = "warning"
response = "restrict"
source = "a test"
when = [{ is = "health-under", score = 0.45 }]
"""
