"""Single records: the labelled lines, any generated line in any prefix, and bytes that are no line at all."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.decode.shapes import (
    MARCH,
    PREFIXES,
    REFERENCE,
    Prefix,
    Shape,
    differences,
    docker_json,
    expectations,
    journal_json,
    load_shapes,
    rows,
)

from medevac.decode.context import Context
from medevac.decode.lines import decode_line

SHAPES = load_shapes()
ESCAPES = {"\\n": "\n", "\\r": "\r", "\\0": "\0", "\\x1b": "\x1b"}


def real(text: str) -> str:
    for written, meant in ESCAPES.items():
        text = text.replace(written, meant)
    return text


@pytest.mark.parametrize(
    ("raw", "expected"), [pytest.param(*row, id=f"line {n}") for n, row in enumerate(rows("lines.tsv"), 1)]
)
def test_labelled_line(raw: str, expected: str) -> None:
    event = decode_line(real(raw).encode(), Context(reference=REFERENCE))
    assert differences(event, expectations(expected)) == {}


def test_the_labelled_lines_are_many_and_of_every_kind() -> None:
    labelled = rows("lines.tsv")
    kinds = {expectations(expected)["kind"] for _, expected in labelled}
    assert len(labelled) >= 450
    assert {shape.expected["kind"] for shape in SHAPES} <= kinds


values = st.fixed_dictionaries(
    {
        "pci": st.from_regex(r"(0000|000d|0012):[0-9a-f]{2}:[0-1][0-9a-f]", fullmatch=True),
        "port": st.from_regex(r"0000:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]", fullmatch=True),
        "pid": st.integers(100, 4_194_304).map(str),
        "comm": st.from_regex(r"[a-z][a-z0-9_.:+-]{2,13}[a-z0-9]", fullmatch=True),
        "hex8": st.from_regex(r"[0-9a-f]{8}", fullmatch=True),
        "hex8b": st.from_regex(r"[0-9a-f]{8}", fullmatch=True),
        "hex4": st.from_regex(r"[0-9a-f]{4}", fullmatch=True),
        "n": st.integers(10, 63).map(str),
        "m": st.integers(0, 7).map(str),
        "k": st.integers(1, 3).map(str),
        "code": st.sampled_from(["31", "94", "119", "145"]),
    }
)
nodes = st.from_regex(r"[a-z][a-z0-9-]{1,20}[a-z0-9](\.[a-z]{2,8}){0,2}", fullmatch=True)


def filled(shape: Shape, fill: dict[str, str]) -> tuple[str, dict[str, str]]:
    if shape.message.startswith("NVRM: GPU at 0000{pci}"):  # the eight-digit domain
        fill = {**fill, "pci": "0000" + fill["pci"][4:]}
    return shape.message.format(**fill), {name: value.format(**fill) for name, value in shape.expected.items()}


def fits(shape: Shape, prefix: Prefix) -> bool:
    """A quotation behind an unknown prefix with the kernel's own clock is not one."""
    return not (shape.expected["kind"] == "unread" and prefix.name in {"pdsh", "compose", "CRI"})


@settings(deadline=None, max_examples=600)
@given(st.sampled_from(SHAPES), st.sampled_from(PREFIXES), values, nodes)
def test_any_line_in_any_prefix_reads_the_same(shape: Shape, prefix: Prefix, fill: dict[str, str], node: str) -> None:
    if not fits(shape, prefix):
        return
    message, expected = filled(shape, fill)
    if expected["kind"] != "none":
        expected |= {"node": node if prefix.node else "", "at": str(prefix.at)}
    raw = prefix.text.format(node=node) + message + prefix.after
    assert differences(decode_line(raw, Context(reference=REFERENCE)), expected) == {}, raw


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(SHAPES), values, nodes)
def test_any_line_in_a_journal_reads_the_same(shape: Shape, fill: dict[str, str], node: str) -> None:
    message, expected = filled(shape, fill)
    if expected["kind"] != "none":
        expected |= {"node": node, "at": str(MARCH)}
    assert differences(decode_line(journal_json(message, node), Context()), expected) == {}


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(SHAPES), values)
def test_any_line_that_a_container_printed_reads_the_same(shape: Shape, fill: dict[str, str]) -> None:
    message, expected = filled(shape, fill)
    if "\n" in message:  # a container runtime gives each line its own object
        return
    if expected["kind"] != "none":
        expected["at"] = str(MARCH)
    assert differences(decode_line(docker_json(message), Context()), expected) == {}


@settings(deadline=None, max_examples=400)
@given(st.binary(max_size=400))
@example(b"")
@example(b"{")
@example(b'{"MESSAGE": [78, 86, 999, "x"]}')
@example(b'{"MESSAGE": null, "log": 3}')
@example(b"[" * 5000)
@example(b"{" * 100_000)
@example(b"NVRM: Xid (PCI:0000:3b:00): 999999999999, pid=")
@example(b"Mar 99 99:99:99 node kernel: NVRM: Xid (PCI:0000:3b:00): 79")
@example("²³, 1,2,3;NVRM: Xid (PCI:0000:3b:00): ²".encode())
def test_no_bytes_raise(raw: bytes) -> None:
    event = decode_line(raw, Context(reference=REFERENCE))
    assert event is None or event.kind


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(SHAPES), st.sampled_from(PREFIXES), values, st.data())
def test_no_broken_line_raises(shape: Shape, prefix: Prefix, fill: dict[str, str], data: st.DataObject) -> None:
    raw = (prefix.text.format(node="n1") + shape.message.format(**fill)).encode()
    cut = data.draw(st.integers(0, len(raw)))
    garbage = data.draw(st.binary(max_size=20))
    again = data.draw(st.integers(0, len(raw)))
    event = decode_line(raw[:cut] + garbage + raw[again:], Context(reference=REFERENCE))
    assert event is None or event.kind


USER_LINES = [
    "Mar  1 10:02:03 gpu-1 trainer[4242]: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    "Mar  1 10:02:03 gpu-1 trainer[4242]: [ 12.5] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    "trainer[4242]: I saw NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    json.dumps(
        {
            "MESSAGE": "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
            "_TRANSPORT": "stdout",
            "SYSLOG_IDENTIFIER": "trainer",
        }
    ),
    "<13>1 2026-03-01T10:02:03Z gpu-1 root - - - NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
]


@pytest.mark.parametrize("raw", USER_LINES)
def test_an_xid_that_a_user_program_quotes_is_not_the_drivers_own(raw: str) -> None:
    event = decode_line(raw, Context())
    assert event is not None
    assert (event.kind, event.code, event.pci) == ("unread", 79, "0000:3b:00.0")


def test_a_health_checks_report_with_the_kernels_own_clock_counts() -> None:
    raw = (
        "node7 | ERROR: nhc: check failed: found: [ 3606.832215] NVRM: Xid (PCI:0002:00:00): 119, pid=677, name=smi, x"
    )
    event = decode_line(raw, Context())
    assert event is not None
    assert (event.kind, event.code, event.node, event.pid) == ("xid", 119, "node7", 677)


def test_the_uuid_line_names_the_gpu_of_later_lines() -> None:
    ctx = Context()
    uuid = "GPU-0a1b2c3d-0000-1111-2222-333344445555"
    decode_line(f"NVRM: GPU at PCI:0000:3B:00: {uuid}", ctx)
    same = decode_line("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", ctx)
    other = decode_line("NVRM: Xid (PCI:0000:5e:00): 79, GPU has fallen off the bus.", ctx)
    elsewhere = decode_line("Mar  1 10:02:03 n9 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU", ctx)
    assert same is not None
    assert other is not None
    assert elsewhere is not None
    assert (same.gpu, other.gpu, elsewhere.gpu) == (uuid, None, None)


def test_the_driver_version_goes_with_nvlink_words() -> None:
    ctx = Context()
    decode_line("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build", ctx)
    event = decode_line("NVRM: Xid (PCI:0000:3b:00): 149, NETIR Fatal XC0 i0 Link 03 (0x1 0x2)", ctx)
    assert event is not None
    assert event.details["driver"] == "580.65.06"


@pytest.mark.parametrize("junk", [b" ", b"[", b"(", b"NVRM", b"a" * 15 + b" ", b"1:", b"x, ", b"\x1b[", b"<", b"a: "])
def test_a_line_of_a_megabyte_is_read_at_once(junk: bytes) -> None:
    body = junk * (1_000_000 // len(junk))
    tail = b" NVRM: Xid (PCI:0000:3b:00): 79, pid=" + body
    for raw in (body, body + tail, b"Mar  1 10:02:03 n1 kernel: NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=" + body):
        event = decode_line(raw, Context(reference=REFERENCE))
        assert event is None or len(event.raw) <= 8192
