"""torchrun under `medevac run`: what is submitted, and what each agent's process is told."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from medevac.adapters.schedulers.local.launch import plan
from medevac.adapters.schedulers.spec import JobSpec
from medevac.cli.elastic import by_agents
from medevac.cli.output import CommandError
from medevac.client.agents import fitted
from medevac.core.actions import StartAttempt
from medevac.core.events import Gpu, JobPolicy, Node
from medevac.core.placement import place

TORCHRUN = ("python", "-m", "medevac.torch.run")
NODES = tuple(
    Node(name=f"n{n}", gpus=tuple(Gpu(index=i, uuid=f"g{n}{i}", pci=f"0000:{i}0:00.0") for i in range(2)))
    for n in range(2)
)


def spec(*words: str, **more: object) -> JobSpec:
    return JobSpec(job="j", command=(*TORCHRUN, *words, "train.py"), **more)  # type: ignore[arg-type]


def test_agents_and_the_least_of_them() -> None:
    found = by_agents(spec("--nnodes=2:3", "--nproc-per-node=4"))
    assert (found.ranks, found.gpus_per_rank, found.policy.min_ranks) == (3, 0, 2)
    own = by_agents(spec("--nnodes=1:3", policy=JobPolicy(min_ranks=2)))
    assert own.policy.min_ranks == 2
    one = by_agents(spec())
    assert (one.ranks, one.gpus_per_rank, one.policy.min_ranks) == (1, 0, 1)


def test_any_other_command_is_as_it_was() -> None:
    other = msgspec.structs.replace(spec(), command=("python", "train.py", "--nnodes=0"), ranks=4)
    assert by_agents(other) == other


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (spec("--nnodes=0:2"), "torchrun --nnodes 0:2"),
        (spec("--nproc-per-node=0"), "torchrun --nproc-per-node 0"),
        (spec(ranks=4), "--nproc"),
    ],
)
def test_one_clear_line(given: JobSpec, says: str) -> None:
    with pytest.raises(CommandError, match=says) as refused:
        by_agents(given)
    assert "\n" not in str(refused.value)


def test_each_agent_is_told_its_node_and_what_is_left_of_it() -> None:
    job = by_agents(spec("--nnodes=1:2", "--nproc-per-node=2"))
    ranks = place(NODES, job.ranks, job.gpus_per_rank, out={"g00"}, least=1)
    assert ranks is not None
    start = StartAttempt(id="s", reason="", job="j", attempt=2, ranks=ranks)
    made = plan(job, start, {node.name: node for node in NODES}, Path("/state"), Path("/shm"))
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "15001"}
    said = [fitted(made.command[3:], one.env | meet) for one in made.ranks]
    assert [words for _, words in said] == [["--nproc-per-node 2 -> 1: 1 GPU of n0 left"], []]
    assert ["--nnodes=2" in words for words, _ in said] == [True, True]
    assert [next(w for w in words if w.startswith("--node-rank")) for words, _ in said] == [
        "--node-rank=0",
        "--node-rank=1",
    ]
    assert [one.env["CUDA_VISIBLE_DEVICES"] for one in made.ranks] == ["1", "0,1"]
