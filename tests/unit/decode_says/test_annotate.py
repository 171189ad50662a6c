"""What one event means: the table, and what the line's own words change in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decode_says.faults import fault, xid

from medevac.core.events import FaultSeen, Value
from medevac.decode.annotate import Annotation, Annotator
from medevac.decode.context import Context
from medevac.decode.lines import decode_line

ANNOTATOR = Annotator()


def read(event: FaultSeen) -> Annotation:
    return ANNOTATOR.annotate(event)


def policy(event: FaultSeen) -> tuple[str, str] | None:
    made = read(event).policy_action
    return (made.action, made.rule) if made else None


def test_table_speaks_for_a_plain_code() -> None:
    reading = read(xid(79))
    assert (reading.action, reading.severity, reading.blame) == ("RESTART_BM", "critical", "gpu")
    assert reading.policy_action is None
    assert reading.kills_job is True


def test_unknown_code_stays_unknown() -> None:
    reading = read(xid(999))
    assert (reading.action, reading.severity, reading.blame) == (None, "unknown", "unknown")


def test_application_codes_are_the_tenants() -> None:
    assert {read(xid(code)).audience for code in (13, 31, 43)} == {"tenant"}


@pytest.mark.parametrize(
    ("rst", "drst", "severity", "action"),
    [
        ("Yes", "No", "critical", "RESET_GPU"),
        ("No", "No", "warning", "RESTART_APP"),
        ("No", "Yes", "warning", "DRAIN_AND_RESET"),
    ],
)
def test_uncontained_error_does_what_its_reset_flag_says(rst: str, drst: str, severity: str, action: str) -> None:
    reading = read(xid(95, rst=rst, drst=drst))
    assert (reading.severity, reading.now, reading.action) == (severity, action, "RESET_GPU")


@pytest.mark.parametrize(
    ("asked", "action", "severity"),
    [
        ("0x0 None", "IGNORE", "info"),
        ("0x1 GPU Reset Required", "RESET_GPU", "critical"),
        ("0x2 Node Reboot Required", "RESTART_BM", "critical"),
        ("0x3 Drain P2P", "DRAIN_P2P", "warning"),
        ("0x4 Drain and Reset", "DRAIN_AND_RESET", "warning"),
        ("0x5 Recover IMEX Domain", "RECOVER_IMEX_DOMAIN", "warning"),
        ("0x6 Bus Reset", "BUS_RESET", "critical"),
        ("0x9 Something New", "XID_154", "unknown"),
    ],
)
def test_recovery_action_value_by_value(asked: str, action: str, severity: str) -> None:
    reading = read(xid(154, recovery_from="0x0 None", recovery_to=asked))
    assert (reading.now, reading.severity) == (action, severity)


def test_recovery_action_that_is_cut_off_is_unknown() -> None:
    assert read(xid(154)).severity == "unknown"


def test_remap_asks_for_a_reset_when_idle() -> None:
    assert read(xid(63)).severity == "info"
    assert policy(xid(63)) == ("RESET_WHEN_IDLE", "remap-stored")


def test_remap_that_already_waits_did_not_fail() -> None:
    assert read(xid(64, reason="already pending")).severity == "warning"
    assert read(xid(64, reason="bank full")).severity == "critical"


def test_repair_says_what_activates_it() -> None:
    assert policy(xid(160, activation="gpu reset")) == ("RESET_WHEN_IDLE", "repair-by-reset")
    assert policy(xid(160, activation="node reboot")) == ("REBOOT_WHEN_IDLE", "repair-by-reboot")


def test_nvlink5_row_is_found_by_unit_and_status() -> None:
    reading = read(xid(145, unit="RLW_REMAP", severity="Nonfatal", intrinfo="0x00000004", errorstatus="0x00000004"))
    assert (reading.action, reading.after, reading.severity) == ("XID_154_EVAL", "CHECK_NVLINK_FAILURE_FLOW", "warning")


def test_nvlink5_line_that_says_fatal_outranks_its_row() -> None:
    def line(severity: str) -> FaultSeen:
        return xid(144, unit="SAW_MVB", intrinfo="0x00000001", errorstatus="0x00000004", severity=severity)

    assert read(line("Nonfatal")).severity == "info"
    assert read(line("Fatal")).severity == "critical"
    assert policy(line("Fatal")) == ("RESET_GPU", "line-says-fatal")


def test_nvlink5_line_that_says_nonfatal_outranks_its_row() -> None:
    reading = read(xid(145, unit="RLW_REMAP", severity="Nonfatal", intrinfo="0x00000004", errorstatus="0x00000040"))
    assert (reading.severity, reading.action) == ("warning", "RESET_GPU")


def test_nvlink5_promoted_row_needs_a_reset() -> None:
    plain = xid(145, unit="RLW_RXPIPE", intrinfo="0x00000006", errorstatus="0x00000001")
    promoted = xid(145, unit="RLW_RXPIPE", intrinfo="0x00000086", errorstatus="0x00000001")
    assert (read(plain).action, read(promoted).action) == ("IGNORE", "RESET_GPU")


def test_nvlink5_reason_of_a_link_that_went_down() -> None:
    reading = read(
        xid(149, unit="NETIR_LINK_EVT", severity="Fatal", intrinfo="0x020001c6", errorstatus="0x00000000", link=4)
    )
    assert (reading.after, reading.severity, reading.blame) == ("INVESTIGATE_PEER_DEVICE", "critical", "link")


def test_nvlink5_unit_that_only_the_register_names() -> None:
    named = read(xid(146, unit="TLW_CTRL", intrinfo="0x00000009", errorstatus="0x00000004"))
    coded = read(xid(146, unit="SOMETHING", intrinfo="0x00000009", errorstatus="0x00000004"))
    assert named.action == coded.action == "RESET_GPU"


def test_injected_nvlink5_error_is_nobodys() -> None:
    reading = read(xid(145, unit="RLW_CTRL", severity="Fatal", injected="yes"))
    assert (reading.severity, reading.blame) == ("info", "none")


def test_nvlink_registers_say_what_to_do() -> None:
    assert policy(xid(74, registers="0x10 0x0 0x0 0x0 0x0 0x0 0x0")) == ("REPORT_ISSUE", "nvlink-registers")
    assert policy(xid(74, registers="0x0 0x0 0x0 0x40000 0x0 0x0 0x0")) == ("RESET_FABRIC", "nvlink-registers")
    assert read(xid(74, registers="0x1 0x0 0x0 0x0 0x0 0x0 0x0")).severity == "info"
    assert read(xid(74, severity="fatal", link=6)).severity == "critical"


def test_switch_says_fatal_or_not() -> None:
    fatal = fault("sxid", code=12028, fatal="yes", severity="Fatal")
    harmless = fault("sxid", code=20034, fatal="no", severity="Non-fatal")
    assert read(fatal).severity == "critical"
    assert read(harmless).severity == "warning"
    assert read(fault("sxid", code=22013, fatal="no")).severity == "info"


def test_unknown_switch_code_is_fatal_only_by_its_own_word() -> None:
    assert read(fault("sxid", code=11999)).severity == "unknown"
    assert read(fault("sxid", code=11999, fatal="yes")).severity == "critical"


def test_gpu_off_the_bus_without_an_xid_is_read_as_79() -> None:
    reading = read(fault("fell_off", code=79, pci="0000:3b:00.0"))
    assert (reading.action, reading.severity, reading.cause) == ("RESTART_BM", "critical", 0)


def test_driver_that_cannot_start_the_gpu_is_critical() -> None:
    assert read(fault("nvrm_other", event="rm_init_failed")).severity == "critical"
    assert read(fault("nvrm_other")).severity == "info"


@pytest.mark.parametrize(
    "event",
    [
        fault("mce", severity="fatal", previous_boot="yes"),
        fault("aer", severity="Corrected"),
        fault("thermal_clear"),
        fault("ib_link", state="ACTIVE"),
        fault("peermem"),
        fault("mlx5", event="access_reg_failed"),
    ],
)
def test_noise_is_info(event: FaultSeen) -> None:
    assert read(event).severity == "info"


def test_machine_check_where_errors_are_injected_is_not_taken_at_its_word() -> None:
    assert read(fault("mce", severity="fatal")).severity == "warning"
    assert read(fault("mce", severity="fatal", injector="loaded")).severity == "unknown"


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 9: be00000000800150", "warning"),
        ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 9: 9c00000000800150", "info"),
        ("EDAC MC1: 2 UE memory read error on CPU_SrcID#1_MC#1_Chan#0_DIMM#1 (channel:0 slot:1)", "warning"),
        ("EDAC MC1: 2 CE memory read error on CPU_SrcID#1_MC#1_Chan#0_DIMM#1 (channel:0 slot:1)", "info"),
        ("[Hardware Error]: Uncorrected, software restartable error.", "warning"),
        ("[Hardware Error]: Corrected error, no action required.", "info"),
    ],
)
def test_machine_check_that_was_not_corrected_is_the_nodes(line: str, severity: str) -> None:
    event = decode_line(f"[ 4321.000000] {line}", Context())
    assert event is not None
    assert (read(event).severity, read(event).blame) == (severity, "node" if severity == "warning" else "none")


@pytest.mark.parametrize(
    ("line", "device"),
    [
        ("XFS (nvme2n1): Filesystem has been shut down due to log error (0x2).", "nvme2n1"),
        ("nvme3n1: I/O Cmd(0x2) @ LBA 4096, 8 blocks, I/O Error (sct 0x2 / sc 0x81) MORE", "nvme3n1"),
        ("block dm-4: no usable path", "dm-4"),
    ],
)
def test_storage_that_kills_training_is_a_warning(line: str, device: str) -> None:
    event = decode_line(f"[ 4321.000000] {line}", Context())
    assert event is not None
    assert (event.kind, event.details["device"], read(event).severity) == ("disk", device, "warning")


def test_line_that_the_driver_did_not_write_is_unknown() -> None:
    assert read(fault("unread", code=79, quoted="xid")).severity == "unknown"


TEXT = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=12), st.sampled_from(["Fatal", "No", "0x1 "])
)
NAMES = st.sampled_from(
    ["rst", "recovery_to", "severity", "unit", "intrinfo", "errorstatus", "registers", "event", "x"]
)


@given(
    kind=st.one_of(st.sampled_from(["xid", "sxid", "aer", "mce", "mlx5", "nvrm_other"]), st.text(max_size=8)),
    code=st.one_of(st.none(), st.sampled_from([48, 74, 95, 144, 145, 149, 154]), st.integers(-5, 99999)),
    details=st.dictionaries(NAMES, TEXT, max_size=6),
)
def test_any_event_has_a_reading_and_always_the_same(kind: str, code: int | None, details: dict[str, Value]) -> None:
    event = FaultSeen(at=0.0, kind=kind, code=code, details=details)
    assert Annotator().annotate(event) == ANNOTATOR.annotate(event)
