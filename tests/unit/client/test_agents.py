"""torchrun's sizes: what is asked for, what is left, and one line for what it would refuse."""

from __future__ import annotations

import pytest

from medevac.client.agents import asked, fitted

SCRIPT = ["train.py", "--nnodes", "7"]
TWO = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "15001", "MEDEVAC_NODE": "node2"}


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
    alone = TWO | {"WORLD_SIZE": "1", "RANK": "0", "MEDEVAC_GPUS": "a,b"}
    words, said = fitted(["--nnodes=1:2", "--nproc-per-node=2", *SCRIPT], alone)
    assert "--nnodes=1" in words
    assert said == ["--nnodes 1:2 -> 1: so many nodes are left for it"]


def test_nothing_is_changed_where_nothing_is_missing_or_known() -> None:
    assert fitted(["--nproc-per-node=2", *SCRIPT], {"MEDEVAC_GPUS": "a,b,c"}) == (["--nproc-per-node=2", *SCRIPT], [])
    assert fitted(["--nproc-per-node=8", *SCRIPT], {}) == (["--nproc-per-node=8", *SCRIPT], [])
    assert fitted(["--nproc-per-node=cpu", *SCRIPT], {"MEDEVAC_GPU": "a"}) == (["--nproc-per-node=cpu", *SCRIPT], [])


def test_a_rank_a_gpu_is_said_by_its_number() -> None:
    words, said = fitted(["--nproc-per-node=gpu", *SCRIPT], {"MEDEVAC_GPUS": "a,b,c"})
    assert "--nproc-per-node=3" in words
    assert said == ["--nproc-per-node gpu -> 3: 3 GPUs of this node left"]
