"""Live logs: each whole line once, over growth, rotation, truncation and absence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from medevac.decode.follow import Kmsg, Pipe, Tail, follow
from medevac.decode.readers import Unreadable


def xid(code: int) -> bytes:
    return b"Mar  1 10:02:03 n1 kernel: NVRM: Xid (PCI:0000:3b:00): %d, pid=1, name=a, text\n" % code


def codes(tail: Tail | Pipe | Kmsg) -> list[int | None]:
    return [event.code for event in tail.read()]


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_only_new_lines_of_a_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_bytes(xid(13))
    tail = Tail(str(path))
    assert codes(tail) == []
    append(path, xid(31) + xid(79))
    assert codes(tail) == [31, 79]
    assert codes(tail) == []
    tail.close()


def test_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    tail = Tail(str(path))
    assert codes(tail) == []
    line = xid(79)
    append(path, line[:60])
    assert codes(tail) == []
    append(path, line[60:])
    assert codes(tail) == [79]
    tail.close()


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 40])
def test_a_byte_order_mark_before_the_first_line_is_no_part_of_it(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    tail = Tail(str(path), from_start=True)
    data = b"\xef\xbb\xbf2026-03-01T10:02:03.5Z gpu-7 kernel: " + xid(79)
    append(path, data[:cut])
    assert codes(tail) == []
    append(path, data[cut:])
    (event,) = tail.read()
    assert (event.code, event.node, event.at, event.line) == (79, "gpu-7", 1772359323.5, 1)
    assert event.raw.startswith("2026")
    tail.close()


def test_rotation_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_bytes(b"")
    tail = Tail(str(path))
    assert codes(tail) == []
    append(path, xid(1))
    path.rename(tmp_path / "kern.log.1")
    append(tmp_path / "kern.log.1", xid(2))  # the logger has not been told yet
    assert codes(tail) == [1, 2]
    append(path, xid(3))
    assert codes(tail) == [3]
    append(path, xid(4))
    assert codes(tail) == [4]
    tail.close()


def test_a_file_cut_to_nothing_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    tail = Tail(str(path), from_start=True)
    append(path, xid(1) + xid(2))
    assert codes(tail) == [1, 2]
    os.truncate(path, 0)
    append(path, xid(3))
    assert codes(tail) == [3]
    tail.close()


def test_the_same_line_again_is_another_event_and_a_bad_one_stalls_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    tail = Tail(str(path))
    tail.read()
    append(path, b"nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 2\xff\n" + xid(79) * 2 + b"\0" * 100 + b"\n" + xid(31))
    assert codes(tail) == [None, 79, 79, 31]  # the cut one is unread
    assert codes(tail) == []
    tail.close()


def test_a_line_without_an_end_stays_bounded(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    tail = Tail(str(path), from_start=True)
    append(path, b"x" * (3 << 20) + b"\n" + xid(79))
    assert codes(tail) == [79]
    tail.close()


def test_a_path_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "kern.log"
    (tmp_path / "folder").write_text("a file where the path wants a folder")
    with pytest.raises(Unreadable, match=r"kern\.log: not a directory"):
        Tail(str(path)).read()


def test_a_pipe_is_followed_to_its_end() -> None:
    reading, writing = os.pipe()
    pipe = Pipe(reading)
    assert codes(pipe) == []
    os.write(writing, xid(31) + xid(79)[:30])
    assert codes(pipe) == [31]
    os.write(writing, xid(79)[30:-1])
    os.close(writing)
    assert codes(pipe) == [79]
    assert pipe.ended
    os.close(reading)


def test_kernel_records_of_any_form(tmp_path: Path) -> None:
    """A FIFO stands for /dev/kmsg: what is written at once is read at once."""
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    source = Kmsg(str(path), node="n7")
    writer = os.open(path, os.O_WRONLY)
    record = (
        b"4,1234,5678000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=a, gone\n SUBSYSTEM=pci\n DEVICE=+pci:0000\n"
    )
    os.write(writer, record)
    (event,) = source.read()
    assert (event.code, event.node, event.details["seq"]) == (79, "n7", 1234)
    assert event.at > 1_600_000_000  # the kernel's second 5678 of this machine's boot
    os.close(writer)
    source.close()


def test_follow_waits_between_looks_and_stops_when_told(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_bytes(xid(13))
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        append(path, xid(79))

    events = follow([str(path)], stop=lambda: len(pauses) >= 3, sleep=pause, every_s=0.25)
    assert [event.code for event in events] == [79, 79]
    assert pauses == [0.25] * 3


def lines_of(tail: Tail | Pipe) -> list[tuple[int | None, int]]:
    return [(event.code, event.line) for event in tail.read()]


def test_lines_are_numbered_as_in_the_file_after_skipping_too(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_bytes(b"quiet\n" * 1000 + xid(13) + xid(1)[:40])
    tail = Tail(str(path))
    assert lines_of(tail) == []
    append(path, xid(1)[40:] + b"quiet\n" + xid(79))  # the line that was being written is whole
    assert lines_of(tail) == [(1, 1002), (79, 1004)]
    path.rename(tmp_path / "kern.log.1")
    append(path, b"quiet\n" + xid(31))
    assert lines_of(tail) == [(31, 2)]
    tail.close()


def test_the_last_line_of_a_rotated_file_needs_no_end(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    tail = Tail(str(path), from_start=True)
    append(path, xid(1) + xid(2)[:-1])
    assert codes(tail) == [1]
    path.rename(tmp_path / "kern.log.1")
    append(path, xid(3))
    assert codes(tail) == [2, 3]
    tail.close()


def test_a_file_written_anew_and_longer_than_before_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    tail = Tail(str(path), from_start=True)
    append(path, xid(1))
    assert codes(tail) == [1]
    path.write_bytes(xid(2) + xid(3) + xid(4))  # the same inode
    assert codes(tail) == [2, 3, 4]
    assert codes(tail) == []
    tail.close()


def test_a_file_that_is_not_there_is_waited_for_and_said_once(tmp_path: Path) -> None:
    path, said = tmp_path / "kern.log", list[str]()
    tail = Tail(str(path), notice=said.append)
    assert codes(tail) == codes(tail) == []
    assert said == [f"{path}: is not there yet: waiting for it"]
    append(path, xid(79))
    assert codes(tail) == [79]
    path.unlink()
    assert codes(tail) == []
    append(path, xid(31))
    assert codes(tail) == [31]
    tail.close()


def test_a_folder_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="is a folder"):
        Tail(str(tmp_path)).read()


def test_a_pipe_with_a_name(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    tail = Tail(str(path))
    assert codes(tail) == []
    writer = os.open(path, os.O_WRONLY)
    for code in (13, 79):
        os.write(writer, xid(code))
        assert codes(tail) == [code]
        assert codes(tail) == []
    os.close(writer)
    tail.close()


def test_a_fact_of_several_lines_waits_one_look_for_them(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    tail = Tail(str(path), from_start=True)
    switch = b"Mar  1 10:02:03 n1 kernel: nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20034, "
    append(path, switch + b"Fatal, Link 30 LTSSM Fault Up\n")
    assert codes(tail) == []
    append(path, switch + b"Data {0x50610002, 0x10100030}\n")
    assert codes(tail) == []
    (event,) = tail.read()
    assert (event.code, event.details["link"], event.details["data"]) == (20034, 30, "0x50610002, 0x10100030")
    assert codes(tail) == []
    tail.close()


def entry(code: int, *, binary: bool = False) -> bytes:
    message = xid(code).partition(b"kernel: ")[2].strip()
    value = b"MESSAGE\n" + len(message).to_bytes(8, "little") + message if binary else b"MESSAGE=" + message
    return (
        b"__CURSOR=s=1;i=2\n__REALTIME_TIMESTAMP=1772359323000000\n_TRANSPORT=kernel\n_HOSTNAME=n1\n" + value + b"\n\n"
    )


@pytest.mark.parametrize("step", [1, 7, 4096])
def test_a_journal_in_export_format_in_pieces_of_any_size(step: int) -> None:
    reading, writing = os.pipe()
    pipe = Pipe(reading)
    data = entry(31) + entry(10, binary=True) + entry(79)
    seen: list[tuple[int | None, int]] = []
    for start in range(0, len(data), step):
        os.write(writing, data[start : start + step])
        seen += lines_of(pipe)
    assert seen == [(31, 5), (10, 11), (79, 18)]
    os.close(writing)
    assert lines_of(pipe) == []
    assert pipe.ended
    os.close(reading)


def test_a_line_longer_than_any_is_read_once_and_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    tail = Tail(str(path), from_start=True)
    append(path, xid(1)[:-1] + b"x" * (6 << 20))
    seen = lines_of(tail)
    append(path, b"y" * (1 << 20) + xid(2) + b"quiet\n" + xid(3))
    assert seen + lines_of(tail) == [(1, 1), (3, 3)]
    tail.close()
