"""What the ranks of a silent job are at: real stacks of real processes, and the reasoning on them and on GPU loads."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from medevac.adapters import stacks
from medevac.adapters.sources.node_folder import NodeFolder
from medevac.adapters.sources.nvml import NvmlChild, NvmlSource
from medevac.adapters.stacks import program, read_stacks
from medevac.core.stacks import Frame, Load, of_loads, of_stacks

SLEEPER = """
import sys, time

def collective():
    print("waits", flush=True)
    time.sleep(600)

def other():
    print("waits", flush=True)
    time.sleep(600)

collective() if sys.argv[1] == "in" else other()
"""
HERE = Frame(name="all_reduce", file="/x/torch/distributed/distributed_c10d.py", line=2834)
WRAPPED = Frame(name="wrapper", file="/x/torch/distributed/c10d_logger.py", line=81)
STEP = Frame(name="step", file="/job/train.py", line=40)
LOADS = Frame(name="_MultiProcessingDataLoaderIter._try_get_data", file="/x/torch/utils/data/dataloader.py", line=1275)
ELSEWHERE = Frame(name="tokenize", file="/job/data.py", line=7)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Callable[..., dict[int, int]]]:
    started: list[subprocess.Popen[bytes]] = []
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER)

    def begin(*where: str) -> dict[int, int]:
        for one in where:
            child = subprocess.Popen([sys.executable, str(script), one], stdout=subprocess.PIPE)
            started.append(child)
            assert child.stdout
            assert child.stdout.readline() == b"waits\n"
        return {rank: child.pid for rank, child in enumerate(started)}

    yield begin
    for child in started:
        child.kill()
        child.communicate()


def test_real_stacks_tell_who_is_elsewhere_also_of_a_stopped_process(
    ranks: Callable[..., dict[int, int]], need: Callable[..., None]
) -> None:
    need("py-spy", present=program() is not None)
    pids = ranks("in", "out", "in", "in")
    os.kill(pids[1], signal.SIGSTOP)
    (found,) = of_stacks(read_stacks(pids), {1: "n1"})
    assert (found.signature, found.rank, found.node) == ("stack-outside", 1, "n1")
    assert "rank 1 is in other (sleeper.py:10), 3 other ranks in collective (sleeper.py:6)" in found.text


def test_a_process_that_is_gone_or_no_python_has_no_stack(need: Callable[..., None]) -> None:
    need("py-spy", present=program() is not None)
    with subprocess.Popen(["sleep", "60"]) as child:
        assert read_stacks({0: child.pid, 1: 2**22 + 1}) == {}
        child.kill()


def test_a_reader_that_hangs_costs_its_deadline_and_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "py-spy"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(slow.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(stacks, "program", lambda: str(slow))
    began = time.monotonic()
    assert read_stacks({rank: os.getpid() for rank in range(4)}, deadline_s=0.3) == {}
    assert time.monotonic() - began < 30


def test_without_py_spy_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "program", lambda: None)
    assert read_stacks({0: os.getpid()}) == {}


def test_an_answer_that_is_no_stack_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for answer in ("[]", "{}", '[{"frames": 3}]', "\\377"):
        odd = tmp_path / "py-spy"
        odd.write_text(f"#!/bin/sh\nprintf '%b' '{answer}'\n")
        odd.chmod(0o755)
        monkeypatch.setattr(stacks, "program", lambda odd=odd: str(odd))
        assert read_stacks({0: os.getpid()}) == {}


def test_who_waits_for_data_is_named_as_that() -> None:
    seen = dict.fromkeys(range(4), (HERE, WRAPPED, STEP)) | {2: (LOADS, STEP)}
    (found,) = of_stacks(seen, {})
    assert (found.signature, found.rank) == ("stack-loader", 2)
    assert "3 other ranks in all_reduce (distributed_c10d.py:2834)" in found.text


def test_all_in_a_collective_names_nobody() -> None:
    (found,) = of_stacks(dict.fromkeys(range(3), (HERE, STEP)), {})
    assert (found.signature, found.rank, found.names) == ("stack-collective", None, "none")
    assert list(of_stacks(dict.fromkeys(range(3), (STEP,)), {})) == []


def test_without_a_majority_at_one_place_nobody_is_named() -> None:
    assert list(of_stacks({0: (HERE,), 1: (ELSEWHERE,)}, {})) == []
    assert list(of_stacks({0: (HERE,), 1: (HERE,), 2: (ELSEWHERE,), 3: (STEP,)}, {})) == []
    assert list(of_stacks({0: (HERE,), 1: ()}, {})) == []
    assert list(of_stacks({}, {})) == []


def loads(*percent: float, power: float | None = 90.0) -> dict[int, tuple[Load, ...]]:
    return {rank: (Load(utilization=one, power_w=power),) * 2 for rank, one in enumerate(percent)}


def test_an_idle_gpu_among_spinning_ones_is_named() -> None:
    (found,) = of_loads(loads(100, 100, 0, 100), {2: "n2"})
    assert (found.signature, found.rank, found.node) == ("gpu-idle", 2, "n2")


def test_all_idle_or_all_busy_names_nobody() -> None:
    (idle,) = of_loads(loads(0, 0, 1), {})
    assert (idle.signature, idle.rank) == ("gpu-idle", None)
    assert "at most 90 W" in idle.text
    (busy,) = of_loads(loads(100, 99, 97, power=None), {})
    assert (busy.signature, busy.rank) == ("gpu-busy", None)


def test_readings_that_change_or_are_few_say_nothing() -> None:
    assert list(of_loads({0: (Load(utilization=0), Load(utilization=80)), 1: (Load(utilization=100),)}, {})) == []
    assert list(of_loads(loads(0, 0, 100), {})) == []
    assert list(of_loads({0: ()}, {})) == []


def test_a_simulated_node_shows_its_loads(tmp_path: Path) -> None:
    (tmp_path / "gpu0.json").write_text('{"uuid": "G0", "utilization": 100, "power_w": 611.5, "sbe": 2}')
    (tmp_path / "gpu1.json").write_text('{"uuid": "G1"}')
    (tmp_path / "gpu2.json").write_text('{"uuid": "G2", "utiliz')
    assert NodeFolder(tmp_path, "n").loads() == {"G0": (Load(utilization=100, power_w=611.5),)}


async def test_nvml_readings_are_kept_for_a_look() -> None:
    rows = '[{"index": 0, "uuid": "G0", "pci": "p", "sbe": 0, "dbe": 0, "utilization": 100.0, "power_w": 130.0}]'
    says = f"import sys\nfor _ in sys.stdin: print('{rows}', flush=True)"
    source = NvmlSource("n1", period_s=0.01, child=NvmlChild((sys.executable, "-c", says)))
    assert source.loads() == {}
    seen = source.follow("")
    for _ in range(5):
        await anext(seen)
    await seen.aclose()  # type: ignore[attr-defined]
    assert source.loads() == {"G0": (Load(utilization=100.0, power_w=130.0),) * 3}
