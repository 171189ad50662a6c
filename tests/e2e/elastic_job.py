"""A training whose ranks may become fewer or more: the same global batch each step, a line for each that is done.

elastic_job.py STEPS FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from medevac.torch import GlobalBatches, Guard

SAMPLES, BATCH = 96, 12


def main() -> None:
    steps, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(1))
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    guard = Guard(model, optimizer, checkpoint_dir=folder, every_steps=5, keep=0, overlap="wait", save_last=False)
    batches = GlobalBatches(SAMPLES, BATCH, seed=3)
    state = guard.resume()
    for step in guard.steps(state.step, steps):
        time.sleep(float(os.environ.get("STEP_SECONDS", "0")))
        mine = batches(step)
        optimizer.zero_grad()
        loss = batches.share(step) * model(data[mine]).square().mean()
        loss.backward()
        guard.backward_done()
        optimizer.step()
        drawn: list[object] = [None] * dist.get_world_size()
        dist.all_gather_object(drawn, mine)
        if dist.get_rank() == 0:
            with (folder / "drawn.jsonl").open("a") as out:
                out.write(json.dumps({"step": step, "drawn": drawn}) + "\n")
        guard.end_step(loss=loss)  # leaves here where it was asked to
    if dist.get_rank() == 0:
        flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        (folder / "final.json").write_text(json.dumps({"parameters": flat.tolist()}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
