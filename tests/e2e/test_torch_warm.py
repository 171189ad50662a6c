"""A killed rank of a real training is back from a warm process and from memory, and no bit is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.runs import LIMIT_S, ONE_THREAD, ROOT
from tests.e2e.test_torch_ddp import RANKS, TorchRun

from medevac.adapters.schedulers.local.processes import look

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("torch"), pytest.mark.timeout(400)]

SCRIPT = f"""
import sys
import torch
sys.path.insert(0, {str(ROOT / "examples")!r})
import torch_ddp
from medevac.torch import CheckpointManager
load = CheckpointManager.load
def told(self, path):
    step = load(self, path)
    print("loaded step", step, "from", self.loaded_from, flush=True)
    return step
CheckpointManager.load = told
if __name__ == "__main__":
    torch_ddp.main()
"""


def test_a_killed_rank_is_back_from_a_warm_process_and_from_memory(tmp_path: Path) -> None:
    run = TorchRun(tmp_path, pace=0.4)
    run.env["MEDEVAC_WARM_AFTER_S"] = "0.1"
    (tmp_path / "warm_job.py").write_text(SCRIPT)
    run.train[1] = str(tmp_path / "warm_job.py")
    try:
        run.start("--warm")
        run.checkpoint(1)
        run.until(lambda: "modules after" in (run.attempt().folder / "keeper.log").read_text(), "warm")
        keeper = run.keeper_pid()
        os.kill(run.rank_pid(1), signal.SIGKILL)
        run.until(lambda: run.attempt().number == 2 and run.attempt().keeping is not None, "started again")
        assert run.keeper_pid() == keeper, "not forked"
        run.recovered("ddp", attempts=2)
        words = run.attempt().log(0).read_text()
        assert "from memory" in words, words
        run.until(lambda: look(keeper) is None, "ended its keeper")
    finally:
        run.close()


RANK = """
import os, signal, sys
import torch.distributed as dist
dist.init_process_group("gloo")
again = os.environ["TORCHELASTIC_RESTART_COUNT"]
forked = "torch.distributed.run" in sys.modules
line = f"rank {dist.get_rank()} {again} {forked} {os.getsid(0) == os.getpid()} {sys.argv[1:]}\\n"
os.write(1, line.encode())  # whole: two ranks print into one pipe
dist.barrier()
if again == "0" and dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
dist.destroy_process_group()
sys.exit(int(sys.argv[1]))
"""


def test_torchrun_forks_its_ranks_and_starts_them_again(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    options = ["--nproc-per-node", str(RANKS), "--max-restarts", "1"]
    ended = subprocess.run(
        [sys.executable, "-m", "medevac.torch.run", *options, str(tmp_path / "rank.py"), "83"],
        env=os.environ | ONE_THREAD | {"MEDEVAC_WARM": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 83, ended.stdout
    said = sorted(line for line in ended.stdout.splitlines() if line.startswith("rank"))
    assert said == [f"rank {rank} {again} True True ['83']" for rank in range(RANKS) for again in range(2)]
