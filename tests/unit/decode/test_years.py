"""Dates without a year: the year, and the zone, of the nearest line of the log that shows them."""

from __future__ import annotations

import datetime as dt
import io
import os
import tarfile
from pathlib import Path

import pytest

from medevac.decode import years
from medevac.decode.clock import Clock
from medevac.decode.files import decode_files
from medevac.decode.incidents import Incidents
from medevac.decode.prefix import split

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=a, GPU has fallen off the bus."
ISO = f"2024-07-06T21:45:45.304276-04:00 n1 kernel: {XID}"
LOCAL = f"Jul  6 21:45:45 n1 kernel: {XID}"
LATE = dt.datetime(2026, 11, 30, tzinfo=dt.UTC).timestamp()


def utc(text: str) -> float:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp()


def times(path: Path, *lines: str) -> list[float]:
    path.write_text("\n".join(lines) + "\n")
    os.utime(path, (LATE, LATE))
    return [event.at for event in decode_files([str(path)])]


@pytest.mark.parametrize("lines", [(ISO, LOCAL), (LOCAL, ISO)])
def test_before_or_after_a_line_with_year_and_zone(tmp_path: Path, lines: tuple[str, str]) -> None:
    assert {int(at) for at in times(tmp_path / "report.log", *lines)} == {int(utc("2024-07-07T01:45:45"))}


def test_a_report_that_repeats_a_section_tells_one_incident(tmp_path: Path) -> None:
    path = tmp_path / "report.log"
    times(path, "  /var/log/kern.log:", ISO, "", "  journalctl -b -0:", LOCAL)
    collected = Incidents()
    for event in decode_files([str(path)]):
        collected.add(event)
    (story,) = collected.stories()
    assert [(fact.count, fact.distinct) for fact in story.incident.facts] == [(2, 1)]


def test_the_clock_that_the_kernel_set_tells_the_year_too(tmp_path: Path) -> None:
    clock = "[    1.000000] rtc_cmos 00:01: setting system clock to 2022-12-02T15:11:32 UTC (1669993892)"
    found = times(tmp_path / "report.log", f"Nov 30 10:59:01 n1 kernel: {XID}", clock, f"[   61.000000] {XID}")
    assert found == [utc("2022-11-30T10:59:01"), 1669993952.0]


def test_the_turn_of_the_year(tmp_path: Path) -> None:
    lines = [
        f"[Tue Dec 31 23:00:00 2024] {XID}",
        f"Jan  1 00:30:00 n1 kernel: {XID}",
        f"Dec 31 22:00:00 n1 kernel: {XID}",
    ]
    want = [utc("2024-12-31T23:00:00"), utc("2025-01-01T00:30:00"), utc("2024-12-31T22:00:00")]
    assert times(tmp_path / "kern.log", *lines) == want


def test_one_dated_line_dates_a_year_of_lines_after_it() -> None:
    clock = Clock(LATE)
    clock.dated("2024", "Mar", "1", "00:00:00")
    months = ["Apr", "Jul", "Oct", "Jan", "Apr"]
    seen = [dt.datetime.fromtimestamp(clock.syslog(month, " 1", "00:00:00"), dt.UTC).year for month in months]
    assert seen == [2024, 2024, 2024, 2025, 2025]


def test_a_log_without_any_year_is_as_old_as_its_file(tmp_path: Path) -> None:
    assert times(tmp_path / "kern.log", LOCAL) == [utc("2026-07-06T21:45:45")]


def test_no_more_events_wait_for_a_year_than_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(years, "HELD", 3)
    path = tmp_path / "kern.log"
    path.write_text((LOCAL + "\n") * 9 + ISO + "\n")
    os.utime(path, (LATE, LATE))
    lines = [event.line for event in decode_files([str(path)])]
    assert lines == list(range(1, 11))


def test_the_other_logs_of_an_archive_tell_the_year(tmp_path: Path) -> None:
    path = tmp_path / "sosreport.tar"
    with tarfile.open(path, "w") as archive:
        for name, text in (("a/dmesg_-T", f"[Sat Jul  6 21:45:45 2024] {XID}\n"), ("b/messages", LOCAL + "\n")):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(text), int(LATE)
            archive.addfile(member, io.BytesIO(text.encode()))
    assert {event.at for event in decode_files([str(path)])} == {utc("2024-07-06T21:45:45")}


def test_a_log_followed_for_days_stays_in_the_year_it_is() -> None:
    clock = Clock(utc("2026-03-01T00:00:00"))
    assert clock.syslog("Mar", " 1", "00:00:00") == utc("2026-03-01T00:00:00")
    clock.reference = utc("2026-03-09T00:00:00")
    assert clock.syslog("Mar", " 8", "23:59:59") == utc("2026-03-08T23:59:59")
    clock.reference = utc("2027-03-02T00:00:00")
    assert clock.syslog("Mar", " 1", "00:00:00") == utc("2027-03-01T00:00:00")


@pytest.mark.parametrize(
    "date", ["Mon Mar  4 15:50:33 UTC 2024", "Mo 4. Mär 15:50:33 CET 2024", "mar. 05 mars 2024 03:50:33 PM CET"]
)
def test_a_bug_report_says_when_it_was_made(tmp_path: Path, date: str) -> None:
    head = f"Start of NVIDIA bug report log file.\n\nnvidia-bug-report.sh Version: 1\n\nDate: {date}\nuname: Linux"
    found = times(
        tmp_path / "report.log", head, f"Mar  3 10:00:00 n1 kernel: {XID}", f"Mar  8 10:00:00 n1 kernel: {XID}"
    )
    assert found == [utc("2024-03-03T10:00:00"), utc("2023-03-08T10:00:00")]


def test_local_times_are_in_the_zone_shown_last_unless_it_was_given(tmp_path: Path) -> None:
    winter, summer = "2024-01-02T10:00:00+01:00", "2024-07-02T10:00:00+02:00"
    lines = [f"{winter} n1 kernel: {XID}", f"Jan  2 10:00:00 n1 kernel: {XID}"]
    lines += [f"{summer} n1 kernel: {XID}", f"Jul  2 10:00:00 n1 kernel: {XID}"]
    assert [dt.datetime.fromtimestamp(at, dt.UTC).hour for at in times(tmp_path / "kern.log", *lines)] == [9, 9, 8, 8]
    given = Clock(LATE, offset=3600.0)
    given.iso("2024-07-02T10:00:00", None, "+02:00")
    assert given.syslog("Jul", " 2", "10:00:00") == utc("2024-07-02T09:00:00")


@pytest.mark.parametrize("date", ["Sun 2026-03-01 10:02:03", "2026-03-01 10:02:03", "Sun Mar  1 10:02:03 CET 2026"])
def test_a_date_without_its_zone_is_the_logs_own_time(date: str) -> None:
    clock = Clock(offset=3600.0)
    head = split(f"{date} n1 kernel: NVRM: Xid", clock)
    assert head.at == 1772359323.0 - 3600.0
