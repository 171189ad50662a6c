"""One storm is one incident with one root, whatever the order its parts come in."""

from __future__ import annotations

from msgspec.structs import replace
from tests.unit.core.builders import CLUSTER, DEMO, Told, ecc, xid

from medevac.core.decision import Decision, Finding, Incident, Part
from medevac.core.events import EnvironmentSeen
from medevac.core.view import MOST_INCIDENTS, View

PSU = EnvironmentSeen(at=50.0, rack="r0", component="psu", state="failed")


def storm(gpu: str, at: float, rows: int = 11) -> list[object]:
    return [xid(63, gpu, at + row / 10, row=f"{gpu}-{row}") for row in range(rows)]


def test_a_storm_in_one_rack_is_one_incident_whose_root_is_the_worst() -> None:
    told = Told(DEMO, CLUSTER, PSU, *storm("g00", 60.0), *storm("g11", 62.0), xid(48, "g12", 64.0))  # type: ignore[arg-type]
    (incident,) = told.view.incidents.values()
    assert incident.root.name == "g12"
    assert {part.name for part in incident.victims} == {"g00", "g11"}
    assert incident.severity == "critical"
    assert incident.probable_cause is not None
    assert (incident.probable_cause.domain, incident.probable_cause.name) == ("power", "r0")


def test_the_cause_may_be_told_afterwards() -> None:
    told = Told(DEMO, CLUSTER, xid(48, "g00", 60.0), xid(48, "g10", 61.0))
    (before,) = told.view.incidents.values()
    assert before.probable_cause is not None
    assert before.probable_cause.name == "f0"
    decision = told.tell(EnvironmentSeen(at=70.0, rack="r0", component="psu", state="failed"))
    (after,) = told.view.incidents.values()
    assert "psu failed" in after.why
    assert [incident.id for incident in decision.incidents] == [before.id]


def test_another_rack_is_another_incident() -> None:
    told = Told(DEMO, CLUSTER, PSU, xid(48, "g00", 60.0), xid(48, "g20", 61.0))
    causes = {i.root.name: i.probable_cause for i in told.view.incidents.values()}
    assert set(causes) == {"g00", "g20"}
    assert causes["g20"] is None


def test_a_supply_that_is_fine_explains_nothing() -> None:
    fine = EnvironmentSeen(at=55.0, rack="r0", component="psu", state="ok")
    told = Told(DEMO, CLUSTER, fine, xid(48, "g00", 60.0))
    (incident,) = told.view.incidents.values()
    assert incident.probable_cause is None
    assert told.tell(fine).incidents == ()


def test_an_event_of_long_ago_explains_nothing() -> None:
    told = Told(DEMO, CLUSTER, PSU, xid(48, "g00", 50.0 + DEMO.correlation.environment_s + 1))
    (incident,) = told.view.incidents.values()
    assert incident.probable_cause is None


def test_one_finding_is_said_once_however_often_it_is_seen() -> None:
    told = Told(DEMO, CLUSTER, xid(48, "g00", 60.0))
    again = told.tell(xid(48, "g00", 60.2), xid(48, "g00", 65.0), xid(48, "g00", 1000.0))
    assert again.empty()


def test_counters_and_log_lines_of_a_gpu_are_one_part() -> None:
    by_address = xid(63, "g00", 60.0, row="1")
    told = Told(DEMO, CLUSTER, ecc("g00", 1.0), by_address, ecc("g00", 61.0, dbe=1), xid(48, "g00", 62.0))
    (incident,) = told.view.incidents.values()
    assert incident.victims == ()


def test_a_gpu_that_is_not_known_is_blamed_as_its_node() -> None:
    told = Told(DEMO, CLUSTER, replace(xid(48, "g00", 60.0), gpu=None, pci="0000:99:00.0"))
    (incident,) = told.view.incidents.values()
    assert (incident.root.domain, incident.root.name) == ("node", "n0")


def test_incidents_are_bounded_and_what_is_out_is_kept() -> None:
    """Ten thousand passing incidents leave the one that holds a GPU out of service."""
    part = Part(domain="gpu", name="GPU-out", node="n")
    lost = Finding(rule="gpu-lost", part=part, severity="critical", meaning="lost", response="hard", at=0.0)
    kept = Incident(id="I1", start=0.0, last=0.0, root=part, findings=(lost,))
    view = View().after(Decision(id="D1", cause=1, at=0.0, incidents=(kept,)))
    for seq in range(2, MOST_INCIDENTS + 100):
        passing = Incident(id=f"I{seq}", start=seq, last=seq, root=part, findings=())
        view = view.after(Decision(id=f"D{seq}", cause=seq, at=float(seq), incidents=(passing,)))
    assert len(view.incidents) == MOST_INCIDENTS
    assert "I1" in view.incidents
    assert f"I{MOST_INCIDENTS + 99}" in view.incidents
