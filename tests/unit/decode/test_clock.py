"""Times: the source's own, in UTC, with the year inferred and kernel seconds joined."""

from __future__ import annotations

import pytest

from medevac.decode.clock import Clock
from medevac.decode.context import Context
from medevac.decode.lines import decode_line

XID = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
JANUARY = 1767607200.0  # 2026-01-05 10:00 UTC


def at(raw: str, ctx: Context) -> float:
    event = decode_line(raw, ctx)
    assert event is not None
    return event.at


def test_december_of_a_log_written_in_january_is_last_years() -> None:
    clock = Clock(JANUARY)
    assert clock.syslog("Dec", "31", "23:59:59") == 1767225599.0  # 2025-12-31
    assert clock.syslog("Jan", " 5", "09:00:00") == JANUARY - 3600


def test_the_29th_of_february_is_that_of_the_last_leap_year() -> None:
    assert Clock(JANUARY).syslog("Feb", "29", "00:00:00") == 1709164800.0  # 2024-02-29


def test_local_times_are_made_utc() -> None:
    ctx = Context(reference=JANUARY, offset=3600.0)
    assert at(f"Jan  5 10:00:00 n1 kernel: {XID}", ctx) == JANUARY - 3600
    assert at(f"2026-01-05T10:00:00+02:00 n1 kernel: {XID}", ctx) == JANUARY - 7200
    assert at(f"[Mon Jan  5 10:00:00 2026] {XID}", ctx) == JANUARY - 3600


@pytest.mark.parametrize(
    "line",
    [
        "[    1.000000] rtc_cmos 00:01: setting system clock to 2026-01-05T10:00:00 UTC (1767607200)",
        "[    1.000000] audit: type=2000 audit(1767607200.000:1): state=initialized audit_enabled=0 res=1",
    ],
)
def test_a_line_with_both_clocks_dates_the_kernel_seconds_after_it(line: str) -> None:
    ctx = Context()
    assert at(f"[    0.500000] {XID}", ctx) == 0.0
    assert decode_line(line, ctx) is None
    assert at(f"[   61.000000] {XID}", ctx) == JANUARY + 60


def test_a_dated_line_with_kernel_seconds_dates_the_undated_ones() -> None:
    ctx = Context(reference=JANUARY + 86400)
    assert at(f"Jan  5 10:00:00 n1 kernel: [  100.000000] {XID}", ctx) == JANUARY
    assert at(f"n1: [  160.000000] {XID}", ctx) == JANUARY + 60
    assert at(f"n2: [  160.000000] {XID}", ctx) == 0.0


def test_a_reboot_makes_the_kernel_seconds_unknown_again() -> None:
    ctx = Context()
    decode_line("[    1.0] rtc_cmos 00:01: setting system clock to 2026-01-05T10:00:00 UTC (1767607200)", ctx)
    assert at(f"[ 5000.000000] {XID}", ctx) > 0
    assert decode_line("[    0.000000] Linux version 6.8.0 (build@host)", ctx) is None
    assert at(f"[   60.000000] {XID}", ctx) == 0.0


def test_kernel_seconds_that_run_back_are_another_boot() -> None:
    ctx = Context()
    decode_line("[    1.0] rtc_cmos 00:01: setting system clock to 2026-01-05T10:00:00 UTC (1767607200)", ctx)
    assert at(f"[ 5000.000000] {XID}", ctx) > 0
    assert at(f"[   60.000000] {XID}", ctx) == 0.0


def test_when_a_copy_was_shipped_does_not_date_a_line_with_kernel_seconds() -> None:
    shipped = '{"log": "[ 12.5] ' + XID + '", "time": "2026-01-05T10:00:00Z"}'
    assert at(shipped, Context()) == 0.0


def test_a_date_before_there_were_kernels_is_no_time() -> None:
    assert Clock(1.8e9, 0.0).iso("1013-03-01T10:02:03", ".25", "+00:00") == 0.0
