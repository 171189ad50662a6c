"""torchrun's sizes: what is asked for, what is left, and one line for what it would refuse."""

from __future__ import annotations

import pytest

from medevac.client.agents import asked, fitted

SCRIPT = ["train.py", "--nnodes", "7"]
TWO = {"MEDEVAC_AGENTS": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "15001", "MEDEVAC_NODE": "node2"}


@pytest.mark.parametrize(
    "words",
    [
        ["--nnodes=1:2", "--nproc-per-node=4", *SCRIPT],
        ["--nproc_per_node", "4", "--max-restarts", "3", "--nnodes", "1:2", *SCRIPT],
        ["-m", "--nnodes=1:2", "-t", "3", "--nproc_per_node=4", "package.train", "--nproc-per-node=9"],
    ],
)
def test_what_is_asked_for(words: list[str]) -> None:
    found = asked(words)
    assert (found.least, found.most, found.nproc) == (1, 2, "4")
    assert words[found.script] in {"train.py", "package.train"}


def test_torchruns_own_defaults_and_its_variables() -> None:
    assert (asked(["train.py"]).most, asked(["train.py"]).nproc) == (1, "1")
    assert asked(["train.py"], {"PET_NNODES": "2:3", "PET_NPROC_PER_NODE": "gpu"}).least == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--nnodes=0:2"], "--nnodes 0:2"),
        (["--nnodes=3:2"], "--nnodes 3:2"),
        (["--nnodes=1:2:3"], "--nnodes 1:2:3"),
        (["--nnodes=many"], "--nnodes many"),
        (["--nproc-per-node=0"], "--nproc-per-node 0"),
        (["--nproc-per-node=-1"], "--nproc-per-node -1"),
        (["--standalone", "--nnodes=2"], "--standalone"),
        (["--nnodes"], "--nnodes"),
    ],
)
def test_a_size_that_torchrun_refuses_is_one_line(words: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        asked([*words, "train.py"] if len(words[-1]) > 8 else words)
    assert "\n" not in str(refused.value)


def test_as_many_ranks_as_there_are_gpus_left() -> None:
    words, said = fitted(["--nnodes=1:2", "--nproc-per-node=4", *SCRIPT], {**TWO, "MEDEVAC_GPUS": "a,b,c"})
    own = ["--nnodes=2", "--node-rank=1", "--rdzv-backend=static", "--rdzv-endpoint="]
    own += ["--master-addr=127.0.0.1", "--master-port=15001", "--nproc-per-node=3"]
    assert words == ["--nnodes=1:2", "--nproc-per-node=4", *own, *SCRIPT]
    assert said == ["--nproc-per-node 4 -> 3: 3 GPUs of node2 left"]


def test_a_node_less_is_an_agent_less() -> None:
    alone = TWO | {"MEDEVAC_AGENTS": "1", "RANK": "0", "MEDEVAC_GPUS": "a,b"}
    words, said = fitted(["--nnodes=1:2", "--nproc-per-node=2", *SCRIPT], alone)
    assert "--nnodes=1" in words
    assert said == ["--nnodes 1:2 -> 1: so many nodes are left for it"]


ONE = {"MEDEVAC_AGENTS": "1"}


def test_nothing_is_changed_where_nothing_is_missing_or_known() -> None:
    two, eight = ["--nproc-per-node=2", *SCRIPT], ["--nproc-per-node=8", *SCRIPT]
    assert fitted(two, ONE | {"MEDEVAC_GPUS": "a,b,c"}) == (two, [])
    assert fitted(eight, ONE) == (eight, [])
    cpu = ["--nproc-per-node=cpu", *SCRIPT]
    assert fitted(cpu, ONE | {"MEDEVAC_GPU": "a", "MEDEVAC_GPUS": ""}) == (cpu, [])


def test_where_another_scheduler_places_it_nothing_is_changed() -> None:
    """Slurm's own variables say how many tasks there are, and the command line how they meet."""
    words = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=host:29500", "--nproc-per-node=8", *SCRIPT]
    slurm = {"WORLD_SIZE": "16", "RANK": "3", "MEDEVAC_JOB_ID": "7", "MEDEVAC_GPUS": "a,b", "MASTER_ADDR": "host"}
    assert fitted(words, slurm) == (words, [])


def test_a_rank_a_gpu_is_said_by_its_number() -> None:
    words, said = fitted(["--nproc-per-node=gpu", *SCRIPT], ONE | {"MEDEVAC_GPUS": "a,b,c"})
    assert "--nproc-per-node=3" in words
    assert said == ["--nproc-per-node gpu -> 3: 3 GPUs of this node left"]
