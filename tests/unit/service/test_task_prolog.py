"""What the TaskProlog tells a job's tasks."""

from __future__ import annotations

import subprocess
from pathlib import Path

PROLOG = Path(__file__).parents[3] / "deploy" / "slurm" / "task-prolog"


def told(folder: Path, **env: str) -> dict[str, str]:
    known = {
        "PATH": "/usr/bin:/bin",
        "MEDEVAC_POINTERS": str(folder / "pointers"),
        "SLURM_JOB_ID": "17",
        "SLURMD_NODENAME": "node3",
        "MEDEVAC_GPU": "GPU-1",
    }
    done = subprocess.run(["sh", str(PROLOG)], env=known | env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    lines = [line.removeprefix("export ").partition("=") for line in done.stdout.splitlines()]
    return {name: value for name, _, value in lines}  # the later over the earlier, as Slurm does


def pointer(folder: Path, attempt: int, step: int) -> None:
    (folder / "pointers").mkdir(exist_ok=True)
    (folder / "pointers" / "17").write_text(
        f"export MEDEVAC_JOB_ID=slurm-17.99\nexport MEDEVAC_ATTEMPT={attempt}\n"
        f"export MEDEVAC_CHECKPOINT_DIR={folder}/ck\nexport MEDEVAC_RESUME_FROM={folder}/ck/step_{step:08d}\n"
    )


def clean(folder: Path, step: int) -> None:
    (folder / "ck" / f"step_{step:08d}").mkdir(parents=True)
    (folder / "ck" / "latest_clean").symlink_to(f"step_{step:08d}")


def test_a_first_run_is_told_who_it_is(tmp_path: Path) -> None:
    pointer(tmp_path, 2, 40)  # of another job that had this number
    assert told(tmp_path) == {"MEDEVAC_JOB_ID": "slurm-17", "MEDEVAC_ATTEMPT": "1", "MEDEVAC_NODE": "node3"}
    assert told(tmp_path, SLURM_RESTART_COUNT="0")["MEDEVAC_ATTEMPT"] == "1"
    array = told(tmp_path, SLURM_ARRAY_JOB_ID="12", SLURM_ARRAY_TASK_ID="3")
    assert array["MEDEVAC_JOB_ID"] == "slurm-12_3"


def test_a_restarted_one_is_told_what_to_load(tmp_path: Path) -> None:
    pointer(tmp_path, 2, 40)
    found = told(tmp_path, SLURM_RESTART_COUNT="1")
    assert found["MEDEVAC_RESUME_FROM"] == f"{tmp_path}/ck/step_00000040"
    assert (found["MEDEVAC_ATTEMPT"], found["MEDEVAC_JOB_ID"]) == ("2", "slurm-17.99")


def test_a_run_that_nobody_wrote_for_loads_the_latest_clean(tmp_path: Path) -> None:
    pointer(tmp_path, 2, 40)
    clean(tmp_path, 60)
    found = told(tmp_path, SLURM_RESTART_COUNT="2")
    assert found["MEDEVAC_RESUME_FROM"] == f"{tmp_path}/ck/step_00000060"
    assert found["MEDEVAC_ATTEMPT"] == "3"


def test_and_never_one_that_was_judged_since(tmp_path: Path) -> None:
    clean(tmp_path, 60)
    lineage = tmp_path / "ck" / "medevac-lineage.jsonl"
    lineage.write_text('{"step":60,"state":"clean"}\n{"step":60,"state":"suspect"}\n{"step":6,"state":"clean"}\n')
    env = {"SLURM_RESTART_COUNT": "1", "MEDEVAC_CHECKPOINT_DIR": f"{tmp_path}/ck"}
    assert "MEDEVAC_RESUME_FROM" not in told(tmp_path, **env)
    with lineage.open("a") as out:
        out.write('{"step":60,"state":"clean"}\n')
    assert told(tmp_path, **env)["MEDEVAC_RESUME_FROM"] == f"{tmp_path}/ck/step_00000060"
