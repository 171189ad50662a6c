"""torchrun under `medevac run` on two simulated nodes: it shrinks with them, grows back, and keeps the order."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.e2e.elastic_job import BATCH, SAMPLES
from tests.e2e.runs import ROOT, Run, make_cluster, uuid

from medevac.core.events import AttemptStarted
from medevac.torch import GlobalBatches

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("torch"), pytest.mark.timeout(400)]

STEPS = 120
SCRIPT = ROOT / "tests" / "e2e" / "elastic_job.py"
TORCHRUN = ("-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=2")


class Elastic(Run):
    """Two agents of two ranks each."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ranks=0)
        self.train = [sys.executable, *TORCHRUN, str(SCRIPT), str(STEPS), str(self.checkpoints)]
        make_cluster(self.cluster, gpus_each=2)
        self.env["STEP_SECONDS"] = "0.1"

    def drawn(self) -> list[dict[str, Any]]:
        """What each rank drew, a step each; a step that was done again stands there again."""
        path = self.checkpoints / "drawn.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def ranks_are(self, count: int, steps: int = 1) -> None:
        """Wait until so many ranks have done so many steps together last."""
        self.until(lambda: [len(one["drawn"]) for one in self.drawn()[-steps:]] == [count] * steps, f"{count} ranks")


def test_a_gpu_less_is_a_rank_less_until_it_is_back(tmp_path: Path) -> None:
    run = Elastic(tmp_path)
    try:
        run.start()
        run.checkpoint()
        run.gpu_lost(node=1, gpu=0)
        run.ranks_are(3, steps=12)
        run.order("return", uuid(1, 0))
        run.ranks_are(4)
        assert run.wait() == 0, run.printed()
        started = [sum(len(place.gpus) for place in event.ranks) for event in run.events(AttemptStarted)]
        assert started == [4, 3, 4], run.printed()
        assert "--nproc-per-node 2 -> 1: 1 GPU of node1 left" in run.printed(), run.printed()
        in_order(run)
    finally:
        run.close()


def in_order(run: Elastic) -> None:
    """Each step drew what it would have undisturbed, all of it and once; the model is that of one process."""
    batches = GlobalBatches(SAMPLES, BATCH, seed=3, rank=0, world=1)
    done = {one["step"]: [row for rank in one["drawn"] for row in rank] for one in run.drawn()}
    assert done == {step: batches.whole(step) for step in range(STEPS)}
    data = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(data[batches(step)]).square().mean().backward()
        optimizer.step()
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    found = json.loads((run.checkpoints / "final.json").read_text())["parameters"]
    assert torch.allclose(flat, torch.tensor(found), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("world", [1, 3, 4, 5])
def test_ranks_share_a_batch_without_rest(world: int) -> None:
    every = [GlobalBatches(100, 12, seed=7, rank=rank, world=world) for rank in range(world)]
    for step in (0, 7, 8, 23):
        assert [row for one in every for row in one(step)] == every[0].whole(step)
        assert sum(one.share(step) for one in every) == pytest.approx(world)
    epoch = [row for step in range(8) for row in every[0].whole(step)]
    assert len(set(epoch)) == 96
    assert epoch[:12] != every[0].whole(8)
    with pytest.raises(ValueError, match="at least"):
        GlobalBatches(100, world - 1, rank=0, world=world)
