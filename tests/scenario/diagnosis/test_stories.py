"""Evidence joined: kernel log, scheduler record, flight recorder, restarts inside the job, the commands."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from medevac.cli.main import main
from medevac.core.diagnose import diagnose
from medevac.core.diagnose_case import Diagnosis
from medevac.decode.joblog_case import build_case, read_log
from medevac.decode.joblog_kernel import kernel_clues
from medevac.decode.joblog_record import expand_nodes, read_record

NAN = b"[rank3]: step 40 loss: nan grad_norm: nan\n"
XID = "Mar  3 10:20:00 n7 kernel: NVRM: Xid (PCI:0000:3b:00): 95, pid=77, name=python, Uncontained ECC error\n"
RECORD = """JobId=71 JobName=pretrain
   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)
   StartTime=2026-03-03T09:00:00 EndTime=2026-03-03T10:21:00 Deadline=N/A
   NodeList=n[5-8] BatchHost=n5
"""


def told(log: bytes, *extra: Any) -> Diagnosis:
    return diagnose(build_case([read_log("job.log", [log])], extra))


def test_nan_is_numerical_until_a_gpu_of_the_job_had_a_memory_error() -> None:
    assert told(NAN).cause == "numerical"
    said = told(NAN, *kernel_clues("kmsg", [XID.encode()]))
    assert said.cause == "hardware"
    assert (said.suspects[0].node, said.suspects[0].gpu) == ("n7", "0000:3b:00.0")
    assert said.advice == "restart-excluding"


def test_a_kernel_fault_of_another_node_or_day_is_not_the_jobs() -> None:
    record = read_record("job.txt", RECORD)
    assert kernel_clues("kmsg", [XID.replace(" n7 ", " n9 ").encode()], record=record) == ()
    day = XID.replace("Mar  3", "2026-03-05T").replace("T 10", "T10").encode()
    assert kernel_clues("kmsg", [day], record=record) == ()
    iso = XID.replace("Mar  3 10:20:00", "2026-03-03T10:20:00").encode()
    assert len(kernel_clues("kmsg", [iso], record=record)) == 1


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (RECORD.replace("FAILED", "NODE_FAIL"), "hardware"),
        (RECORD.replace("FAILED", "TIMEOUT"), "preemption"),
        (RECORD.replace("FAILED", "OUT_OF_MEMORY"), "out-of-memory"),
        (RECORD, "unknown"),
        ("JobID|State|Start|End\n9|PREEMPTED|2026-03-03T09:00:00|2026-03-03T10:00:00\n9.0|CANCELLED||\n", "preemption"),
        ("JobID|State|NodeList\n9|CANCELLED by 1001|n[1-2]\n9.batch|CANCELLED|n1\n", "unknown"),
    ],
)
def test_a_scheduler_record_is_evidence(text: str, cause: str) -> None:
    assert told(b"step 1 loss: 2\n", *read_record("job.txt", text).clues).cause == cause


def test_nodes_of_a_record() -> None:
    assert expand_nodes("n[08-10,12],login1") == {"n08", "n09", "n10", "n12", "login1"}
    assert read_record("job.txt", RECORD).nodes == {"n5", "n6", "n7", "n8"}


def test_another_text_is_no_record() -> None:
    with pytest.raises(ValueError, match=r"job\.txt"):
        read_record("job.txt", "hello")


def test_a_restart_inside_the_job_that_held_is_no_failure() -> None:
    steps = "".join(f"[rank0]: step: {step}  loss:  2.5\n" for step in range(1, 9))
    died = (
        "[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
        "[default] Worker group FAILED. 2/3 attempts left; will restart worker group\n"
    )
    assert told((steps + died + steps).encode()).cause == "unknown"
    assert told((steps + died).encode()).cause == "hardware"


def test_colours_and_carriage_returns_hide_nothing() -> None:
    bar = b"\r 1%|#| 1/99 [00:01<01:00]\r 2%|#| 2/99 [00:02<01:00]\r"
    log = bar + b"\x1b[31m[rank6]: \x1b[1mOSError: [Errno 28] No space left on device\x1b[0m\n"
    said = told(log)
    assert said.cause == "storage"
    assert said.root[0].rank == 6
    assert "\x1b" not in said.root[0].text


def test_blocks_of_any_size_give_the_same() -> None:
    log = NAN * 3 + b"srun: error: n3: task 9: Out Of Memory\n" + b"x" * 9000 + b"\n" + NAN
    whole = read_log("a", [log]).log
    for size in (1, 7, 64, 5000):
        parts = [log[at : at + size] for at in range(0, len(log), size)]
        assert read_log("a", parts).log == whole


def test_the_command_prints_story_and_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "job.log.gz"
    log.write_bytes(gzip.compress(b"[rank2]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"))
    assert main(["diagnose", str(log)]) == 1
    assert "hardware (confidence 9" in capfd.readouterr().out
    assert main(["diagnose", str(log), "--json"]) == 1
    found = json.loads(capfd.readouterr().out)
    assert (found["class"], found["symptom"], found["abstained"]) == ("hardware", "crash", False)
    assert found["suspects"] == [{"node": "", "gpu": "", "rank": 2, "why": "cuda-ecc"}]
    assert found["root"][0]["line"] == 1


def test_one_unreadable_input_costs_no_other(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(NAN)
    assert main(["diagnose", str(tmp_path / "gone.log"), str(log), "--json"]) == 3
    out = capfd.readouterr()
    assert json.loads(out.out)["class"] == "numerical"
    assert "gone.log" in out.err


def test_a_clean_log_finds_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "job.log"
    log.write_text("step 9/10 loss: 2\nstep 10/10 loss: 2\ndone\n")
    assert main(["diagnose", str(log)]) == 0
    assert "No failure is seen" in capfd.readouterr().out


def test_signatures_of_ones_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        '[[signature]]\nid = "filer"\ncontains = "FILER9"\nrole = "root"\nclass = "storage"\nweight = 90\n'
        'symptom = "crash"\nnames = "none"\nsource = "our runbook"\nexample = "E-FILER9 gone"\n'
    )
    log = tmp_path / "job.log"
    log.write_text("E-FILER9 gone\n")
    assert main(["diagnose", str(log), "--signature-file", str(own), "--json"]) == 1
    assert json.loads(capfd.readouterr().out)["class"] == "storage"
    own.write_text("[[signature]]\nid = 3\n")
    assert main(["diagnose", str(log), "--signature-file", str(own)]) == 2
    assert "own.toml" in capfd.readouterr().err


def test_flight_recorders_name_the_rank_that_is_awaited(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for rank, last in enumerate((9, 9, 8)):
        entries = [
            {"pg_id": 0, "collective_seq_id": seq, "profiling_name": "nccl:all_reduce", "state": state}
            for seq in range(1, last + 1)
            for state in ["started" if seq == 9 else "completed"]
        ]
        dump = {"version": "2.4", "pg_config": {"0": {"ranks": "[0, 1, 2]"}}, "entries": entries}
        (tmp_path / f"nccl_trace_rank_{rank}").write_text(json.dumps(dump))
    log = tmp_path / "job.txt"
    log.write_text("[rank0]: heartbeat monitor timed out\n")
    assert main(["trace", str(tmp_path / "nccl_trace_rank_0"), str(tmp_path / "nccl_trace_rank_2")]) == 1
    assert "rank 2: did not come to all_reduce number 9" in capfd.readouterr().out
    recorder = tmp_path / "fr"
    recorder.mkdir()
    for path in list(tmp_path.glob("nccl_*")):
        path.rename(recorder / path.name)
    assert main(["diagnose", str(log), "--flight-recorder", str(recorder), "--json"]) == 1
    found = json.loads(capfd.readouterr().out)
    assert (found["symptom"], found["suspects"][0]["rank"]) == ("hang", 2)
    assert main(["trace", str(tmp_path / "none")]) == 2


def test_check_log_says_when_a_hang_is_noticed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "job.log"
    rows = [f"2026-01-01 00:00:{step + 10:02d} step {step}/500 loss: 2.0" for step in range(1, 31)]
    log.write_text("\n".join(rows))
    assert main(["check-log", str(log)]) == 0
    assert "a hang is noticed after 5 s" in capfd.readouterr().out
    assert main(["check-log", str(log), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["last"] == 30
    log.write_text("nothing here\n")
    assert main(["check-log", str(log)]) == 1
    assert main(["check-log", str(log), "--progress-regex", "("]) == 2
    assert main(["check-log", str(tmp_path / "gone")]) == 3
