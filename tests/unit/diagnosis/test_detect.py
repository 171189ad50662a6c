"""The benchmark of detection at a small size: it runs, and what it measures has not become another thing."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "detect.py"
    spec = importlib.util.spec_from_file_location("bench_detect", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_day_without_stalls_has_no_false_action(bench: ModuleType) -> None:
    lived = bench.healthy(bench.Pauses(step_s=60.0), 1.0, 4, random.Random(3))
    assert lived.counts == {"stops": 0, "hang": 0, "straggler": 0, "slowdown": 0}
    assert lived.moments


@pytest.mark.parametrize(
    ("least", "share", "stops", "names"),
    [(1000.0, 0.0, 6, 6), (250.0, 0.0, 0, 6), (250.0, 1.0, 6, 6), (0.1, 0.0, 0, 0)],
    ids=["longer than patience", "over the limit", "with a silent file", "short"],
)
def test_a_stall_is_named_over_the_limit_and_a_false_stop_over_patience(
    bench: ModuleType, least: float, share: float, stops: int, names: int
) -> None:
    pauses = bench.Pauses(step_s=60.0)
    lived = bench.healthy(pauses, 0.3, 1, random.Random(3))
    stalls = bench.Pauses(step_s=60.0, stall_least_s=least, stall_tail=50.0, silent_share=share)
    assert bench.stalled(stalls, lived, 1.0, random.Random(1)) == (stops, names)


def test_a_crash_a_hang_and_a_straggler_are_named_in_time(bench: ModuleType) -> None:
    assert bench.time_to_name(random.Random(1)) < 1
    assert bench.time_to_crash(random.Random(1)) < 3
    confirmed = bench.time_to_hang(bench.Pauses(), random.Random(1))
    assert confirmed["named_after_s"] < 2
    assert confirmed["stopped_after_s"] < 2
    unconfirmed = bench.time_to_hang(bench.Pauses(), random.Random(1), "")
    assert unconfirmed["named_after_s"] < 2
    assert 300 <= unconfirmed["stopped_after_s"] < 302
    assert bench.time_to_straggler(1.5, bench.Pauses(), random.Random(1)) <= 20
