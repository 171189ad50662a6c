"""A policy: rules and numbers, all data. `medevac.catalog` loads it from TOML and checks it; here is its shape."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from medevac.core.decision import Severity
from medevac.core.events import Value
from medevac.core.health_score import Weights
from medevac.core.progress import HangRule
from medevac.core.straggler import SlowRule

Counter: TypeAlias = Literal["sbe", "dbe", "remapped_rows"]


class Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person writes in a file: an unknown key is refused."""


class Seen(Data, frozen=True, kw_only=True, tag_field="is", tag="seen"):
    """At least `at_least` distinct facts of this kind (and one of `codes`, and `where`, and not `unless`) within
    `within_s` seconds.
    """

    kind: str
    codes: tuple[int, ...] = ()
    buckets: tuple[str, ...] = ()
    where: dict[str, Value] = {}
    unless: dict[str, Value] = {}
    at_least: int = 1
    within_s: float = 86400.0


class Absent(Data, frozen=True, kw_only=True, tag_field="is", tag="absent"):
    """No such fact within `within_s` seconds."""

    kind: str
    codes: tuple[int, ...] = ()
    within_s: float = 86400.0


class Rose(Data, frozen=True, kw_only=True, tag_field="is", tag="rose"):
    """A counter grew by at least `by` within `within_s` seconds; a counter that fell was reset and starts anew."""

    counter: Counter
    by: int = 1
    within_s: float = 86400.0


class Total(Data, frozen=True, kw_only=True, tag_field="is", tag="total"):
    """A counter stands at `at_least` or more."""

    counter: Counter
    at_least: int


class OverPeers(Data, frozen=True, kw_only=True, tag_field="is", tag="over-peers"):
    """A counter grew, within `within_s`, over `ratio` times the median of the other GPUs, and by at least `by`."""

    counter: Counter
    ratio: float
    by: int
    within_s: float = 3600.0


class HealthUnder(Data, frozen=True, kw_only=True, tag_field="is", tag="health-under"):
    """The health score is certainly under `score`: what was not measured takes nothing away."""

    score: float
    weights: Weights = Weights()


Predicate: TypeAlias = Seen | Absent | Rose | Total | OverPeers | HealthUnder


class Rule(Data, frozen=True, kw_only=True):
    """All predicates of `when` hold about one part: a finding. `doubts`: its computations may have been wrong;
    `mends`: what is to be done with the part, `readmit`: it may be back after that, with nobody looking.
    """

    id: str
    meaning: str
    severity: Severity
    source: str
    when: tuple[Predicate, ...]
    response: Literal["none", "watch", "restrict", "soft", "hard", "page"] = "none"
    pages: bool = False
    repair: str = ""
    mends: Literal["", "reset", "reboot"] = ""
    readmit: bool = True
    doubts: bool = False
    family: str = ""


class Budget(Data, frozen=True, kw_only=True):
    """How much may be out (DESIGN 5a, Budget). `unit`: what is counted and isolated, GPUs or nodes."""

    unit: Literal["gpu", "node"] = "node"
    cluster_share: float = 0.10
    cluster_least: int = 1
    rack_share: float = 0.50
    nvlink_share: float = 0.50
    new_in_window: int = 4
    window_s: float = 600.0
    floor_share: float = 0.70


class Recovery(Data, frozen=True, kw_only=True):
    """What is done for a job."""

    max_restarts: int = 20
    backoff_s: tuple[float, ...] = (1.0, 5.0, 15.0, 60.0)
    attempts_without_progress: int = 3
    no_clean: Literal["hold", "restart"] = "hold"
    drain_deadline_s: float = 60.0
    stop_grace_s: float = 2.0
    retry_s: float = 5.0
    retry_most_s: float = 60.0
    refused_starts: int = 8
    array_share: float = 0.5
    array_least: int = 3
    same_gpu_crashes: int = 2
    user_code_exits: tuple[int, ...] = (2, 126, 127)


class Lineage(Data, frozen=True, kw_only=True):
    """How far back a fault casts doubt: to the last reading without the error, at least `margin_s` back; where
    nothing was read, `blind_s` back.
    """

    margin_s: float = 1.0
    blind_s: float = 600.0


class Correlation(Data, frozen=True, kw_only=True):
    """Within which time findings under one parent are one incident, and an environment event is its cause."""

    window_s: float = 600.0
    environment_s: float = 1800.0


class Mending(Data, frozen=True, kw_only=True):
    """Which repairs are ordered by themselves for what was taken out hard. What was mended and fails within `again_s`
    is left to a person.
    """

    automatic: tuple[Literal["reset", "reboot"], ...] = ()
    again_s: float = 86_400.0


class Policy(Data, frozen=True, kw_only=True):
    """All of it. `name` and `digest` stand in each decision."""

    name: str
    digest: str = ""
    mode: Literal["act", "monitor"] = "act"
    rules: tuple[Rule, ...] = ()
    budget: Budget = Budget()
    recovery: Recovery = Recovery()
    hang: HangRule = HangRule()
    slow: SlowRule = SlowRule()
    lineage: Lineage = Lineage()
    correlation: Correlation = Correlation()
    mending: Mending = Mending()
