"""What belongs together: root and victims, blame, actions, and storms."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.decode_says.faults import GPU, PEER, T0, fault, incidents_of, roles, root_code, xid

from medevac.core.events import FaultSeen
from medevac.decode.incidents import Incident, Incidents


def only(*faults: FaultSeen) -> Incident:
    found = incidents_of(*faults)
    assert len(found) == 1, [(root_code(one), one.facts) for one in found]
    return found[0]


def test_one_fault_is_alone() -> None:
    incident = only(xid(79))
    assert [fact.role for fact in incident.facts] == ["alone"]
    assert (incident.blame.kind, incident.blame.pci, incident.action_now) == ("gpu", GPU, "RESTART_BM")
    assert incident.first == incident.last == T0


def test_silence_of_three_minutes_ends_an_incident() -> None:
    assert len(incidents_of(xid(31, 0), xid(31, 179))) == 1
    assert len(incidents_of(xid(31, 0), xid(31, 181))) == 2


def test_xid_13_is_silent_after_15_seconds_but_stays_with_its_gpu() -> None:
    collected = Incidents()
    for at in (0, 14, 40):
        collected.add(xid(13, at))
    assert len(collected.bursts.all) == 2
    assert only(xid(13, 0), xid(13, 14), xid(13, 40)).facts[0].count == 3


def test_45_follows_the_fault_before_it() -> None:
    incident = only(xid(48, 0), xid(45, 2), xid(45, 3, pci=PEER))
    assert root_code(incident) == 48
    assert roles(incident) == {(48, GPU): "root", (45, GPU): "victim", (45, PEER): "victim"}


def test_45_a_second_before_its_cause_is_still_the_victim() -> None:
    assert root_code(only(xid(45, 0), xid(62, 1), xid(109, 8))) == 62


def test_45_follows_the_code_it_names() -> None:
    incident = only(xid(145, 0), xid(45, 5, node="node2", pci=PEER, caused_by=145))
    assert root_code(incident) == 145


def test_45_alone_has_no_root_and_no_hardware_to_blame() -> None:
    incident = only(xid(45, 0), xid(45, 1))
    assert incident.root is None
    assert incident.blame.kind == "unknown"
    assert incident.action_now == "RESTART_FM"


def test_everything_after_a_lost_gpu_follows_from_it() -> None:
    incident = only(
        xid(79, 0),
        fault("fell_off", 0, code=79, pci=GPU),
        xid(74, 1, pci=PEER),
        xid(45, 2, pci=PEER),
        xid(154, 3, recovery_to="0x2 Node Reboot Required"),
        fault("nvrm_other", 60, pci=GPU, event="rm_init_failed"),
    )
    assert root_code(incident) == 79
    assert roles(incident)[74, PEER] == "victim"
    assert incident.blame.pci == GPU


def test_neighbours_that_complain_first_are_not_the_root() -> None:
    incident = only(xid(74, 0, pci=PEER), xid(74, 0, pci="0000:86:00.0"), xid(79, 2))
    assert root_code(incident) == 79


def test_63_gpus_complain_about_one_link() -> None:
    faults = [xid(145, gpu / 10, node=f"node{gpu // 4}", pci=f"{gpu % 4:04x}:01:00.0") for gpu in range(63)]
    root = xid(149, 3, node="node15", pci="0003:01:00.0", link=7)
    incident = only(*faults, root)
    assert root_code(incident) == 149
    assert (incident.blame.kind, incident.blame.node, incident.blame.pci) == ("link", "node15", "0003:01:00.0")
    assert len(incident.nodes) == 16


def test_two_gpus_off_the_bus_at_once_blame_their_node() -> None:
    incident = only(xid(79, 0), xid(79, 1, pci=PEER))
    assert (incident.blame.kind, incident.blame.node, incident.blame.pci) == ("node", "node1", None)


def test_faults_on_two_gpus_are_two_incidents() -> None:
    assert len(incidents_of(xid(48, 0), xid(48, 1, pci=PEER))) == 2


def test_same_gpu_address_on_two_nodes_is_two_incidents() -> None:
    assert len(incidents_of(xid(48, 0), xid(48, 1, node="node2"))) == 2


@pytest.mark.parametrize(
    ("beside", "now", "after"),
    [
        ([], "RESET_GPU", "RUN_FIELDDIAG"),
        ([63], "DRAIN_AND_RESET", "IGNORE"),
        ([64], "DRAIN_AND_RESET", "CONTACT_SUPPORT"),
    ],
)
def test_double_bit_error_alone_or_with_a_remap(beside: list[int], now: str, after: str) -> None:
    incident = only(xid(48, 0), *(xid(code, 1) for code in beside))
    assert (incident.action_now, incident.action_after) == (now, after)


def test_recovery_action_overrides_the_table() -> None:
    incident = only(xid(119, 0), xid(154, 1, recovery_to="0x2 Node Reboot Required"))
    assert (root_code(incident), incident.action_now) == (119, "RESTART_BM")


def test_lost_gpu_is_not_reset_in_band_whatever_the_driver_asks() -> None:
    assert only(xid(79, 0), xid(154, 1, recovery_to="0x1 GPU Reset Required")).action_now == "RESTART_BM"


def test_a_reset_that_the_driver_asks_for_after_a_program_s_fault_is_the_operator_s() -> None:
    incident = only(xid(31, 0), xid(154, 1, recovery_to="0x1 GPU Reset Required"))
    assert (incident.blame.kind, incident.action_now, incident.audience) == ("gpu", "RESET_GPU", "operator")
    assert only(xid(31, 0)).audience == "tenant"
    assert only(xid(43, 0), xid(154, 1, recovery_to="0x0 None")).audience == "tenant"


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_the_driver_s_word_that_a_gpu_needs_a_reboot_outranks_the_table_that_blames_the_program(code: int) -> None:
    asks = "0x2 Node Reboot Required"
    incident = only(xid(code, 0), xid(154, 1, recovery_to=asks))
    assert (incident.blame.kind, incident.blame.pci, incident.action_now) == ("gpu", GPU, "RESTART_BM")
    assert "healthy" not in incident.meaning


def test_a_reboot_that_the_driver_takes_back_blames_the_program_again() -> None:
    asked = xid(154, 1, recovery_to="0x2 Node Reboot Required")
    assert only(xid(43, 0), asked, xid(154, 2, recovery_to="0x0 None")).blame.kind == "job"


def test_a_reset_of_another_gpu_blames_none_for_a_program_s_fault() -> None:
    crash = [
        xid(13, 0, pid=7),
        xid(13, 1, pci=PEER, pid=7),
        xid(154, 2, pci=PEER, recovery_to="0x1 GPU Reset Required"),
    ]
    assert only(*crash).blame.kind == "job"


def test_link_error_does_what_154_says_else_restarts_the_job() -> None:
    line = xid(145, unit="RLW_REMAP", severity="Nonfatal", intrinfo="0x00000004", errorstatus="0x00000001")
    assert only(line).action_now == "RESTART_APP"
    assert only(line, xid(154, 1, recovery_to="0x4 Drain and Reset")).action_now == "DRAIN_AND_RESET"


def test_162_cancels_163_hours_later() -> None:
    incident = only(xid(163, 0), xid(162, 7200))
    assert (incident.severity, incident.action_now) == ("info", "IGNORE")
    assert only(xid(163, 0)).severity == "warning"


def test_what_follows_a_fault_that_had_no_reset_follows_from_it() -> None:
    assert root_code(only(xid(62, 0), xid(119, 3600), xid(109, 9000))) == 62


def test_a_loaded_driver_ends_what_a_fault_explains() -> None:
    found = incidents_of(xid(62, 0), fault("nvrm_info", 1800, driver="570.1"), xid(119, 3600))
    assert [root_code(one) for one in found] == [62, 119]


def test_failed_start_after_the_reboot_still_follows_from_the_fault() -> None:
    incident = only(xid(62, 0), fault("nvrm_info", 600, driver="570.1"), xid(143, 610))
    assert root_code(incident) == 62


def test_lost_again_on_another_day_is_a_repeat() -> None:
    found = incidents_of(xid(79, 0), xid(79, 86000))
    assert [one.repeats for one in found] == [0, 1]


def test_program_fault_that_comes_back_with_other_programs_blames_the_gpu() -> None:
    found = incidents_of(xid(31, 0, pid=10), xid(31, 5000, pid=20), xid(31, 9000, pid=30))
    assert [one.blame.kind for one in found] == ["job", "job", "gpu"]
    found = incidents_of(xid(31, 0, pid=10), xid(31, 5000, pid=10), xid(31, 9000, pid=10))
    assert {one.blame.kind for one in found} == {"job"}


def test_memory_kill_is_the_cause_of_its_process_leaving_the_gpu() -> None:
    incident = only(fault("oom", 0, pid=7, process="python3"), xid(45, 1, pid=7, process="python3"))
    assert incident.root is not None
    assert (incident.root.kind, incident.blame.kind, incident.audience) == ("oom", "job", "tenant")


def test_driver_that_cannot_start_the_gpu_needs_no_xid() -> None:
    incident = only(
        fault("nvrm_other", 0, event="gsp_boot_failed"), fault("nvrm_other", 1, pci=GPU, event="rm_init_failed")
    )
    assert (incident.severity, incident.blame.kind, incident.blame.pci) == ("critical", "gpu", GPU)


def test_links_that_come_up_and_identities_are_no_incident() -> None:
    assert (
        incidents_of(fault("ib_link", state="ACTIVE"), fault("nvrm_info", gpu_uuid="GPU-1"), fault("nvrm_other")) == []
    )


def test_quoted_xid_is_listed_and_blames_nobody() -> None:
    found = incidents_of(fault("unread", 0, code=79, pci=GPU), xid(31, 1))
    assert {(one.root.kind, one.blame.kind, one.severity) for one in found if one.root} == {
        ("unread", "none", "unknown"),
        ("xid", "job", "warning"),
    }


def test_unknown_code_is_unknown() -> None:
    incident = only(xid(999))
    assert (incident.severity, incident.blame.kind, incident.action_now) == ("unknown", "unknown", "not published")


def test_repeated_section_of_a_report_is_the_same_fact() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    told = [fault("xid", 0, code=79, pci=GPU, raw=f"Mar  1 10:00:00 node1 kernel: {line}") for _ in range(2)]
    again = FaultSeen(at=0.0, kind="xid", code=79, pci=GPU, file="kern.log", raw=f"[ 1897.016345] {line}")
    fact = only(*told, again).facts
    assert sum(one.distinct for one in fact) == 1
    assert sum(one.count for one in fact) == 3


def test_log_without_any_time_is_one_story() -> None:
    faults = [FaultSeen(at=0.0, kind="xid", code=code, pci=GPU, file="d", line=code, raw="x") for code in (48, 63, 45)]
    assert root_code(only(*faults)) == 48


def storm(code: int, copies: int, nodes: int = 77) -> list[FaultSeen]:
    """Xids of one job's crash on many nodes within half a minute."""
    picks = random.Random(7)
    return [
        xid(
            code,
            picks.uniform(0, 30),
            node=f"n{copy % nodes:03d}",
            pci=f"0000:{picks.randrange(8):02x}:00.0",
            pid=4000 + copy % nodes,
            process="pt_main_thread",
        )
        for copy in range(copies)
    ]


@pytest.mark.parametrize("code", [45, 13, 31, 43])
def test_storm_of_one_job_is_one_incident_that_blames_no_hardware(code: int) -> None:
    incident = only(*storm(code, 20_000))
    assert incident.blame.kind == "job"
    assert len(incident.nodes) == 77
    assert sum(fact.count for fact in incident.facts) == 20_000
    assert incident.severity != "critical"


def test_one_lost_gpu_hidden_in_a_storm_is_found() -> None:
    faults = storm(45, 20_000)
    faults.insert(11_111, xid(79, 5, node="n042", pci="0000:03:00.0"))
    incident = only(*faults)
    assert root_code(incident) == 79
    assert (incident.blame.kind, incident.blame.node, incident.blame.pci) == ("gpu", "n042", "0000:03:00.0")


def test_storm_read_node_by_node_is_the_same_incident() -> None:
    faults = sorted(storm(45, 5_000), key=lambda one: (one.node, one.at))
    assert len(incidents_of(*faults)) == 1


def test_copies_of_29_facts_stay_29_facts() -> None:
    collected = Incidents()
    facts = [xid(31, 0, node=f"n{one}", pid=one, process=f"p{one}") for one in range(29)]
    for _ in range(2_000):
        for one in facts:
            collected.add(one)
    assert len(collected.bursts.all) == 29
    assert sum(len(burst.told) for burst in collected.bursts.all) == 29
    incidents = [story.incident for story in collected.stories()]
    assert [fact.count for one in incidents for fact in one.facts] == [2_000] * 29


def test_followed_log_knows_an_events_place_at_once() -> None:
    collected = Incidents()
    seen = [collected.membership(collected.add(one)[1]) for one in (xid(79, 0), xid(45, 5, pci=PEER))]
    assert [one.role for one in seen] == ["alone", "victim"]
    assert seen[0].incident == seen[1].incident


def test_followed_log_forgets_what_is_long_over() -> None:
    collected = Incidents()
    for day in range(30):
        collected.membership(collected.add(xid(31, day * 86400.0))[1])
    assert len(collected.bursts.all) <= 3


CODES = st.sampled_from([13, 31, 43, 45, 48, 62, 63, 74, 79, 94, 119, 145, 149, 154, 162, 163, 999])
FAULTS = st.lists(
    st.builds(
        xid,
        CODES,
        st.integers(0, 900).map(float),
        node=st.sampled_from(["a", "b"]),
        pci=st.sampled_from([GPU, PEER, None]),
        pid=st.sampled_from([None, 1, 2]),
        process=st.sampled_from([None, "train"]),
    ),
    max_size=25,
)


@settings(deadline=None)
@given(FAULTS)
def test_every_fault_is_in_one_incident_and_none_is_lost(faults: list[FaultSeen]) -> None:
    collected = Incidents()
    bursts = {collected.add(one)[1].index for one in faults}
    stories = collected.stories()
    told = [burst.index for story in stories for burst in story.bursts]
    assert sorted(told) == sorted(bursts)
    assert sum(fact.count for story in stories for fact in story.incident.facts) == len(faults)


@settings(deadline=None)
@given(FAULTS)
def test_each_incident_has_at_most_one_root_and_the_same_twice(faults: list[FaultSeen]) -> None:
    found = incidents_of(*faults)
    assert found == incidents_of(*faults)
    for incident in found:
        assert sum(fact.role == "root" for fact in incident.facts) <= 1
        assert len(set(incident.nodes)) == len(incident.nodes)
    assert len({one.incident for one in found}) == len(found)


def test_firmware_that_does_not_answer_is_diagnosed_after_its_reset() -> None:
    asked = {(only(xid(code)).action_now, only(xid(code)).action_after) for code in (119, 120)}
    assert asked == {("RESET_GPU", "RUN_FIELDDIAG")}


def test_a_ring_without_times_tells_the_latest_such_fact_of_its_report_again() -> None:
    """Two boots lost the GPU; the ring is of the second."""
    off = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    again = msgspec.structs.replace(xid(79, 0, file="report", raw=f"[ 1897.016345] {off}"), at=0.0)
    before, after = xid(79, 0, file="report", raw=off), xid(79, 50_000, file="report", raw=off)
    for order in ((before, after, again), (again, before, after)):
        found = incidents_of(*order)
        assert [(one.facts[0].count, one.facts[0].distinct) for one in found] == [(1, 1), (2, 1)]
        assert [one.root and one.root.line for one in found] == [1, 50_001]


def test_a_process_that_the_driver_does_not_know_is_no_name_of_a_program() -> None:
    collected = Incidents()
    collected.add(xid(31, 0, process="unknown"))
    collected.add(xid(31, 1, process="train"))
    assert [burst.processes for burst in collected.bursts.all] == [("train",)]
