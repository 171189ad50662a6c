"""Logs as streams: nothing lost at the edges of blocks, lines of one fact joined, line numbers true."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.decode.shapes import REFERENCE, Shape, differences, expectations, load_shapes, rows

from medevac.core.events import FaultSeen
from medevac.decode import stream
from medevac.decode.context import Context
from medevac.decode.files import decode_files
from medevac.decode.scanner import ANCHORS, Hit, PackedScanner, PlainScanner
from medevac.decode.stream import decode_stream

XID = b"NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python3, GPU has fallen off the bus."
FILL = {"pci": "0000:3b:00", "port": "0000:00:03.0", "pid": "4242", "comm": "python3", "hex8": "0badcafe"}
FILL |= {"hex8b": "5e0000af", "hex4": "beef", "n": "21", "m": "3", "k": "1", "code": "145"}
SHAPES = [shape for shape in load_shapes() if "continuation" not in shape.expected["kind"]]


def decoded(data: bytes) -> list[FaultSeen]:
    return list(decode_stream(io.BytesIO(data), "log", ctx=Context(reference=REFERENCE)))


def places(events: list[FaultSeen]) -> list[tuple[str, int | None, int]]:
    return [(event.kind, event.code, event.line) for event in events]


@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
def test_every_kind_has_an_anchor(shape: Shape) -> None:
    """The scanner finds each line that the parsers can read."""
    message, expected = shape
    raw = b"noise\n" + message.format(**FILL).encode() + b"\nnoise\n"
    events = decoded(raw)
    if expected["kind"] == "none":
        assert events == []
    else:
        wanted = {name: value.format(**FILL) for name, value in expected.items()}
        assert differences(events[0], wanted) == {}
        assert events[0].line == 2


def test_both_scanners_find_the_same_lines() -> None:
    data = "\n".join(raw for raw, _ in rows("lines.tsv")).encode()

    def lines(hits: list[Hit]) -> set[int]:
        assert all(data[start:end] == ANCHORS[which] for which, start, end in hits)
        assert [start for _, start, _ in hits] == sorted(start for _, start, _ in hits)
        return {data.count(b"\n", 0, start) for _, start, _ in hits}

    assert lines(PlainScanner(ANCHORS).scan(data, len(data))) == lines(PackedScanner(ANCHORS).scan(data, len(data)))


def test_the_anchors_are_what_the_matcher_is_fast_with() -> None:
    """Four bytes or more each, and at most 64 of them."""
    assert min(map(len, ANCHORS)) >= 4
    assert len(set(ANCHORS)) == len(ANCHORS) <= 64


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 400), st.integers(0, 2**32))
def test_blocks_of_any_size_give_the_same_events(block: int, seed: int) -> None:
    rng = random.Random(seed)
    noise = [b"x" * rng.randrange(60) for _ in range(30)]
    lines = [XID if rng.random() < 0.3 else rng.choice(noise) for _ in range(60)]
    data = b"\n".join(lines) + rng.choice([b"", b"\n"])
    whole = [number for number, line in enumerate(lines, 1) if line == XID]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "BLOCK", 100 + block)
        events = decoded(data)
    assert [event.line for event in events] == whole


def test_a_line_longer_than_a_block_is_one_line() -> None:
    data = b"first\n" + XID + b" " + b"z" * (5 << 20) + b"\n" + XID + b"\n"
    assert places(decoded(data)) == [("xid", 79, 2), ("xid", 79, 3)]


def test_a_long_line_without_a_fault_costs_no_line_number() -> None:
    data = b"y" * (3 << 20) + b"\n" + XID
    assert places(decoded(data)) == [("xid", 79, 2)]


def test_carriage_returns_and_nuls_and_broken_text() -> None:
    data = b"\0\0\0junk \xff\xfe\r\n\r\n\0" + XID + b"\r\n" + b"\xf0\x28 " + XID + b"\r\n"
    assert places(decoded(data)) == [("xid", 79, 3), ("unread", 79, 4)]


SWITCH = b"[  38.1] nvidia-nvswitch3: SXid (PCI:0000:04:00.0): "


def test_the_lines_of_an_sxid_are_one_event() -> None:
    data = b"\n".join(
        [
            SWITCH + b"22013, Non-fatal, Link 44 Minion Link DLREQ interrupt",
            b"unrelated",
            SWITCH + b"22013, Severity 0 Engine instance 44 Sub-engine instance 00",
            SWITCH + b"22013, Data {0x0000002c, 0x80005302}",
        ]
    )
    (event,) = decoded(data)
    assert (
        differences(event, expectations("kind=sxid; code=22013; link=44; severity=Non-fatal; severity_level=0")) == {}
    )
    assert event.details["data"] == "0x0000002c, 0x80005302"


def test_interleaved_switches_keep_their_own_lines() -> None:
    other = SWITCH.replace(b"nvswitch3", b"nvswitch1").replace(b":04:", b":07:")
    data = b"\n".join(
        [
            SWITCH + b"20034, Fatal, Link 30 LTSSM Fault Up",
            other + b"20034, Fatal, Link 61 LTSSM Fault Up",
            SWITCH + b"20034, Severity 1 Engine instance 30 Sub-engine instance 00",
            other + b"20034, Severity 1 Engine instance 61 Sub-engine instance 00",
        ]
    )
    events = decoded(data)
    assert [(event.details["link"], event.details["engine_instance"]) for event in events] == [(30, 30), (61, 61)]


def test_a_continuation_without_its_parent_stands_for_itself() -> None:
    assert places(decoded(SWITCH + b"20034, Data {0x50610002}")) == [("sxid_continuation", 20034, 1)]


def test_the_registers_of_an_aer_report_join_it_even_without_an_anchor() -> None:
    data = b"""nvidia 0000:3b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)
nvidia 0000:3b:00.0:   device [10de:2330] error status/mask=00004020/00000000
nvidia 0000:3b:00.0:    [14] CmpltTO                (First)
nvidia 0000:3b:00.0:    [ 5] SDES
usb 1-1: new device
"""
    (event,) = decoded(data)
    wanted = "kind=aer; severity=Fatal; status=00004020; bits=14 CmpltTO, 5 SDES; first=CmpltTO; pci_id=10de:2330"
    assert differences(event, expectations(wanted)) == {}


def test_the_rpc_history_joins_its_timeout() -> None:
    data = b"\n".join(
        [
            b"NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=x, Timeout after 6s of waiting for RPC response",
            b"NVRM: GPU4 GSP RPC buffer contains function 103 (GSP_RM_ALLOC) and data 0x2081 0x4.",
            b"NVRM:     entry function                   data0              data1",
            b"NVRM:      0    103  GSP_RM_ALLOC          0x0000000000002081 0x0000000000000004",
        ]
    )
    assert places(decoded(data)) == [("xid", 119, 1)]


def test_three_lines_say_that_a_gpu_fell_off_the_bus() -> None:
    data = b"""[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: fallen off the bus and is not responding to commands.
[ 1843.4] NVRM: GPU 0000:b4:00.0: GPU has fallen off the bus.
"""
    events = decoded(data)
    assert [(event.kind, event.pci, event.line) for event in events] == [
        ("fell_off", "0000:b3:00.0", 1),
        ("fell_off", "0000:b4:00.0", 4),
    ]
    assert events[0].details["pci_id"] == "10de:26b5"


def test_the_beginning_of_those_three_lines_does_not_swallow_an_xid() -> None:
    data = b"NVRM: The NVIDIA GPU 0000:b3:00.0\n" + XID + b"\n"
    assert places(decoded(data)) == [("nvrm_other", None, 1), ("xid", 79, 2)]


def test_a_panic_takes_the_process_from_the_line_after_it() -> None:
    data = b"<0>[23.1] Kernel panic - not syncing: hung_task: blocked tasks\n"
    data += b"<4>[23.2] CPU: 24 PID: 1364 Comm: khungtaskd Tainted: P\n"
    (event,) = decoded(data)
    assert differences(event, expectations("kind=panic; cpu=24; process=null; reason=hung_task: blocked tasks")) == {}
    assert event.details["process"] == "khungtaskd"


def test_the_records_of_the_boot_before_say_so() -> None:
    data = b"""[    1.210190] BERT: Error records from previous boot:
[    1.210199] [Hardware Error]: event severity: fatal
[   99.000000] [Hardware Error]: event severity: corrected
"""
    before, now = decoded(data)
    assert before.details["previous_boot"] == "yes"
    assert "previous_boot" not in now.details


def test_a_record_of_the_boot_before_is_known_without_its_header() -> None:
    data = b"""[    1.210199] [Hardware Error]: event severity: fatal
[    2.082284] {1}[Hardware Error]: event severity: fatal
[   99.000000] [Hardware Error]: event severity: fatal
"""
    assert [event.details.get("previous_boot") for event in decoded(data)] == ["yes", None, None]


def test_events_keep_the_order_of_their_lines() -> None:
    rng = random.Random(3)
    pool = [shape.message.format(**FILL) for shape in load_shapes() if "\n" not in shape.message]
    data = "\n".join(rng.choice(pool) for _ in range(500)).encode()
    lines = [event.line for event in decoded(data)]
    assert lines == sorted(lines)
    assert len(lines) > 300


def test_a_line_of_a_megabyte_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "shipped.json"
    record = (
        '{"pad": "' + "x" * (1 << 20) + '", "log": "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."}\n'
    )
    path.write_text(record * 3 + "y" * (9 << 20) + record + record)
    assert [event.line for event in decode_files([str(path)])] == [1, 2, 3, 5]
