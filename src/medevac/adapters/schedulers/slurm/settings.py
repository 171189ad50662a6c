"""What a site says about its Slurm."""

from __future__ import annotations

import msgspec

from medevac.core.events import JobPolicy


class SlurmSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Times are seconds. `partitions`, `accounts` and `qos` give jobs a policy that say nothing themselves, the later
    over the earlier; the job's own comment stands over all. `pointers`: the folder, readable on all nodes, in which
    the TaskProlog finds what a job resumes from.
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
    partitions: dict[str, JobPolicy] = {}
    accounts: dict[str, JobPolicy] = {}
    qos: dict[str, JobPolicy] = {}
