"""Sources of a node: kernel log, kernel ring, folder, job output, NVML."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from medevac.adapters.sources.kmsg import KernelLog, KernelRing, kernel_log
from medevac.adapters.sources.node_folder import NodeFolder
from medevac.adapters.sources.nvml import NvmlChild, NvmlSource, read_gpus
from medevac.adapters.sources.output import JobOutput, Printed
from medevac.core.events import AnyEvent, EccCounted, EnvironmentSeen, FaultSeen, StepReported
from medevac.ports.errors import BadReply, Unavailable
from medevac.ports.source import Source

LONG_S = 60.0
XID63 = (
    "2026-11-30T22:01:0{n}.345678+00:00 elsewhere kernel: NVRM: Xid (PCI:0000:3b:00): 63, pid='<unknown>', "
    "name=<unknown>, Row Remapper: New row (0x{n:016x}) marked for remapping, reset gpu to activate.\n"
)


async def take(source: Source, count: int, cursor: str = "") -> list[tuple[Any, str]]:
    """The first `count` events."""
    found: list[tuple[AnyEvent, str]] = []
    events = source.follow(cursor)
    async with asyncio.timeout(LONG_S):
        async for pair in events:
            found.append(pair)
            if len(found) == count:
                break
    assert isinstance(events, AsyncIterator)
    await events.aclose()  # type: ignore[attr-defined]
    return found


# --- kernel log -------------------------------------------------------------------------------------------------------


async def test_faults_of_a_kernel_log_keep_their_names_over_restarts(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("something else\n" + XID63.format(n=1) + "noise\n" + XID63.format(n=2) + XID63.format(n=3))
    first, second, third = await take(KernelLog(log, "node1"), 3)
    event = first[0]
    assert isinstance(event, FaultSeen)
    assert (event.kind, event.code, event.node, event.pci) == ("xid", 63, "node1", "0000:3b:00.0")
    assert event.at == pytest.approx(1796076061.345678)
    assert event.seen_at >= event.at
    assert event.id.startswith(f"node1/kmsg:{log.stat().st_ino}-")
    assert event.id.endswith(":15")
    again = await take(KernelLog(log, "node1"), 2, first[1])
    assert [pair[0].id for pair in again] == [second[0].id, third[0].id]
    assert len({first[0].id, second[0].id, third[0].id}) == 3


async def test_old_lines_may_be_left_out(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(XID63.format(n=1))
    waiting = asyncio.create_task(take(KernelLog(log, "node1", old=False), 1))
    await asyncio.sleep(0)
    with log.open("a") as out:
        out.write(XID63.format(n=2))
    ((event, _),) = await waiting
    assert event.at == pytest.approx(1796076062.345678)


async def test_a_kernel_log_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no-log: does not exist"):
        await take(KernelLog(tmp_path / "no-log", "node1"), 1)


async def test_the_kernels_ring_is_read_by_sequence_number() -> None:
    kernel, reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader.setblocking(False)
    text = b"3,%d,5000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    for number in (7, 8, 9):
        kernel.send(text % number)
    ring = KernelRing("node1", opener=reader.detach, boot="boot-1")
    (event, cursor), (other, _) = await take(ring, 2, "boot-1:7")
    assert (event.code, event.id, cursor) == (79, "node1/kmsg:boot-1:8", "boot-1:8")
    assert other.id == "node1/kmsg:boot-1:9"
    booted = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    assert event.at == pytest.approx(booted + 5.0, abs=30.0)
    kernel.close()


async def test_a_ring_that_may_not_be_read_is_named() -> None:
    def refuse() -> int:
        raise PermissionError(1, "Operation not permitted")

    with pytest.raises(Unavailable, match="/dev/kmsg: Operation not permitted; run as root"):
        await take(KernelRing("node1", opener=refuse), 1)


def test_the_kind_of_a_kernel_log_is_found_by_looking(tmp_path: Path) -> None:
    assert isinstance(kernel_log(Path("/dev/null"), "n"), KernelRing)
    assert isinstance(kernel_log(tmp_path / "kmsg", "n"), KernelLog)


# --- node folder ------------------------------------------------------------------------------------------------------


def gpu_file(folder: Path, **more: object) -> None:
    values = {"uuid": "GPU-1", "pci": "0000:3b:00.0", "sbe": 0, "dbe": 0, "remapped_rows": 0, "temperature": 40.0}
    temporary = folder / ".gpu0"
    temporary.write_text(json.dumps(values | more))
    temporary.rename(folder / "gpu0.json")


async def test_sensors_and_counters_of_a_node_folder(tmp_path: Path) -> None:
    sensor = {"at": 5.0, "rack": "r1", "component": "psu", "state": "failed", "text": "PSU 2 lost"}
    (tmp_path / "env.jsonl").write_text("not json\n" + json.dumps(sensor) + "\n")
    gpu_file(tmp_path, sbe=3)
    source = NodeFolder(tmp_path, "node1", period_s=0.0)
    (seen, cursor), (counted, _), (again, _) = await take(source, 3)
    assert seen == EnvironmentSeen(
        at=5.0,
        seen_at=seen.seen_at,
        id=seen.id,
        source="node1/folder",
        rack="r1",
        component="psu",
        state="failed",
        text="PSU 2 lost",
    )
    assert seen.id.startswith("node1/env:")
    assert source.unread == 1
    assert isinstance(counted, EccCounted)
    assert (counted.gpu, counted.sbe, counted.temperature) == ("GPU-1", 3, 40.0)
    assert again.id != counted.id, "the same counters, read again later"
    ((only, _),) = await take(NodeFolder(tmp_path, "node1"), 1, cursor)
    assert isinstance(only, EccCounted)


async def test_counters_are_told_when_they_change(tmp_path: Path) -> None:
    gpu_file(tmp_path)
    source = NodeFolder(tmp_path, "node1", period_s=3600.0)
    events = source.follow("")
    assert (await anext(events))[0].sbe == 0  # type: ignore[union-attr]
    (tmp_path / "gpu0.json").write_text("{torn")
    gpu_file(tmp_path, sbe=9)
    async with asyncio.timeout(LONG_S):
        assert (await anext(events))[0].sbe == 9  # type: ignore[union-attr]


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="nowhere: no such folder"):
        await take(NodeFolder(tmp_path / "nowhere", "node1"), 1)


# --- output -----------------------------------------------------------------------------------------------------------


def progress(line: Printed) -> StepReported | None:
    word, _, number = line.text.partition(" ")
    if word != "step":
        return None
    return StepReported(at=line.seen_at, job=line.job, attempt=line.attempt, rank=line.rank, step=int(number))


async def test_what_ranks_print_becomes_progress_once(tmp_path: Path) -> None:
    job = tmp_path / "train"
    for attempt in (1, 2):
        folder = job / "attempts" / str(attempt)
        folder.mkdir(parents=True)
        (folder / "rank0.log").write_text(f"hello\nstep {attempt}0\n")
        (folder / "rank1.log").write_bytes(b"\xff\xfe\nstep 11\r\nste")
    found = await take(JobOutput(job, progress), 4)
    assert [(event.attempt, event.rank, event.step) for event, _ in found] == [
        (1, 0, 10),
        (1, 1, 11),
        (2, 0, 20),
        (2, 1, 11),
    ]
    rest = await take(JobOutput(job, progress), 2, found[1][1])
    assert [event.id for event, _ in rest] == [event.id for event, _ in found[2:]]
    with (job / "attempts" / "2" / "rank1.log").open("a") as out:
        out.write("p 12\n")
    ((event, _),) = await take(JobOutput(job, progress), 1, found[3][1])
    assert (event.step, event.source) == (12, "train/output")


async def test_old_attempts_are_left_when_they_are_read(tmp_path: Path) -> None:
    job = tmp_path / "train"
    for attempt in range(1, 6):
        folder = job / "attempts" / str(attempt)
        folder.mkdir(parents=True)
        (folder / "rank0.log").write_text(f"step {attempt}\n")
    source = JobOutput(job, progress)
    events = source.follow("")
    for _ in range(5):
        await anext(events)
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0.3)
    with (job / "attempts" / "5" / "rank0.log").open("a") as out:
        out.write("step 6\n")
    _, cursor = await asyncio.wait_for(waiting, LONG_S)
    assert sorted(json.loads(cursor)) == ["4/rank0", "5/rank0"]


# --- NVML -------------------------------------------------------------------------------------------------------------

READING = json.dumps(
    [
        {"index": 0, "uuid": "GPU-1", "pci": "0000:3b:00.0", "sbe": 4, "dbe": 0, "remapped_rows": 1},
        {"index": 1, "uuid": "GPU-2", "pci": "0000:af:00.0"},
    ]
)


def child(program: str, deadline_s: float = LONG_S) -> NvmlChild:
    return NvmlChild((sys.executable, "-S", "-c", program), deadline_s)


def answering(text: str) -> NvmlChild:
    return child(f"import sys\nfor _ in sys.stdin: print({text!r}, flush=True)")


def test_the_gpus_of_this_machine() -> None:
    assert [(gpu.index, gpu.uuid, gpu.pci) for gpu in read_gpus(answering(READING))] == [
        (0, "GPU-1", "0000:3b:00.0"),
        (1, "GPU-2", "0000:af:00.0"),
    ]


def test_the_real_child_answers_with_or_without_a_driver() -> None:
    assert all(gpu.uuid for gpu in read_gpus())


async def test_a_gpu_without_counters_is_not_said_to_have_none() -> None:
    (first, _), (second, _) = await take(NvmlSource("node1", period_s=0.01, child=answering(READING)), 2)
    assert (first.gpu, first.sbe, first.remapped_rows) == ("GPU-1", 4, 1)
    assert second.gpu == "GPU-1"
    assert second.id != first.id


def test_a_driver_that_hangs_is_unavailable_and_may_come_back() -> None:
    hung = child("import time; time.sleep(3600)", deadline_s=0.2)
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"no answer within 0\.2 s"):
            hung.ask()


def test_a_child_that_ends_is_unavailable() -> None:
    gone = child("")
    with pytest.raises(Unavailable, match="has ended"):
        gone.ask()


def test_an_answer_that_is_none_is_told() -> None:
    with pytest.raises(BadReply, match="NVML"):
        answering("hello").ask()
