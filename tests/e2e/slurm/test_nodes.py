"""Nodes that are restricted, reserved for repair, rebooted, or counted down, on a real cluster."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.e2e.slurm.cluster import Cluster, until, until_async
from tests.e2e.slurm.test_contract import topology

from medevac.adapters.schedulers.slurm import Commands, SlurmScheduler, SlurmSettings
from medevac.adapters.schedulers.slurm.nodemark import node_mark
from medevac.adapters.schedulers.slurm.restrict import FEATURE
from medevac.core.actions import GiveBack, Isolate, Repair, Restrict
from medevac.ports.errors import OutcomeUnknown, Refused, Unsupported


@pytest.fixture
def slurm(odd: Cluster) -> Cluster:
    return odd


@pytest.fixture
def scheduler(slurm: Cluster, tmp_path: Path) -> SlurmScheduler:
    (tmp_path / "topology.toml").write_text(topology(slurm))
    return made(slurm, tmp_path)


def made(slurm: Cluster, folder: Path, state: str = "state", **site: object) -> SlurmScheduler:
    settings = SlurmSettings(poll_s=0.05, topology=str(folder / "topology.toml"), **site)  # type: ignore[arg-type]
    return SlurmScheduler(Commands(conf=str(slurm.conf)), folder / state, settings)


def shown(slurm: Cluster, node: str, *keys: str) -> tuple[str, ...]:
    text = slurm.call("scontrol", "-o", "show", "node", node).stdout
    found = [re.search(rf"\s{key}=(\S*)", text) for key in keys]
    return tuple(one[1] if one else "" for one in found)


def features(slurm: Cluster, node: str) -> set[str]:
    available, active = shown(slurm, node, "AvailableFeatures", "ActiveFeatures")
    assert set(available.split(",")) - {"(null)", ""} == set(active.split(",")) - {"(null)", ""}
    return set(available.split(",")) - {"(null)", ""}


def weight(slurm: Cluster, node: str) -> str:
    return shown(slurm, node, "Weight")[0]


def low(node: str, gpu: int, id_: str = "low") -> Restrict:
    return Restrict(id=f"{id_}{gpu}", cause="incident-7", node=node, gpu=f"GPU-{node}-{gpu}")


def back(node: str, gpu: int, id_: str = "back") -> GiveBack:
    return GiveBack(id=f"{id_}{gpu}", node=node, gpu=f"GPU-{node}-{gpu}")


# --- restricted ------------------------------------------------------------------------------------------------------


async def test_work_prefers_other_nodes_and_the_sites_own_values_come_back(
    slurm: Cluster, scheduler: SlurmScheduler
) -> None:
    words = ("Weight=7", "AvailableFeatures=h100,ib", "ActiveFeatures=h100,ib", "Comment=rack 3, ask Kim")
    slurm.call("scontrol", "update", "NodeName=node0", *words)
    for _ in range(2):
        await scheduler.restrict(low("node0", 0))
    await scheduler.restrict(low("node0", 1))
    assert features(slurm, "node0") == {"h100", "ib", FEATURE}
    assert weight(slurm, "node0") == "100000"
    mark = node_mark(await scheduler.look.comment("node0"))
    assert (mark.low, mark.weight) == ({"GPU-node0-0": "incident-7", "GPU-node0-1": "incident-7"}, 7)
    number = slurm.submit("sleep 60", "-N1")
    slurm.wait_state(number, "RUNNING")
    assert slurm.job(number)["NodeList"] != "node0"
    number = slurm.submit("true", "-N1", f"--constraint={FEATURE}")
    slurm.wait_state(number, "COMPLETED")
    assert slurm.job(number)["NodeList"] == "node0"
    await scheduler.give_back(back("node0", 0))
    assert weight(slurm, "node0") == "100000", "the other GPU is restricted still"
    await scheduler.give_back(back("node0", 1))
    assert (features(slurm, "node0"), weight(slurm, "node0")) == ({"h100", "ib"}, "7")
    assert await scheduler.look.comment("node0") == "rack 3, ask Kim"
    assert await scheduler.isolated() == {}


async def test_a_slurmctld_that_starts_anew_forgets_it_and_it_is_put_back(
    slurm: Cluster, scheduler: SlurmScheduler
) -> None:
    await scheduler.restrict(low("node0", 0))
    slurm.call("scontrol", "reconfigure")
    until(lambda: weight(slurm, "node0") == "1", "Slurm has forgotten it")
    await scheduler.cluster()
    assert (features(slurm, "node0"), weight(slurm, "node0")) == ({FEATURE}, "100000")
    slurm.call("scontrol", "update", "NodeName=node0", "Weight=3")
    await scheduler.cluster()
    assert weight(slurm, "node0") == "3", "a person's change stands"
    await scheduler.give_back(back("node0", 0))
    assert (features(slurm, "node0"), weight(slurm, "node0")) == (set(), "3")


async def test_one_partition_keeps_it_and_the_others_get_it_back(
    slurm: Cluster, scheduler: SlurmScheduler, tmp_path: Path
) -> None:
    enforcing = made(slurm, tmp_path, restricted_partition="low")
    await enforcing.restrict(low("node1", 0))
    assert shown(slurm, "node1", "Partitions") == ("low",)
    assert node_mark(await enforcing.look.comment("node1")).left == ("train",)
    number = slurm.submit("sleep 60", "-N1", "--nodelist=node1", "--partition=low")
    slurm.wait_state(number, "RUNNING")
    slurm.call("scontrol", "reconfigure")
    until(lambda: weight(slurm, "node1") == "1", "Slurm has forgotten it")
    await enforcing.cluster()
    assert shown(slurm, "node1", "Partitions") == ("low",)
    await scheduler.give_back(back("node1", 0))
    assert shown(slurm, "node1", "Partitions") == ("train,low",)
    partitions = {one.name: one.nodes for one in await scheduler.look.partitions()}
    assert partitions == {"train": tuple(slurm.nodes), "low": tuple(slurm.nodes)}


async def test_many_at_once_are_all_restricted_and_all_come_back(
    slurm: Cluster, scheduler: SlurmScheduler, tmp_path: Path
) -> None:
    """Two GPUs of a node share its mark, nodes share a partition."""
    enforcing = made(slurm, tmp_path, restricted_partition="low")
    parts = [(node, gpu) for node in ("node0", "node1", "node2") for gpu in (0, 1)]
    await asyncio.gather(*(enforcing.restrict(low(node, gpu, f"{node}/")) for node, gpu in parts))
    await asyncio.gather(*(enforcing.isolate(replace(hard(node, gpu), id=f"{node}{gpu}")) for node, gpu in parts))
    nodes = {one.name: one.nodes for one in await enforcing.look.partitions()}
    assert nodes == {"train": ("node3",), "low": tuple(slurm.nodes)}
    assert set(await enforcing.isolated()) == {f"GPU-{node}-{gpu}" for node, gpu in parts}
    await asyncio.gather(*(enforcing.give_back(back(node, gpu, f"{node}/back")) for node, gpu in parts))
    nodes = {one.name: one.nodes for one in await enforcing.look.partitions()}
    assert nodes == {"train": tuple(slurm.nodes), "low": tuple(slurm.nodes)}
    assert await enforcing.isolated() == {}
    assert {weight(slurm, node) for node in slurm.nodes} == {"1"}


async def test_a_controller_killed_in_between_loses_no_value_of_the_sites(
    slurm: Cluster, scheduler: SlurmScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the mark and the change, and between the change back and the mark."""

    async def killed(*_: object) -> None:
        raise KeyboardInterrupt

    slurm.call("scontrol", "update", "NodeName=node0", "Weight=7", "Comment=rack 3")
    for method, order in (("_set", "restrict"), ("_write", "give_back")):
        action = low("node0", 0) if order == "restrict" else back("node0", 0)
        with monkeypatch.context() as patch:
            patch.setattr(scheduler._restrictions, method, killed)
            with pytest.raises(KeyboardInterrupt):
                await getattr(scheduler, order)(action)
        scheduler = made(slurm, tmp_path)
        await getattr(scheduler, order)(action)
        assert weight(slurm, "node0") == ("100000" if order == "restrict" else "7")
    assert features(slurm, "node0") == set()
    assert await scheduler.look.comment("node0") == "rack 3"


async def test_without_such_a_gpu_nothing_is_changed(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    with pytest.raises(Refused, match="none of that UUID"):
        await scheduler.restrict(Restrict(id="low", node="node0", gpu="GPU-none"))
    assert weight(slurm, "node0") == "1"


# --- out for repair --------------------------------------------------------------------------------------------------


def hard(node: str, gpu: int = 0) -> Isolate:
    return Isolate(id=f"out-{gpu}", cause="I7.1", reason="Xid 79", node=node, gpu=f"GPU-{node}-{gpu}", mode="hard")


async def test_a_node_out_for_repair_is_reserved_until_it_is_back(
    slurm: Cluster, scheduler: SlurmScheduler, tmp_path: Path
) -> None:
    slurm.call(
        "scontrol", "create", "reservation", "ReservationName=medevac_mine", "Nodes=node[1-2]", "StartTime=now",
        "Duration=60", "Users=root", "Flags=MAINT,IGNORE_JOBS",
    )  # fmt: skip
    reserving = made(slurm, tmp_path, reserve_repairs=True)
    await reserving.isolate(hard("node1"))
    await reserving.isolate(hard("node1", 1))
    text = slurm.call("scontrol", "-o", "show", "reservation", "medevac_I7.1_node1").stdout
    assert "Nodes=node1 " in text
    assert re.search(r"Flags=\S*MAINT", text)
    assert await reserving.isolated() == {"GPU-node1-0": "hard", "GPU-node1-1": "hard"}
    await scheduler.give_back(back("node1", 0))
    assert "medevac_I7.1_node1" in slurm.call("scontrol", "show", "reservation").stdout
    await scheduler.give_back(back("node1", 1))
    left = slurm.call("scontrol", "-o", "show", "reservation").stdout
    slurm.call("scontrol", "delete", "ReservationName=medevac_mine")
    assert re.findall(r"ReservationName=(\S+)", left) == ["medevac_mine"], "not of our making"


async def test_a_reservation_that_is_refused_leaves_the_node_drained(
    slurm: Cluster, tmp_path: Path, scheduler: SlurmScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("medevac.adapters.schedulers.slurm.reserve.getpass.getuser", lambda: "no-such-user")
    reserving = made(slurm, tmp_path, reserve_repairs=True)
    await reserving.isolate(hard("node1"))
    assert await scheduler.isolated() == {"GPU-node1-0": "hard"}
    assert "medevac_" not in slurm.call("scontrol", "show", "reservation", check=False).stdout


def boot(cluster: Cluster, node: str) -> None:
    """Slurm counts a boot only that is later than the second in which it asked for it."""
    cluster.kill(node)
    time.sleep(1.5)
    cluster.start_node(node, booted=True)


def repair(node: str, how: str = "reboot", id_: str = "mend") -> Repair:
    return Repair(id=id_, cause="I7.1", node=node, gpu=f"GPU-{node}-0", how=how)  # type: ignore[arg-type]


async def test_a_node_is_rebooted_by_slurm_and_comes_back(
    slurm: Cluster, scheduler: SlurmScheduler, tmp_path: Path
) -> None:
    number = slurm.submit("sleep 3", "-N1", "--nodelist=node2")
    slurm.wait_state(number, "RUNNING")
    reserving = made(slurm, tmp_path, reserve_repairs=True)
    await reserving.restrict(low("node2", 0))
    await reserving.isolate(hard("node2"))
    with pytest.raises(OutcomeUnknown, match="under way"):
        await reserving.repair(repair("node2"))
    assert "REBOOT" in shown(slurm, "node2", "State")[0]
    assert slurm.state(number) == "RUNNING", "what runs there may end first"
    assert await scheduler.isolated() == {"GPU-node2-0": "hard"}
    until((slurm.folder / "rebooted").exists, "Slurm runs the RebootProgram")
    again = made(slurm, tmp_path)
    with pytest.raises(OutcomeUnknown):
        await again.repair(repair("node2"))
    boot(slurm, "node2")
    until(lambda: shown(slurm, "node2", "State")[0].startswith("IDLE"), "node2 is back")
    await again.repair(repair("node2"))
    await again.repair(repair("node2"))
    assert await again.isolated() == {}
    assert weight(slurm, "node2") == "1"
    assert "medevac_" not in slurm.call("scontrol", "show", "reservation", check=False).stdout
    until(lambda: shown(slurm, "node2", "State") == ("IDLE",), "node2 takes work")


async def test_what_a_reboot_would_bring_back_too_is_not_rebooted(
    slurm: Cluster, scheduler: SlurmScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scheduler.isolate(hard("node2", 0))
    await scheduler.isolate(hard("node2", 1))
    with pytest.raises(OutcomeUnknown, match="is it to be rebooted"):
        await scheduler.repair(repair("node2"))
    with pytest.raises(Unsupported, match="reset"):
        await scheduler.repair(repair("node2", "reset"))
    with pytest.raises(Unsupported, match="take it back"):
        await scheduler.repair(replace(repair("node2"), readmit=False))
    monkeypatch.setattr("medevac.adapters.schedulers.slurm.reboot.GATHER_S", 0.0)
    with pytest.raises(Unsupported, match="GPU-node2-1 is out as well"):
        await scheduler.repair(repair("node2"))
    assert "REBOOT" not in shown(slurm, "node2", "State")[0]


async def test_one_reboot_is_for_all_that_is_out_of_a_node(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    number = slurm.submit("sleep 60", "-N1", "--nodelist=node2")
    slurm.wait_state(number, "RUNNING")
    orders = [replace(repair("node2", id_=f"mend-{gpu}"), gpu=f"GPU-node2-{gpu}") for gpu in (0, 1)]
    for gpu in (0, 1):
        await scheduler.isolate(hard("node2", gpu))
    mark = len(slurm.log)
    for order in (*orders, *orders):
        with pytest.raises(OutcomeUnknown):
            await scheduler.repair(order)
    assert "REBOOT" in shown(slurm, "node2", "State")[0]
    assert slurm.log[mark:].count("REQUEST_REBOOT_NODES") == 1
    slurm.call("scontrol", "cancel_reboot", "node2")
    for order in orders:
        assert "called off" in await refusal(scheduler, order)


async def test_a_person_who_takes_the_node_back_ends_the_reboot(slurm: Cluster, scheduler: SlurmScheduler) -> None:
    number = slurm.submit("sleep 60", "-N1", "--nodelist=node2")
    slurm.wait_state(number, "RUNNING")
    await scheduler.isolate(hard("node2"))
    with pytest.raises(OutcomeUnknown):
        await scheduler.repair(repair("node2"))
    await scheduler.give_back(back("node2", 0))
    state = shown(slurm, "node2", "State")[0]
    assert "DRAIN" not in state
    assert "REBOOT" not in state
    assert "called off" in await refusal(scheduler, repair("node2"))
    await scheduler.isolate(replace(hard("node2"), id="out-again"))
    with pytest.raises(OutcomeUnknown):
        await scheduler.repair(repair("node2", id_="mend-again"))
    slurm.call("scontrol", "cancel_reboot", "node2")
    assert "called off" in await refusal(scheduler, repair("node2", id_="mend-again"))
    assert await scheduler.isolated() == {"GPU-node2-0": "hard"}, "it stays drained"


async def refusal(scheduler: SlurmScheduler, action: Repair) -> str:
    """Why it is refused, as soon as the node has told slurmctld when it booted."""
    said: list[str] = []

    async def refused() -> bool:
        try:
            await scheduler.repair(action)
        except Refused as problem:
            said.append(str(problem))
        except OutcomeUnknown:
            return False
        return True

    await until_async(refused, "the repair is refused")
    return said[0]


# --- counted accelerators --------------------------------------------------------------------------------------------


async def test_one_of_counted_accelerators_is_left_out(
    slurm: Cluster, scheduler: SlurmScheduler, tmp_path: Path
) -> None:
    counting = made(slurm, tmp_path, counted_gres="accel")
    out = Isolate(id="out", cause="I7", node="node3", gpu="GPU-node3-0", mode="soft")
    for _ in range(2):
        await counting.isolate(out)
    assert shown(slurm, "node3", "Gres", "State") == ("accel:1", "IDLE")
    assert await counting.isolated() == {"GPU-node3-0": "soft"}
    slurm.call("scontrol", "reconfigure")
    until(lambda: shown(slurm, "node3", "Gres") == ("accel:2",), "Slurm has forgotten it")
    await counting.cluster()
    assert shown(slurm, "node3", "Gres") == ("accel:1",)
    await counting.isolate(Isolate(id="both", cause="I7", node="node3", gpu="GPU-node3-1", mode="soft"))
    assert "DRAIN" in shown(slurm, "node3", "State")[0], "none would be left: the node is drained"
    for gpu in (1, 0):
        await counting.give_back(back("node3", gpu))
    assert shown(slurm, "node3", "Gres") == ("accel:2",)
    until(lambda: shown(slurm, "node3", "State") == ("IDLE",), "node3 takes work")
    assert await counting.look.comment("node3") == ""


async def test_a_gres_with_files_is_never_counted_down(
    slurm: Cluster, scheduler: SlurmScheduler, tmp_path: Path
) -> None:
    counting = made(slurm, tmp_path, counted_gres="gpu")
    await counting.isolate(hard("node0"))
    gres, state = shown(slurm, "node0", "Gres", "State")
    assert (gres, "DRAIN" in state) == ("gpu:2", True)
    assert await counting.look.comment("node0") == ""
    await counting.give_back(back("node0", 0))


# --- monitor mode ----------------------------------------------------------------------------------------------------


async def test_monitor_mode_changes_nothing_of_it(slurm: Cluster, scheduler: SlurmScheduler, tmp_path: Path) -> None:
    await scheduler.restrict(low("node0", 0))
    slurm.call("scontrol", "reconfigure")
    until(lambda: weight(slurm, "node0") == "1", "Slurm has forgotten it")
    site = SlurmSettings(topology=str(tmp_path / "topology.toml"), reserve_repairs=True, counted_gres="accel")
    watching = SlurmScheduler(Commands(conf=str(slurm.conf), mode="monitor"), tmp_path / "watching", site)
    mark = len(slurm.log)
    await watching.cluster()
    orders: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: watching.restrict(low("node1", 0)),
        lambda: watching.isolate(hard("node1")),
        lambda: watching.isolate(Isolate(id="c", node="node3", gpu="GPU-node3-0", mode="soft")),
        lambda: watching.give_back(back("node0", 0)),
    )
    for order in orders:
        with pytest.raises(Refused, match="monitor mode"):
            await order()
    with pytest.raises(Refused):
        await watching.repair(repair("node1"))
    changes = re.findall(r"REQUEST_(?:UPDATE|REBOOT|CREATE|DELETE|SET)\w*", slurm.log[mark:])
    assert changes == []
    assert "REQUEST_NODE_INFO" in slurm.log[mark:]
