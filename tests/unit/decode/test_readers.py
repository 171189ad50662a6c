"""Inputs: every packing gives the same events; what cannot be read is named and the rest is done."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import sys
import tarfile
from pathlib import Path

import pytest

from medevac.core.events import FaultSeen
from medevac.decode import files
from medevac.decode.files import Options, decode_files
from medevac.decode.readers import Unreadable

LOG = b"""Mar  1 10:02:03 gpu-1 systemd[1]: Started Session 1 of user ops.
Mar  1 10:02:04 gpu-1 kernel: NVRM: GPU at PCI:0000:3b:00: GPU-0a1b2c3d-0000-1111-2222-333344445555
Mar  1 10:02:04 gpu-1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python3, GPU has fallen off the bus.
Mar  1 10:02:05 gpu-1 kernel: mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN
"""
FACTS = [("nvrm_info", None, 2), ("xid", 79, 3), ("ib_link", None, 4)]


def facts(events: list[FaultSeen]) -> list[tuple[str, int | None, int]]:
    return [(event.kind, event.code, event.line) for event in events]


def read(*paths: Path | str, **options: object) -> list[FaultSeen]:
    return list(decode_files([str(path) for path in paths], options=Options(**options)))  # type: ignore[arg-type]


def zstd(data: bytes) -> bytes:
    return pytest.importorskip("zstandard").ZstdCompressor().compress(data)  # type: ignore[no-any-return]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, bz2.compress, zstd])
def test_packed_logs_read_as_plain_ones(tmp_path: Path, pack: object) -> None:
    path = tmp_path / "kern.log"  # told by its bytes, not its name
    path.write_bytes(pack(LOG))  # type: ignore[operator]
    events = read(path)
    assert facts(events) == FACTS
    assert {event.file for event in events} == {str(path)}
    assert events[1].gpu == "GPU-0a1b2c3d-0000-1111-2222-333344445555"


def test_a_gzip_of_several_members_and_zero_padding(tmp_path: Path) -> None:
    path = tmp_path / "kern.log.gz"
    path.write_bytes(gzip.compress(LOG) + gzip.compress(LOG) + b"\0" * 512)
    assert facts(read(path)) == FACTS + [(kind, code, line + 4) for kind, code, line in FACTS]


def tar_of(**members: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1775000000
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def test_a_tar_of_logs_in_any_packing(tmp_path: Path) -> None:
    path = tmp_path / "sosreport.tar.xz"
    binary = b"LPKSHHRH" + b"\0" * 100
    path.write_bytes(
        lzma.compress(tar_of(plain=LOG, packed=gzip.compress(LOG), empty=b"", **{"system.journal": binary}))
    )
    events = read(path)
    assert facts(events) == FACTS * 2
    assert [event.file for event in events][::3] == [f"{path}:plain", f"{path}:packed"]
    assert events[0].at == 1772359324.0  # the year by the member's own time


def test_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(LOG))))
    assert facts(read("-")) == FACTS


def test_what_cannot_be_read_is_named_and_the_rest_is_done(tmp_path: Path) -> None:
    good, cut, journal = tmp_path / "a.log", tmp_path / "b.gz", tmp_path / "c.journal"
    good.write_bytes(LOG)
    cut.write_bytes(gzip.compress(LOG * 2000)[:-200])
    journal.write_bytes(b"LPKSHHRH" + b"\0" * 100)
    problems: list[Unreadable] = []
    events = read(tmp_path / "none.log", cut, tmp_path, journal, good, unreadable=problems.append)
    assert facts(events)[-3:] == FACTS
    assert len(events) > 3  # what came before the cut
    assert [problem.name for problem in problems] == [
        str(path) for path in (tmp_path, tmp_path / "none.log", cut, journal)
    ]
    assert all(problem.name in str(problem) and problem.why for problem in problems)


def test_by_default_an_unreadable_input_raises(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=r"none\.log: no such file"):
        read(tmp_path / "none.log")


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"\x1f\x8b\x08\x00garbage", "gz"),
        (b"\xfd7zXZ\0garbage", "xz"),
        (b"BZh9garbage", "bz2"),
        (b"\x28\xb5\x2f\xfdgarb", "z"),
    ],
)
def test_damaged_packing_is_an_unreadable_input(tmp_path: Path, head: bytes, why: str) -> None:
    path = tmp_path / f"damaged.{why}"
    path.write_bytes(head * 3)
    problems: list[Unreadable] = []
    assert read(path, unreadable=problems.append) == []
    assert [problem.name for problem in problems] == [str(path)]


def test_a_damaged_member_does_not_hide_those_after_it(tmp_path: Path) -> None:
    path = tmp_path / "report.tar"
    members = {"a.gz": gzip.compress(LOG * 2000)[:-200], "b.zip": b"PK\x03\x04" + bytes(600), "c.log": LOG}
    path.write_bytes(tar_of(**members))
    problems: list[Unreadable] = []
    events = read(path, unreadable=problems.append)
    assert facts(events)[-3:] == FACTS
    assert events[-1].file == f"{path}:c.log"
    assert [problem.name for problem in problems] == [f"{path}:a.gz", f"{path}:b.zip"]


def test_a_gzip_with_a_wrong_check_is_read_to_its_end(tmp_path: Path) -> None:
    path, data = tmp_path / "kern.log.gz", bytearray(gzip.compress(LOG))
    data[-6] ^= 0xFF  # of the check that follows the data
    path.write_bytes(data)
    problems: list[Unreadable] = []
    assert facts(read(path, unreadable=problems.append)) == FACTS
    assert [problem.name for problem in problems] == [str(path)]


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(gzip.compress(LOG)),
        gzip.compress(lzma.compress(bz2.compress(LOG))),
        b"\xef\xbb\xbf" + LOG,
        gzip.compress(b"\xef\xbb\xbf" + LOG),
    ],
)
def test_packed_twice_or_behind_a_byte_order_mark(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "kern.log"
    path.write_bytes(data)
    events = read(path)
    assert facts(events) == FACTS
    assert {event.node for event in events} == {"gpu-1"}


def test_a_zstd_that_begins_with_a_frame_without_data(tmp_path: Path) -> None:
    path = tmp_path / "kern.log.zst"
    path.write_bytes(b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + zstd(LOG))
    assert facts(read(path)) == FACTS


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"PK\x03\x04" + LOG, "zip"),
        (b"\x04\x22\x4d\x18" + LOG, "lz4cat"),
        (b"\x1f\x9d" + LOG, "zcat"),
        (LOG.decode().encode("utf-16"), "iconv"),
    ],
)
def test_what_is_not_read_is_said_with_what_to_do(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "kern"
    path.write_bytes(data)
    with pytest.raises(Unreadable, match=why):
        read(path)


def test_a_pattern_that_stands_for_folders_too(tmp_path: Path) -> None:
    for name in ("logs/kern.log", "logs/deep/er.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(LOG)
    os.mkfifo(tmp_path / "logs" / "pipe")  # would be waited for
    assert len(read(tmp_path / "logs" / "**")) == 6
    assert len(read(tmp_path / "lo*", recursive=True)) == 6
    problems: list[Unreadable] = []
    assert read(tmp_path / "lo*", unreadable=problems.append) == []
    assert "give -r" in str(problems[0])


@pytest.mark.parametrize("name", ["", "x" * 300])
def test_a_name_that_can_be_no_file_is_an_unreadable_input(name: str) -> None:
    problems: list[Unreadable] = []
    assert read(name, recursive=True, unreadable=problems.append) == []
    assert [problem.name for problem in problems] == [name]


def test_folders_and_globs(tmp_path: Path) -> None:
    for name in ("kern.log", "kern.log.1", "deep/er.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(LOG)
    assert len(read(tmp_path / "kern.log*")) == 6
    assert len(read(tmp_path, tmp_path / "kern.log", recursive=True)) == 9


def test_progress_counts_the_stored_bytes(tmp_path: Path) -> None:
    path = tmp_path / "kern.log.gz"
    path.write_bytes(gzip.compress(LOG * 50_000))
    done: list[int] = []
    assert len(read(path, progress=done.append)) == 150_000
    assert sum(done) == path.stat().st_size


def test_a_file_that_grows_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_bytes(LOG * 20_000)  # several blocks
    events = decode_files([str(path)], options=Options())
    next(events)
    with path.open("ab") as more:
        more.write(LOG)
    assert sum(1 for _ in events) in {59_999, 60_002}


def test_a_file_that_vanishes_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_bytes(LOG * 20_000)
    events = decode_files([str(path)], options=Options())
    next(events)
    path.unlink()
    assert sum(1 for _ in events) == 59_999


def test_a_file_that_is_cut_short_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_bytes(LOG * 20_000)
    events = decode_files([str(path)], options=Options())
    next(events)
    os.truncate(path, 0)
    assert sum(1 for _ in events) < 60_000


def test_several_files_at_once_give_the_same_in_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"node{n}.log" for n in range(3)]
    for n, path in enumerate(paths):
        path.write_bytes(LOG.replace(b"gpu-1", b"gpu-%d" % n) * 400)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(LOG * 100)[:-20])
    paths.insert(1, tmp_path / "cut.gz")
    problems: list[Unreadable] = []
    done: list[int] = []
    one = read(*paths, jobs=1, unreadable=problems.append)
    monkeypatch.setattr(files, "_WORTH_A_PROCESS", 1)
    two = read(*paths, jobs=2, unreadable=problems.append, progress=done.append)
    assert one == two
    assert len(one) >= 3600
    assert [problem.name for problem in problems] == [str(tmp_path / "cut.gz")] * 2
    assert sum(done) == sum(path.stat().st_size for path in paths)


def test_a_uuid_told_in_one_file_names_the_gpu_in_the_next(tmp_path: Path) -> None:
    lines = LOG.splitlines(keepends=True)
    (tmp_path / "kern.log.1").write_bytes(lines[1])
    (tmp_path / "kern.log").write_bytes(lines[2])
    events = read(tmp_path / "kern.log.1", tmp_path / "kern.log")
    assert events[1].gpu == "GPU-0a1b2c3d-0000-1111-2222-333344445555"


def entry(message: bytes, transport: str, name: str) -> bytes:
    text = (
        b"MESSAGE=" + message if b"\n" not in message else b"MESSAGE\n" + len(message).to_bytes(8, "little") + message
    )
    fields = (
        f"__CURSOR=s=1;i=2\n__REALTIME_TIMESTAMP=1772359323000000\n_HOSTNAME=gpu-9\n"
        f"_TRANSPORT={transport}\nSYSLOG_IDENTIFIER={name}\n"
    )
    return fields.encode() + text + b"\n\n"


XID = b"NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python3, GPU has fallen off the bus."


def test_a_journal_in_export_format(tmp_path: Path) -> None:
    path = tmp_path / "journal.export"
    long = b"NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) has\nNVRM: fallen off the bus and"
    path.write_bytes(entry(XID, "kernel", "kernel") + entry(XID, "stdout", "trainer") + entry(long, "kernel", "kernel"))
    events = read(path)
    assert facts(events) == [("xid", 79, 6), ("unread", 79, 13), ("fell_off", 79, 20)]
    assert {(event.node, event.at) for event in events} == {("gpu-9", 1772359323.0)}


def test_a_journal_in_json(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    record = {
        "MESSAGE": XID.decode(),
        "_TRANSPORT": "kernel",
        "_HOSTNAME": "gpu-9",
        "__REALTIME_TIMESTAMP": "1772359323000000",
    }
    path.write_text("\n".join(json.dumps(record | {"n": n}) for n in range(3)))
    assert facts(read(path)) == [("xid", 79, 1), ("xid", 79, 2), ("xid", 79, 3)]


@pytest.mark.parametrize(
    "record",
    [
        {"log": "{}\n", "stream": "stdout", "time": "2026-03-01T10:02:03Z"},
        {"@timestamp": "2026-03-01T10:02:03.000Z", "message": "{}", "host": {"name": "gpu-9"}},
        {"timestamp": 1772359323, "host": "gpu-9", "short_message": "{}"},
        {"ts": 1772359323000, "line": "{}", "kubernetes": {"host": "gpu-9"}},
        {"date": 1772359323.0, "log": "Mar  1 10:02:03 gpu-9 kernel: {}"},
    ],
)
def test_what_log_shippers_wrap(tmp_path: Path, record: dict[str, object]) -> None:
    path = tmp_path / "shipped.log"
    wrapped = {
        name: value.replace("{}", XID.decode()) if isinstance(value, str) else value for name, value in record.items()
    }
    path.write_text(json.dumps(wrapped) + "\n")
    (event,) = read(path)
    assert (event.kind, event.code, event.at) == ("xid", 79, 1772359323.0)
    assert event.node in {"", "gpu-9"}


def test_a_journal_message_as_numbers_and_fields_that_are_null(tmp_path: Path) -> None:
    """journalctl prints what is not printable UTF-8 as numbers, and null for a field of over 4096 bytes."""
    path = tmp_path / "journal.json"
    record = {"_TRANSPORT": "kernel", "_HOSTNAME": "gpu-9", "__REALTIME_TIMESTAMP": "1772359323000000"}
    numbers = list(b"\x1b[31m" + XID.replace(b"python3", b"p\xffth") + b"\x1b[0m")
    records = [
        record | {"MESSAGE": numbers},
        record | {"MESSAGE": None, "NOTE": XID.decode()},
        record | {"MESSAGE": numbers, "_HOSTNAME": None, "__REALTIME_TIMESTAMP": None, "_PID": None},
    ]
    path.write_text("\n".join(json.dumps(one, separators=(",", ":")) for one in records))
    events = read(path)
    assert facts(events) == [("xid", 79, 1), ("xid", 79, 3)]
    assert [(event.process, event.node, event.at) for event in events] == [
        ("p\ufffdth", "gpu-9", 1772359323.0),
        ("p\ufffdth", "", 0.0),
    ]


@pytest.mark.parametrize(
    ("pack", "readable"), [(gzip.compress, FACTS), (lzma.compress, FACTS), (bz2.compress, FACTS), (zstd, [])]
)  # zstd unpacks whole blocks only
def test_a_small_packed_log_that_is_cut_is_read_as_far_as_it_goes(
    tmp_path: Path, pack: object, readable: list[object]
) -> None:
    path = tmp_path / "kern.log"
    path.write_bytes(pack(LOG)[:-8])  # type: ignore[operator]
    problems: list[Unreadable] = []
    assert facts(read(path, unreadable=problems.append)) == readable
    assert [problem.name for problem in problems] == [str(path)]


def test_a_log_that_begins_in_the_middle_of_a_panic(tmp_path: Path) -> None:
    path = tmp_path / "dmesg-ramoops-0"
    trace = "CPU: 24 PID: 1364 Comm: khungtaskd Tainted: P           OE"
    path.write_text(f"<4>[ 99.100000] {trace}\n<4>[ 99.200000] quiet\n<4>[ 99.300000] {trace}\n")
    (event,) = read(path)
    assert (event.kind, event.line, event.pid, event.process) == ("panic_continuation", 1, 1364, "khungtaskd")


def test_a_folder_below_that_may_not_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "kern.log").write_bytes(LOG)
    listed = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("closed"):  # root, which runs the tests too, may list any
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    problems: list[str] = []
    assert facts(read(tmp_path, recursive=True, unreadable=lambda problem: problems.append(str(problem)))) == FACTS
    assert problems == [f"{tmp_path / 'closed'}: permission denied"]
