"""From an order to a plan with each rank's environment, and from a plan to a keeper at work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from medevac.adapters.schedulers.local import processes
from medevac.adapters.schedulers.local.files import Attempt, Plan, PlannedRank, make, socket_path
from medevac.adapters.schedulers.spec import JobSpec
from medevac.core.actions import StartAttempt
from medevac.core.events import Node, RankPlace
from medevac.core.seal import step_folder
from medevac.ports.errors import OutcomeUnknown, Unavailable

START_SECONDS = 60.0
"""A keeper needs a tenth of a second; a machine that swaps needs longer."""

HANDOVER_SECONDS = 5.0
"""A keeper that stayed answers at once."""

_IN_JOB = (
    "MEDEVAC_JOB_ID",
    "MEDEVAC_ATTEMPT",
    "MEDEVAC_RESUME_FROM",
    "MEDEVAC_SOCKET",
    "MEDEVAC_CHECKPOINT_DIR",
    "MEDEVAC_LINEAGE",
)


def plan(spec: JobSpec, action: StartAttempt, nodes: Mapping[str, Node], state: Path, shm: Path) -> Plan:
    """What `action` means on these nodes."""
    return Plan(
        job=spec.job,
        attempt=action.attempt,
        action=action.id,
        at=time.time(),
        command=spec.command,
        cwd=spec.cwd or os.path.expanduser("~"),  # noqa: PTH111 - Path.home() raises where there is none
        state=str(state),
        ranks=tuple(
            PlannedRank(
                place=place,
                env=spec.env
                | _job_variables(spec, action, state)
                | _place_variables(place, action.ranks, nodes[place.node])
                | (_rank_variables(place, action.ranks) if spec.ranks else _ONE_PROCESS)
                | ({} if spec.gpus_per_rank else {"MEDEVAC_AGENTS": str(len(action.ranks))}),
            )
            for place in action.ranks
        ),
        resume_from=action.resume_from,
        shm=str(shm),
        warm=spec.policy.warm,
        warm_imports=spec.policy.warm_imports,
    )


_ONE_PROCESS = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""torchrun keeps one store for all of its own restarts; new ranks read the dead ones' addresses in it and hang
(pytorch/pytorch#135712). With this variable each restart gets a store of its own."""


def _job_variables(spec: JobSpec, action: StartAttempt, state: Path) -> dict[str, str]:
    found = {
        "MEDEVAC_STATE_DIR": str(state),
        "MEDEVAC_JOB_ID": spec.job,
        "MEDEVAC_ATTEMPT": str(action.attempt),
        "MEDEVAC_SOCKET": str(socket_path(state, spec.job)),
    }
    # Buffered output comes out minutes late, and never from a killed process.
    if "PYTHONUNBUFFERED" not in spec.env:
        found["PYTHONUNBUFFERED"] = "1"
    if spec.policy.warm:
        found["MEDEVAC_WARM"] = "1"  # for a launcher of ranks
    if spec.checkpoint_dir:
        found["MEDEVAC_CHECKPOINT_DIR"] = spec.checkpoint_dir
        if spec.policy.lineage == "none":
            found["MEDEVAC_LINEAGE"] = "none"
        if action.resume_from is not None:
            found["MEDEVAC_RESUME_FROM"] = str(Path(spec.checkpoint_dir) / step_folder(action.resume_from))
    return found


def _place_variables(place: RankPlace, places: Sequence[RankPlace], node: Node) -> dict[str, str]:
    found = {"MEDEVAC_NODE": node.name}
    gpus = {gpu.uuid: gpu for gpu in node.gpus}
    if place.gpus:
        found["MEDEVAC_GPU"] = place.gpus[0]
        found["MEDEVAC_PCI"] = gpus[place.gpus[0]].pci
    if len(place.gpus) > 1:  # for a process that starts ranks of its own: theirs by local rank
        found["MEDEVAC_GPUS"] = ",".join(place.gpus)
        found["MEDEVAC_PCIS"] = ",".join(gpus[uuid].pci for uuid in place.gpus)
    if gpus:
        # All of the job's GPUs of the node, by local rank: a script that takes device LOCAL_RANK gets its own.
        local = sorted((other for other in places if other.node == node.name), key=lambda other: other.local_rank)
        mine = dict.fromkeys(uuid for other in local for uuid in other.gpus)
        found["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpus[uuid].index) for uuid in mine)
        found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as NVML counts; CUDA's own order is by speed
    return found


def _rank_variables(place: RankPlace, places: Sequence[RankPlace]) -> dict[str, str]:
    return {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(len(places)),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(sum(other.node == place.node for other in places)),
    }


def write(attempt: Attempt, plan: Plan) -> None:
    """Write the plan, unless a keeper has taken one already: a caller before us may have been killed on the way."""
    make(attempt.folder)
    while True:
        with attempt.lock(wait=False) as held:
            if held and not attempt.keeping and not attempt.ended:
                attempt.save(plan)
            if held or attempt.keeping:
                return
        time.sleep(0.01)


def launch(attempt: Attempt) -> None:
    """Have a keeper run the attempt; returns when its ranks are started. Safe to repeat: only one keeper gets it.

    Raises `Unavailable` with the keeper's last words when it could not start, `OutcomeUnknown` when it did not answer.
    """
    if _handed_over(attempt):
        return
    environ = {name: value for name, value in os.environ.items() if name not in _IN_JOB}
    command = [sys.executable, "-P", "-m", "medevac.adapters.schedulers.local.keeper", str(attempt.folder)]
    log = attempt.folder / "keeper.log"
    try:
        with log.open("ab") as output:
            done = subprocess.run(
                command,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                timeout=START_SECONDS,
                check=False,
            )
    except subprocess.TimeoutExpired as problem:
        raise OutcomeUnknown(f"{attempt.folder}: the keeper did not start within {START_SECONDS:.0f} s") from problem
    if done.returncode and not attempt.keeping:
        words = log.read_text(errors="replace").strip().splitlines()
        raise Unavailable(f"{log}: the keeper could not start: {words[-1] if words else 'it said nothing'}")
    _await_keeper(attempt)


def _handed_over(attempt: Attempt) -> bool:
    """Whether the keeper of the attempt before, which stayed with a warm process, has taken this one."""
    before = Attempt(attempt.folder.with_name(str(attempt.number - 1)))
    keeping = before.keeping
    if keeping is None or keeping.warm is None or not before.ended:
        return False
    deadline = time.monotonic() + HANDOVER_SECONDS
    if keeper := processes.alive(keeping.process):
        processes.send(keeper, signal.SIGUSR1)
    while time.monotonic() < deadline and processes.alive(keeping.process) and not attempt.ended:
        if (mine := attempt.keeping) and mine.ranks:
            return True
        time.sleep(0.005)
    return False


def _await_keeper(attempt: Attempt) -> None:
    """Another keeper may hold the attempt and not have said so yet."""
    deadline = time.monotonic() + START_SECONDS
    while not (attempt.keeping or attempt.ended):
        if time.monotonic() > deadline:
            raise OutcomeUnknown(f"{attempt.folder}: no keeper has taken the attempt")
        time.sleep(0.02)
