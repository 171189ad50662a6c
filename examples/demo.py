"""The whole promise on one machine: a real training job survives an ECC storm, and its result is not touched by it.

    make demo        or        python examples/demo.py --seed 7

A small cluster is made of folders; a program apart lets a power supply fail and GPUs decay in it (`inject.py`);
`medevac run` keeps `train.py` running through that. Then, for contrast, the same storm without Medevac.
Ends 0 only when the job finished with the very parameters of a run that nothing disturbed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from medevac.sim.cluster_folder import make
from medevac.sim.storm import RANKS, Storm

HERE = Path(__file__).resolve().parent
STEPS = 200
PACE = ["--step-seconds", "0.1", "--save-every", "15", "--log-every", "5"]
LIMIT_SECONDS = 300.0
# Eight ranks share the cores of one machine: one thread each.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Story:
    """What is to happen, and where."""

    folder: Path
    seed: int
    fault: bool
    decoy: bool
    monitor: bool
    as_json: bool

    @property
    def plan(self) -> list[str]:
        """The options that make this story's cluster again."""
        flags = {"--no-fault": not self.fault, "--decoy": self.decoy}
        return ["--seed", str(self.seed), *(flag for flag, given in flags.items() if given)]

    def say(self, line: str = "") -> None:
        if not self.as_json:
            print(line, flush=True)


class Scene:
    """A cluster of its own with a job's folders beside it, and the injector at work on it."""

    def __init__(self, story: Story, name: str) -> None:
        self.folder = story.folder / name
        self.cluster, self.memory = self.folder / "cluster", self.folder / "mem"
        self.checkpoints = self.folder / "checkpoints"
        make(self.cluster, Storm.plan(story.seed, fault=story.fault, decoy=story.decoy))
        self._injector: subprocess.Popen[bytes] | None = None
        self._story = story

    def __enter__(self) -> Self:
        where = ["--memory", str(self.memory), "--checkpoint-dir", str(self.checkpoints)]
        command = [sys.executable, str(HERE / "inject.py"), str(self.cluster), *self._story.plan, *where]
        with (self.folder / "injector.log").open("wb") as log:
            self._injector = subprocess.Popen(command, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        if self._injector is not None:
            self._injector.kill()
            self._injector.wait()

    def train(self) -> list[str]:
        where = ["--cluster", str(self.cluster), "--memory", str(self.memory)]
        return [sys.executable, str(HERE / "train.py"), "--steps", str(STEPS), *PACE, *where]

    def final(self) -> dict[str, object]:
        """What the training came to, {} when it did not come to its end."""
        path = self.checkpoints / "final.json"
        return json.loads(path.read_bytes()) if path.is_file() else {}


def with_medevac(story: Story, scene: Scene) -> tuple[int, str]:
    """Run the job under Medevac; its exit code, and what it printed with --json."""
    command = [sys.executable, "-m", "medevac.cli.main", "run", "--policy", "demo", "--nproc", str(RANKS)]
    command += ["--cluster", str(scene.cluster), "--checkpoint-dir", str(scene.checkpoints)]
    command += ["--state-dir", str(scene.folder / "state"), "--html", str(story.folder / "story.html")]
    command += [flag for flag, given in (("--monitor", story.monitor), ("--json", story.as_json)) if given]
    run = subprocess.Popen(
        [*command, "--", *scene.train()],
        env=os.environ | ONE_THREAD,
        stdout=subprocess.PIPE if story.as_json else None,
        text=True,
    )
    try:
        printed, _ = run.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"demo: medevac run did not end within {LIMIT_SECONDS:.0f} s", file=sys.stderr)
        return stop(run), ""
    except KeyboardInterrupt:
        return stop(run), ""
    return run.returncode, printed or ""


def stop(run: subprocess.Popen[str]) -> int:
    """Ask `medevac run` to end its job and itself; never 0."""
    run.terminate()
    try:
        run.wait(30)
    except subprocess.TimeoutExpired:
        run.kill()
        run.wait()
    return run.returncode or 1


def undisturbed(folder: Path) -> str:
    """The parameters' hash of the same training in one process, with nothing happening to it."""
    command = [sys.executable, str(HERE / "train.py"), "--steps", str(STEPS), "--step-seconds", "0"]
    command += ["--checkpoint-dir", str(folder / "checkpoints")]
    subprocess.run(command, env=os.environ | ONE_THREAD, stdout=subprocess.DEVNULL, check=True, timeout=LIMIT_SECONDS)
    return str(json.loads((folder / "checkpoints" / "final.json").read_bytes())["parameters"])


def without_medevac(story: Story) -> bool:
    """The same storm, restarted from the newest checkpoint by hand; True when it ended finite."""
    with Scene(story, "without-medevac") as scene:
        command = [sys.executable, str(HERE / "without_medevac.py"), str(scene.cluster), "--restarts", "1"]
        done = subprocess.run(
            [*command, "--checkpoint-dir", str(scene.checkpoints), "--", *scene.train()],
            env=os.environ | ONE_THREAD,
            stdout=subprocess.DEVNULL if story.as_json else None,
            check=False,
            timeout=LIMIT_SECONDS,
        )
    return done.returncode == 0


def tell(story: Story, *, contrast: bool) -> int:
    """Play the story; 0 when the job recovered."""
    began = time.monotonic()
    story.say(f"seed {story.seed}: {RANKS} ranks train on a cluster of 2 racks, 4 nodes; all of it in {story.folder}")
    with Scene(story, "medevac") as scene:
        code, printed = with_medevac(story, scene)
    final, wanted = scene.final(), undisturbed(story.folder / "undisturbed")
    same = final.get("parameters") == wanted
    result: dict[str, object] = {
        "seed": story.seed,
        "recovered": code == 0 and same,
        "exit_code": code,
        "finite": final.get("finite"),
        "parameters": final.get("parameters"),
        "undisturbed": wanted,
    }
    story.say()
    story.say(f"trained to the end: {'yes' if final else 'no'}; parameters {verdict(final, same=same)}")
    if contrast and final and story.fault and not story.monitor:
        story.say("\nThe same storm without Medevac, restarted from the newest checkpoint:")
        result["without_medevac_finite"] = without_medevac(story)
    result["seconds"] = round(time.monotonic() - began, 1)
    html = story.folder / "story.html"
    told = html.is_file()
    result["html"] = str(html) if told else None
    if story.as_json:
        print(json.dumps(result | {"run": parsed(printed)}))
    story.say(f"\n{result['seconds']} s." + (f" The story with all its evidence: {html}" if told else ""))
    return 0 if result["recovered"] else 1


def verdict(final: dict[str, object], *, same: bool) -> str:
    if not final:
        return "none"
    if same:
        return "bit-equal to those of an undisturbed run"
    return "differ from those of an undisturbed run" if final["finite"] else "are NaN"


def parsed(printed: str) -> object:
    """What `medevac run --json` printed: one object, or one a line."""
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith(("{", "["))]
    return lines[0] if len(lines) == 1 else lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=7, help="moves GPUs, rack and times, and may take the spares away")
    parser.add_argument("--monitor", action="store_true", help="Medevac decides and records, and touches nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--no-contrast", action="store_true", help="leave out the run without Medevac")
    parser.add_argument("--no-fault", action="store_true", help="nothing happens")
    parser.add_argument("--decoy", action="store_true", help="only a GPU that the job does not use fails")
    parser.add_argument("--out", type=Path, help="an empty or new folder for everything (else a temporary one)")
    given = parser.parse_args()
    folder = given.out.absolute() if given.out else Path(tempfile.mkdtemp(prefix="medevac-demo-"))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        print(f"demo: {folder} is not an empty folder: choose another --out", file=sys.stderr)
        return 2
    story = Story(
        folder=folder,
        seed=given.seed,
        fault=not (given.no_fault or given.decoy),
        decoy=given.decoy,
        monitor=given.monitor,
        as_json=given.json,
    )
    return tell(story, contrast=not given.no_contrast)


if __name__ == "__main__":
    sys.exit(main())
