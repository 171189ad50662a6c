"""What the cases of an author who had not seen the rules must reach: the half that no rule was mended on."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "diagnosis.py"
    spec = importlib.util.spec_from_file_location("bench_diagnosis", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_unread_half_reaches_precision_and_coverage(bench: ModuleType) -> None:
    cases = bench.read_cases(bench.BLIND, "blind-unread")
    said = [(case, bench.ours(case).cause) for case in cases]
    answered = [(case, cause) for case, cause in said if cause != "unknown"]
    right = sum(cause in (case.label, *case.also) for case, cause in answered)
    assert len(cases) == 39
    assert right / len(answered) >= 0.95
    assert right / sum(case.label != "unknown" for case in cases) >= 0.85


def test_every_class_is_covered(bench: ModuleType) -> None:
    cases = bench.read_cases(bench.BLIND, None)
    for label in {case.label for case in cases}:
        of_class = [case for case in cases if case.label == label]
        right = sum(bench.ours(case).cause in (label, *case.also) for case in of_class)
        assert right / len(of_class) >= 0.75, label


def test_suspects_are_named_rightly_more_often_than_not(bench: ModuleType) -> None:
    labelled = [(case.suspect, bench.ours(case).suspects) for case in bench.read_cases(bench.BLIND, None)]
    named = [bench.agrees(label, said[0]) for label, said in labelled if said]
    innocent = [not said for label, said in labelled if not label]
    assert sum(named) / len(named) >= 0.75
    assert sum(innocent) / len(innocent) >= 0.8


def test_cases_of_a_second_author_are_answered_rightly(bench: ModuleType) -> None:
    cases = bench.read_cases(bench.FRESH, None)
    said = [(case, bench.ours(case)) for case in cases]
    answered = [(case, one.cause) for case, one in said if one.cause != "unknown"]
    named = [bench.agrees(case.suspect, one.suspects[0]) for case, one in said if one.suspects]
    assert len(cases) == 32
    assert all(cause in (case.label, *case.also) for case, cause in answered)
    assert len(answered) >= 26
    assert sum(named) / len(named) >= 0.9


def test_an_incident_is_on_one_side_of_the_split(bench: ModuleType) -> None:
    read, unread = (bench.read_cases(bench.BLIND, split) for split in ("blind-read", "blind-unread"))
    assert len(read) + len(unread) == 90
    assert bench.blind_half({"id": "a", "incident": "x"}) == bench.blind_half({"id": "b", "incident": "x"})
