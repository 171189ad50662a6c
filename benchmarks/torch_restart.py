"""How long a training takes from a killed or a stopped rank to its next step, under Medevac and under others.

    python benchmarks/torch_restart.py [--json] [--full] [--ranks 4] [--kills 5] [--hangs 0] [--systems NAMES] [--equal]

The job (restart_job.py) is a transformer under DDP on gloo, one thread a rank, a checkpoint every three steps; `--full`
has 48.8 M parameters and Adam (586 MB), else an eighth of them. A rank is killed (SIGKILL) or stopped (SIGSTOP) two
steps after a checkpoint, the victims in turn; the time runs to the first step that a new process has done. Medians.

Systems: `medevac` (--warm), `cold` (Medevac without it), `torchrun` (with its workaround for stale keys), `ft_launcher`
(nvidia-resiliency-ext; FT_LAUNCHER names it where it lives in another environment, which must see torch and Medevac).
`--equal`: rank 0 hashes the parameters after each step; they are compared with those of a run that nothing disturbs
(DDP then keeps its buckets as they are, see the job).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from restart_job import EVERY

from medevac.adapters.store.sqlite import read_all
from medevac.core.decision import Decision
from medevac.ports.store import EventRecord

JOB = Path(__file__).with_name("restart_job.py")
LIMIT_S = 300.0
FT_LIMIT_S = 6.0
FT = (
    *("--ft-initial-rank-heartbeat-timeout=120", f"--ft-rank-heartbeat-timeout={FT_LIMIT_S:.0f}"),
    "--ft-workload-check-interval=1",
)
PHASES = ("began", "imported", "grouped", "built", "wrapped", "loaded")


class System:
    """One launch of the job under one system, and what its ranks have told."""

    def __init__(self, name: str, folder: Path, ranks: int, *options: str) -> None:
        self.name, self.folder = name, folder
        self.state = folder / "state"
        script = [str(JOB), str(folder), *options]
        elastic = ["--nproc-per-node", str(ranks), "--max-restarts=100"]
        medevac = [sys.executable, "-m", "medevac.cli.main", "run", "--state-dir", str(self.state), "--job", "job"]
        medevac += ["--checkpoint-dir", str(folder / "ck"), "--nproc", str(ranks)]
        medevac += ["--job-policy", '{"max_restarts": 1000}']  # else 20
        self.command = {
            "medevac": [*medevac, "--warm", "--", sys.executable, *script, "--guarded"],
            "cold": [*medevac, "--", sys.executable, *script, "--guarded"],
            "torchrun": [sys.executable, "-m", "torch.distributed.run", *elastic, *script],
            "ft_launcher": [ft_launcher(), *elastic, *FT, *script],
        }[name]

    def __enter__(self) -> Self:
        env = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        with (self.folder / "log").open("w") as log:
            self.process = subprocess.Popen(self.command, cwd=self.folder, env=env, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        mark = str(self.folder).encode()
        for _again in range(5):  # those that start others may do so once more
            for process in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    if mark in (process / "cmdline").read_bytes() or mark in (process / "environ").read_bytes():
                        os.kill(int(process.name), signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def told(self, kind: str = "") -> list[dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError):
            lines = (self.folder / "told").read_text().splitlines()
            return [told for line in lines if (told := json.loads(line)) and kind in {"", told["kind"]}]
        return []

    def until(self, is_so: Callable[[], Any]) -> Any:
        end = time.monotonic() + LIMIT_S
        while not (found := is_so()):
            if time.monotonic() > end or self.process.poll() is not None:
                raise TimeoutError(f"{self.name}: {(self.folder / 'log').read_text()[-3000:]}")
            time.sleep(0.02)
        return found

    def ready(self) -> None:
        """A warm process is there where one is wanted."""
        logs = self.state / "jobs" / "job" / "attempts"
        if self.name == "medevac":
            self.until(lambda: any("modules after" in path.read_text() for path in logs.glob("*/keeper.log")))

    def hurt(self, number: signal.Signals, rank: int) -> dict[str, float]:
        """Two steps after a checkpoint; seconds from the signal through the phases of the next attempt."""
        begun = max(self.told("start"), key=lambda told: float(told["loaded"]))["step"]
        least = begun + 2 * EVERY
        self.until(lambda: [one for one in self.told("step") if one["step"] >= least and one["step"] % EVERY == 2])
        before = {told["pid"] for told in self.told()}
        victim = [one["pid"] for one in self.told("step") if one["rank"] == rank][-1]
        at = time.time()
        os.kill(victim, number)
        self.until(lambda: not any(alive(pid) for pid in before))
        gone = time.time()
        stepped = self.until(lambda: [one for one in self.told("step") if one["pid"] not in before])[0]["at"]
        starts = [told for told in self.told("start") if told["pid"] not in before]
        moments = {"gone": gone} | {name: max(told[name] for told in starts) for name in PHASES} | {"stepped": stepped}
        limit = at
        if number == signal.SIGSTOP:
            seen = [one for one in self.limits() if at < one < stepped]
            limit = at + FT_LIMIT_S if self.name == "ft_launcher" else (seen or [stepped])[0]
        return {
            "seconds": stepped - at,
            "past_limit_s": stepped - limit,
            "gone_s": gone - at,
            **{f"{after}_s": moments[after] - moments[one] for one, after in pairwise(moments)},
            "warm": float(all(told["imported"] - told["began"] < 0.5 for told in starts)),
            "from_memory": float(all(told["tier"] == "memory" for told in starts)),
        }

    def decisions(self) -> list[Decision]:
        path = self.state / "medevac.db"
        records = read_all(path) if path.exists() else ()
        return [record.decision for record in records if not isinstance(record, EventRecord)]

    def limits(self) -> list[float]:
        """When Medevac saw that an attempt hangs."""
        return [found.at for one in self.decisions() for found in one.findings if found.rule == "hang"]

    def named(self) -> dict[int, set[int | None]]:
        """Which ranks Medevac named, by attempt."""
        told = [told for one in self.decisions() for told in one.diagnoses]
        return {one.attempt: {who.rank for who in one.verdict.suspects} for one in told}


def ft_launcher() -> str:
    return os.environ.get("FT_LAUNCHER") or shutil.which("ft_launcher") or ""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


Hashes = dict[int, set[str]]


def measured(name: str, given: argparse.Namespace, number: signal.Signals, times: int) -> tuple[dict[str, Any], Hashes]:
    """Medians over so many times, and the hashes of the parameters by step."""
    options = ["--pace", str(given.pace), *(["--full"] if given.full else []), *(["--exact"] if given.equal else [])]
    with tempfile.TemporaryDirectory() as folder, System(name, Path(folder), given.ranks, *options) as system:
        system.until(lambda: system.told("step"))
        system.ready()
        victims = [1 + turn % (given.ranks - 1) for turn in range(times)]
        rows = [system.hurt(number, victim) for victim in victims]
        hashes: Hashes = {}
        for told in system.told("step"):
            if told["hash"]:
                hashes.setdefault(told["step"], set()).add(told["hash"])
        named = system.named()
    row: dict[str, Any] = {key: round(statistics.median(row[key] for row in rows), 3) for key in rows[0]}
    row["all"] = [round(row["seconds"], 2) for row in rows]
    if number == signal.SIGSTOP and named:
        row["wrong_rank_named"] = sum(named.get(turn) != {rank} for turn, rank in enumerate(victims, 1))
    return row, hashes


def undisturbed(given: argparse.Namespace, steps: int, *, guarded: bool) -> dict[int, str]:
    """With the Guard or without: its hook divides before the sum, as PyTorch's own hook does, plain DDP elsewhere."""
    options = [
        *(["--guarded"] if guarded else []),
        *(["--full"] if given.full else []),
        "--exact",
        "--total",
        str(steps),
    ]
    with tempfile.TemporaryDirectory() as folder, System("torchrun", Path(folder), given.ranks, *options) as system:
        system.until(lambda: any(told["step"] == steps and told["hash"] for told in system.told("step")))
        return {told["step"]: told["hash"] for told in system.told("step") if told["hash"]}


def compare(kind: str, number: signal.Signals, times: int, given: argparse.Namespace) -> dict[str, Any]:
    """All systems, one after the other, and Medevac's ratio to each."""
    rows: dict[str, dict[str, Any]] = {}
    hashes: dict[str, Hashes] = {}
    for name in given.systems.split(","):
        if name == "ft_launcher" and not ft_launcher():
            print("ft_launcher is not here: left out", file=sys.stderr)
        elif name != "torchrun" or kind != "hang":  # a stopped rank is seen after 30 minutes, a group's time-out
            rows[name], hashes[name] = measured(name, given, number, times)
            print(kind, name, rows[name], file=sys.stderr, flush=True)
    if given.equal:
        steps = max(max(found) for found in hashes.values())
        rights: dict[bool, dict[int, str]] = {}
        for name, found in hashes.items():
            guarded = name in {"medevac", "cold"}
            right = rights.get(guarded) or undisturbed(given, steps, guarded=guarded)
            rights[guarded] = right
            rows[name]["equal"] = all(one == {right[step]} for step, one in found.items())
    sums: dict[str, float] = {f"{kind}_to_next_step_s": rows[name]["seconds"] for name in rows if name == "medevac"}
    for name in rows.keys() - {"medevac"} if "medevac" in rows else ():
        sums[f"{kind}_ratio_to_{name}"] = round(rows["medevac"]["seconds"] / rows[name]["seconds"], 3)
        past = rows["medevac"]["past_limit_s"] / rows[name]["past_limit_s"]
        sums |= {f"{kind}_past_limit_ratio_to_{name}": round(past, 3)} if kind == "hang" else {}
    return {**sums, kind: rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--full", action="store_true", help="48.8 M parameters")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--hangs", type=int, default=0)
    parser.add_argument("--systems", default="medevac,torchrun,ft_launcher")
    parser.add_argument(
        "--pace", type=float, default=0.0, help="seconds of sleep in each step: for a long run of hangs"
    )
    parser.add_argument("--equal", action="store_true", help="compare with a run that nothing disturbs")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was launched is ended on the way out
    rows: dict[str, Any] = {"benchmark": "torch_restart", "ranks": given.ranks, "full": given.full}
    for kind, number, times in (("crash", signal.SIGKILL, given.kills), ("hang", signal.SIGSTOP, given.hangs)):
        rows |= compare(kind, number, times, given) if times else {}
    print(json.dumps(rows) if given.json else "\n".join(f"{name}: {value}" for name, value in rows.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
