"""`medevac decode`: what it prints in each form, the filters, and the exit codes."""

from __future__ import annotations

import csv
import errno
import io
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jsonschema
import pytest

from medevac.cli.decode_filters import Filters, moment_of
from medevac.cli.decode_follow import show_as_they_come
from medevac.cli.exits import Exit
from medevac.cli.main import main
from medevac.cli.output import CommandError
from medevac.core.events import FaultSeen

ROOT = Path(__file__).resolve().parents[3]
LOG = """\
2026-03-01T02:00:00.000000+00:00 gpu07 kernel: NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.10  Release Build
2026-03-01T02:10:00.250000+00:00 gpu07 kernel: NVRM: GPU at PCI:0000:5e:00: GPU-11112222-3333-4444-5555-666677778888
2026-03-01T02:10:00.250000+00:00 gpu07 kernel: NVRM: Xid (PCI:0000:5e:00): 48, pid=4242, name=train, An uncorrectable \
double bit error (DBE) has been detected on GPU in the framebuffer at physAddr 0x1a2b3c4d0 partition 3, subpartition 0.
2026-03-01T02:10:00.300000+00:00 gpu07 kernel: NVRM: Xid (PCI:0000:5e:00): 63, pid='<unknown>', name=<unknown>, Row \
Remapper: New row (0x00000001a2b3c4d0) marked for remapping, reset gpu to activate.
2026-03-01T02:10:01.000000+00:00 gpu07 kernel: NVRM: Xid (PCI:0000:5e:00): 45, pid=4242, name=train, Ch 00000009
2026-03-01T05:00:00.000000+00:00 gpu08 kernel: NVRM: Xid (PCI:0000:3b:00): 31, pid=99, name=<b>bad, Ch 00000010
2026-03-01T05:10:00.000000+00:00 gpu08 sshd[7]: nothing to see here
"""


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "kern.log"
    path.write_text(LOG)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["decode", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def events(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, object]]:
    _, out, _ = run(capsys, *argv, "--json")
    return [json.loads(line) for line in out.splitlines()]


def test_table_in_a_pipe_is_one_line_an_incident(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, log)
    head, *rows = out.splitlines()
    assert code == Exit.FOUND
    assert err == ""
    assert head.split("\t")[:4] == ["when (UTC)", "severity", "node", "what"]
    assert [row.split("\t")[1] for row in rows] == ["critical", "warning"]
    assert "Xid 48 on 0000:5e:00.0" in rows[0]
    assert "GPU 0000:5e:00.0 on gpu07" in rows[0]
    assert "the job" in rows[1]


def test_nothing_found_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "quiet.log"
    path.write_text("Mar  1 10:00:00 gpu07 sshd[7]: session opened\n")
    assert run(capsys, str(path)) == (Exit.DONE, "", "")


def test_json_events_carry_all_fields(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = events(capsys, log)
    first = next(event for event in found if event["code"] == 48)
    wanted = {
        "kind": "xid",
        "file": log,
        "line": 3,
        "pci": "0000:5e:00.0",
        "pid": 4242,
        "process": "train",
        "at": "2026-03-01T02:10:00.250000Z",
        "node": "gpu07",
        "gpu_uuid": "GPU-11112222-3333-4444-5555-666677778888",
        "action": "WORKFLOW_XID_48",
        "severity": "critical",
        "role": "root",
    }
    assert {name: first[name] for name in wanted} == wanted
    assert str(first["raw"]).startswith("2026-03-01T02:10:00.250000+00:00 gpu07 kernel: NVRM: Xid")
    assert {event["incident"] for event in found if event["code"] in {48, 63, 45}} == {first["incident"]}
    assert [event["role"] for event in found if event["code"] == 45] == ["victim"]
    assert [event["incident"] for event in found if event["kind"] == "nvrm_info"] == [None, None]


@pytest.mark.parametrize(
    ("flags", "schema"), [((), "decode-event.schema.json"), (("--incidents",), "decode-incident.schema.json")]
)
def test_json_fits_the_documented_schema(
    flags: tuple[str, ...], schema: str, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    validator = jsonschema.Draft202012Validator(json.loads((ROOT / "docs" / schema).read_text()))
    objects = events(capsys, log, *flags)
    assert objects
    for one in objects:
        validator.validate(one)


def test_incidents_as_json(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = events(capsys, log, "--incidents")
    assert first["root"] == {
        "kind": "xid",
        "code": 48,
        "node": "gpu07",
        "pci": "0000:5e:00.0",
        "file": log,
        "line": 3,
    }
    assert first["blame"] == {"kind": "gpu", "node": "gpu07", "pci": "0000:5e:00.0"}
    assert (first["action_now"], first["kills_job"], first["audience"]) == ("DRAIN_AND_RESET", True, "operator")
    assert (second["blame"], second["audience"]) == ({"kind": "job", "node": None, "pci": None}, "tenant")


def test_csv_has_a_row_an_event(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, log, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["code"] for row in rows if row["kind"] == "xid"] == ["48", "63", "45", "31"]
    assert rows[3]["policy_action"] == "RESET_WHEN_IDLE (remap-stored)"
    assert json.loads(rows[3]["details"]) == {"row": "0x00000001a2b3c4d0", "state": "pending"}


def test_html_is_one_page_and_escapes_what_the_log_says(
    log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "<page>.html"
    code, out, _ = run(capsys, log, "--html", str(path))
    page = path.read_text()
    assert (code, out) == (Exit.FOUND, "")
    assert "Xid 48 on 0000:5e:00.0" in page
    assert "Z on gpu07</p>" in page
    assert "<b>bad" not in page
    assert "src=" not in page
    assert "href=" not in page


@pytest.mark.parametrize(
    ("flags", "codes"),
    [
        (("--code", "45"), [45]),
        (("--code", "45", "--code", "31"), [45, 31]),
        (("--node", "gpu08"), [31]),
        (("--since", "2026-03-01T04:00"), [31]),
        (("--until", "2026-03-01T04:00:00Z"), [48, 63, 45]),
        (("--severity", "critical"), [48]),
        (("--severity", "warning"), [48, 45, 31]),
    ],
)
def test_filters(flags: tuple[str, ...], codes: list[int], log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert [event["code"] for event in events(capsys, log, *flags) if event["kind"] == "xid"] == codes


def test_filtered_event_keeps_its_role(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert [event["role"] for event in events(capsys, log, "--code", "45")] == ["victim"]


def test_input_that_cannot_be_read_outranks_what_was_found(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "gone.log", log)
    assert code == Exit.UNREADABLE
    assert "Xid 48" in out
    assert err.startswith("medevac: gone.log: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--json", "--csv", "x"], "--json and --csv: choose one"),
        (["--since", "yesterday", "x"], "--since: 'yesterday' is no time"),
        (["--csv", "--incidents", "x"], "--csv gives events"),
        (["--since", "2026-03-02", "--until", "2026-03-01", "x"], "--since lies after --until"),
        (["--follow", "--csv", "x"], "leave out --csv, --incidents and --html"),
        (["--follow", "--html", "page.html", "x"], "leave out --csv, --incidents and --html"),
        (["--follow", "--incidents", "x"], "leave out --csv, --incidents and --html"),
    ],
)
def test_wrong_use(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *argv)
    assert code == Exit.USAGE
    assert said in err


def test_page_that_cannot_be_written_is_named(log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, log, "--html", str(tmp_path / "no" / "page.html"))
    assert code == Exit.USAGE
    assert "page.html: cannot be written" in err


def test_times_of_filters() -> None:
    assert moment_of("2026-03-01T10:00+01:00", "--since") == moment_of("2026-03-01T09:00", "--since") == 1772355600.0
    assert moment_of(None, "--since") is None
    with pytest.raises(CommandError, match="--until"):
        moment_of("10 o'clock", "--until")


def test_followed_events_are_printed_with_what_is_known(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    seen = [
        FaultSeen(at=1.0, kind="xid", code=79, node="n", pci="0000:3b:00.0"),
        FaultSeen(at=2.0, kind="xid", code=45, node="n", pci="0000:5e:00.0"),
        FaultSeen(at=3.0, kind="ib_link", node="n", details={"state": "ACTIVE"}),
    ]
    assert show_as_they_come(seen, Filters(), json=True) == Exit.FOUND
    printed = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert [one["role"] for one in printed] == ["alone", "victim", "alone"]
    assert printed[0]["incident"] == printed[1]["incident"]
    assert printed[2]["incident"] is None
    assert show_as_they_come(seen[2:], Filters(), json=False) == Exit.DONE


def test_pipe_is_followed_to_its_end(log: str) -> None:
    argv = [sys.executable, "-m", "medevac.cli.main", "decode", "--follow", "--json"]
    done = subprocess.run(argv, input=Path(log).read_bytes(), capture_output=True, check=False, timeout=120)
    assert done.returncode == Exit.FOUND
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["code"] for one in printed if one["kind"] == "xid"] == [48, 63, 45, 31]
    assert [one["role"] for one in printed if one["code"] == 45] == ["victim"]


def test_growing_file_is_followed_and_interrupted_quietly(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text("")
    argv = [sys.executable, "-m", "medevac.cli.main", "decode", "--follow", str(path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        waiting = threading.Timer(60, process.kill)
        waiting.start()
        writing = threading.Timer(0.2, write_until, (path, process))
        writing.start()
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        waiting.cancel()
        writing.join()
    assert "Xid 31" in line
    assert err == ""
    assert process.returncode == Exit.DONE


def write_until(path: Path, process: subprocess.Popen[str]) -> None:
    """Write a fault again and again until the reader, who may not have opened the file yet, is done."""
    while process.poll() is None:
        with path.open("a") as out:
            out.write("Mar  1 10:00:00 n kernel: NVRM: Xid (PCI:0000:3b:00): 31, pid=9, name=x, Ch 00000010\n")
        time.sleep(0.2)


def test_log_that_may_not_be_followed_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "--follow", str(tmp_path / ("x" * 300)))
    assert code == Exit.UNREADABLE
    assert err.count("\n") == 1


@pytest.mark.parametrize("argv", [["-"], ["--json", "-"], ["-", "--json"]])
def test_a_dash_is_stdin(argv: list[str]) -> None:
    command = [sys.executable, "-m", "medevac.cli.main", "decode", *argv]
    done = subprocess.run(command, input=LOG, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (Exit.FOUND, "")
    assert "gpu07" in done.stdout


def test_a_word_that_is_no_option_and_no_file_is_wrong_use(capsys: pytest.CaptureFixture[str], log: str) -> None:
    code, out, err = run(capsys, "--jsn", log)
    assert (code, out) == (Exit.USAGE, "")
    assert err == "medevac: unknown option --jsn (see: medevac decode --help)\n"


BROKEN = """\
Mar  1 02:10:00 gpu07 kernel: NVRM: Xid (PCI:0000:65:00): invalid
Mar  1 02:10:01 gpu07 kernel: NVRM: Xid: 31
Mar  1 02:10:02 gpu07 kernel: nvidia-nvswitch0: SXid (PCI:0000:c0:00.0): abc
"""


def test_a_fault_that_cannot_be_read_is_counted_and_named_and_no_event(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kern.log"
    path.write_text(BROKEN)
    code, out, err = run(capsys, str(path), "--json")
    assert (code, out) == (Exit.FOUND, "")
    assert err.startswith(f"medevac: 3 lines look like a GPU fault but cannot be read: {path}:1, {path}:2, {path}:3")
    code, out, err = run(capsys, str(path), "--incidents")
    (fact,) = json.loads(out)["facts"]
    assert (code, fact["kind"], fact["code"], fact["count"], err) == (Exit.FOUND, "unread", None, 3, "")


@pytest.mark.parametrize(
    ("command", "text", "said"),
    [
        ("diagnose", "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", b"out of memory"),
        ("check-log", "nothing", b"-: no progress seen in 1 lines"),
        ("trace", '{"entries": [], "rank": 3}', b"1 dump read."),
    ],
)
def test_a_dash_is_stdin_for_the_commands_that_read_a_log(command: str, text: str, said: bytes) -> None:
    argv = [sys.executable, "-m", "medevac.cli.main", command, "-"]
    done = subprocess.run(argv, input=text.encode() + b"\n", capture_output=True, check=False, cwd=ROOT)
    assert said in done.stdout
    assert b"option" not in done.stderr


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"], ["--incidents"]])
def test_no_room_for_the_output_is_one_line(log: str, form: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        argv = [sys.executable, "-m", "medevac.cli.main", "decode", log, *form]
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, check=False, cwd=ROOT)
    assert done.returncode == Exit.USAGE
    assert done.stderr == b"medevac: the output could not be written: No space left on device\n"


def test_no_room_for_temporary_files_is_one_line(
    log: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("TMPDIR", "/small")
    monkeypatch.setattr("medevac.decode.output_spool.Spool.add", full)
    code, out, err = run(capsys, log, "--json")
    assert (code, out) == (Exit.USAGE, "")
    assert err == "medevac: no room in /small for what waits till all is read: No space left on device: set TMPDIR\n"
