"""What a site says about its Slurm."""

from __future__ import annotations

import msgspec

from medevac.core.events import JobPolicy


class SlurmSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Times are seconds. `partitions`, `accounts` and `qos` give jobs a policy that say nothing themselves, the later
    over the earlier; the job's own comment stands over all. `pointers`: the folder, readable on all nodes, in which
    the TaskProlog finds what a job resumes from. A restricted node gets `restricted_weight` where its own is less, and
    where `restricted_partition` is named stays in that one only. `reserve_repairs`: a node that is out hard gets a
    maintenance reservation too. `counted_gres`: a GRES without device files whose count stands for a node's GPUs.
    `restd`: the Unix socket of a slurmrestd that jobs and nodes are read from, instead of by command.
    `look_around_s`: how often nodes are looked for that are new, and for restrictions that Slurm forgot.
    """

    prefix: str = ""
    deadline_s: float = 20.0
    poll_s: float = 0.5
    start_wait_s: float = 30.0
    stop_wait_s: float = 120.0
    lost_after_s: float = 30.0
    forget_after_s: float = 604_800.0
    exclude_for_s: float = 86_400.0
    topology: str = ""
    pointers: str = ""
    restricted_weight: int = 100_000
    restricted_partition: str = ""
    reserve_repairs: bool = False
    counted_gres: str = ""
    restd: str = ""
    look_around_s: float = 15.0
    partitions: dict[str, JobPolicy] = {}
    accounts: dict[str, JobPolicy] = {}
    qos: dict[str, JobPolicy] = {}
