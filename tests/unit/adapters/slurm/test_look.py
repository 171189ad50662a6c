"""What is told of the cluster, from what Slurm and the topology say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from medevac.adapters.schedulers.slurm.look import Look
from medevac.adapters.schedulers.slurm.settings import SlurmSettings
from medevac.core.events import Gpu, Node

NODES = (
    "NodeName=n0 State=IDLE Weight=1 Partitions=train,debug BootTime=2026-12-01T02:32:31\n"
    "NodeName=n1 State=IDLE Weight=1 Partitions=train BootTime=2026-12-01T02:32:31\n"
    "NodeName=n2 State=IDLE Weight=1 BootTime=2026-12-01T02:32:31\n"
)
SWITCHES = "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n0,n1\n"
TOPOLOGY = '[node.n0]\nrack = "r7"\ngpus = [{ index = 0, uuid = "GPU-1" }]\n'


class Slurm:
    def __init__(self, nodes: str = NODES) -> None:
        self.nodes = nodes

    async def run(self, *words: str) -> str:
        return SWITCHES if words[-1] == "topology" else self.nodes


@pytest.fixture
def site(tmp_path: Path) -> SlurmSettings:
    (tmp_path / "topology.toml").write_text(TOPOLOGY)
    return SlurmSettings(topology=str(tmp_path / "topology.toml"))


async def test_a_node_has_its_rack_and_its_partitions(site: SlurmSettings) -> None:
    slurm: Any = Slurm()
    seen = await Look(slurm, site).cluster()
    assert seen.nodes == (
        Node(name="n0", rack="r7", gpus=(Gpu(index=0, uuid="GPU-1"),), partitions=("debug", "train")),
        Node(name="n1", rack="s0", partitions=("train",)),
        Node(name="n2"),
    )


async def test_a_node_that_people_took_out_is_told_to_be_out(site: SlurmSettings) -> None:
    """And not one that we did, nor one that Slurm does not reach for a while."""
    states = (
        "IDLE+DRAIN Reason=fan tray",
        "IDLE+DRAIN Reason=medevac[hard=n1] I7: Xid 79",
        "DOWN* Reason=Not responding",
    )
    lines = zip(NODES.splitlines(), states, strict=True)
    slurm: Any = Slurm("".join(f"{line.replace('State=IDLE', '')} State={state}\n" for line, state in lines))
    assert [node.out for node in (await Look(slurm, site).cluster()).nodes] == [True, False, False]
