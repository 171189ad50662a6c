"""What people did, from the accounting's tables."""

from __future__ import annotations

from medevac.adapters.schedulers.slurm import parse
from medevac.adapters.schedulers.slurm.history import job_deeds, node_deeds

# `sacctmgr show event -P` of a real cluster, by zhum/slurm-swiss-knife (mocks/data/events); columns left out.
EVENTS = """\
TimeStart|TimeEnd|NodeName|State|User|Reason
2026-01-20T22:42:42|Unknown||||Cluster Registered TRES
2026-02-19T11:13:29|Unknown|node-01|DRAIN|slurm(300)|DRAIN software update : reboot
2026-02-19T12:45:05|Unknown|node-05|DRAIN|slurm(300)|BUG: Throttling [root@2026-02-19T11:34:56]
2026-02-22T14:02:09|Unknown|node-08|DRAIN|slurm(300)|BUG: ECC Error [root@2026-02-22T13:21:38]
"""

# Written after sacctmgr(1) and sacct(1).
OWN = """\
NodeName|TimeStart|TimeEnd|State|Reason|User
node0|2026-12-01T03:00:05|2026-12-01T03:01:00|DRAIN|fan tray, ticket 12|root(0)
node0|2026-12-01T03:01:00|2026-12-01T03:02:00|DRAINED|fan tray, ticket 12|root(0)
node1|2026-12-01T03:00:05|Unknown|DOWN*|Not responding|slurm(64030)
node2|2026-12-01T03:00:05|Unknown|DRAIN|medevac[hard=node2] I17: Xid 79|root(0)
node3|2026-12-01T03:00:05|Unknown|IDLE||
"""

JOBS = """\
JobID|State|Submit|Start|End|User|UID
17|FAILED|2026-12-01T03:00:00|2026-12-01T03:00:01|2026-12-01T03:00:09|kim|1000
17|CANCELLED by 0|2026-12-01T03:05:00|2026-12-01T03:05:01|2026-12-01T03:06:00|kim|1000
18|NODE_FAIL|2026-12-01T03:00:00|2026-12-01T03:00:01|2026-12-01T03:00:09|kim|1000
18|CANCELLED by 1000|2026-12-01T03:02:00|2026-12-01T03:02:01|2026-12-01T03:06:00|kim|1000
19_3|COMPLETED|2026-12-01T03:00:00|2026-12-01T03:00:01|2026-12-01T03:00:09|kim|1000
"""


def test_drains_of_a_real_cluster() -> None:
    found = list(node_deeds(parse.table(EVENTS)[0]))
    assert [(deed.subject, deed.who, deed.why) for deed in found] == [
        ("node-01", "slurm", "DRAIN software update : reboot"),
        ("node-05", "root", "BUG: Throttling"),
        ("node-08", "root", "BUG: ECC Error"),
    ]
    assert found[1].at == parse.seconds("2026-02-19T11:34:56"), "the drain, not the restart that told it anew"


def test_a_drain_is_told_once_and_never_what_slurm_or_medevac_did() -> None:
    (deed,) = node_deeds(parse.table(OWN)[0])
    assert (deed.subject, deed.who, deed.why, deed.at) == (
        "node0", "root", "fan tray, ticket 12", parse.seconds("2026-12-01T03:00:05"),
    )  # fmt: skip


def test_requeues_and_cancellations() -> None:
    found = [(deed.what, deed.subject, deed.who, deed.routine) for deed in job_deeds(parse.table(JOBS)[0])]
    assert found == [
        ("requeue", "slurm-17", "", False),
        ("cancel", "slurm-17", "uid 0", False),
        ("cancel", "slurm-18", "kim", True),
    ]
