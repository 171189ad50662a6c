"""The labelled cases, story by story, and what they must reach together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from medevac.core.diagnose import diagnose
from medevac.core.diagnose_case import Diagnosis
from medevac.decode.joblog_case import build_case, read_log

CASES: list[dict[str, Any]] = [
    msgspec.json.decode(line) for line in Path(__file__).with_name("cases.jsonl").read_bytes().splitlines()
]


def verdict(lines: list[str]) -> Diagnosis:
    return diagnose(build_case([read_log("job.log", ["\n".join([*lines, ""]).encode()])]))


def right(case: dict[str, Any]) -> bool:
    return verdict(case["lines"]).cause in (case["class"], *case.get("also", ()))


@pytest.mark.parametrize("case", [one for one in CASES if one["split"] == "built"], ids=lambda one: one["id"])
def test_a_case_used_to_write_the_rules_is_read_right(case: dict[str, Any]) -> None:
    said = verdict(case["lines"])
    assert said.cause in (case["class"], *case.get("also", ()))
    assert said.symptom == case["symptom"]
    for key, value in case.get("suspect", {}).items():
        assert getattr(said.suspects[0], key) == value


def test_the_cases_held_back_reach_precision_and_coverage() -> None:
    held = [case for case in CASES if case["split"] == "held"]
    answered = [case for case in held if not verdict(case["lines"]).abstained]
    known = [case for case in held if case["class"] != "unknown"]
    good = sum(map(right, answered))
    assert good / len(answered) >= 0.95
    assert good / len(known) >= 0.75


def test_each_class_is_covered() -> None:
    for name in {case["class"] for case in CASES}:
        rows = [case for case in CASES if case["class"] == name]
        assert sum(map(right, rows)) / len(rows) >= 0.5, name


def test_the_order_of_ranks_in_a_log_does_not_matter() -> None:
    for case in CASES:
        if all(line.startswith("[rank") for line in case["lines"]):
            assert verdict(case["lines"]).cause == verdict(case["lines"][::-1]).cause, case["id"]
