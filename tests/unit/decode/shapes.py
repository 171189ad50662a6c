"""Messages that the tests know how to read (shapes.tsv), and the prefixes that loggers put before them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from medevac.core.events import FaultSeen

HERE = Path(__file__).parent


class Shape(NamedTuple):
    """A message with {places} to fill, and what is to be read from it."""

    message: str
    expected: dict[str, str]


class Prefix(NamedTuple):
    """What stands before a message; `{node}` is filled. `at` and `node` are what is to be read from it."""

    name: str
    text: str
    at: float = 0.0
    node: bool = False
    after: str = ""


def expectations(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split("; "))


def rows(name: str) -> list[list[str]]:
    text = (HERE / name).read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]


def load_shapes() -> list[Shape]:
    return [Shape(message.replace("\\n", "\n"), expectations(expected)) for message, expected in rows("shapes.tsv")]


MARCH = 1772359323.0  # 2026-03-01 10:02:03 UTC
REFERENCE = 1775000000.0  # when the logs of these tests were last written: 2026-03-31

PREFIXES = (
    Prefix("none", ""),
    Prefix("dmesg", "[ 1234.567890] "),
    Prefix("dmesg with caller", "[  130.456250] [ T1946] "),
    Prefix("dmesg --reltime", "[  +0.000844] "),
    Prefix("dmesg -T", "[Sun Mar  1 10:02:03 2026] ", MARCH),
    Prefix("dmesg -x", "kern  :warn  : 2026-03-01T10:02:03,500000+00:00 ", MARCH + 0.5),
    Prefix("syslog", "Mar  1 10:02:03 {node} kernel: ", MARCH, node=True),
    Prefix("syslog with uptime", "Mar  1 10:02:03 {node} kernel: [ 1234.567890] ", MARCH, node=True),
    Prefix("rsyslog ISO", "2026-03-01T10:02:03.250000+00:00 {node} kernel: ", MARCH + 0.25, node=True),
    Prefix("journal ISO", "2026-03-01T18:02:03+0800 {node} kernel: ", MARCH, node=True),
    Prefix("RFC 5424", "<4>1 2026-03-01T10:02:03Z {node} kernel - - - ", MARCH, node=True),
    Prefix("kmsg", "4,1234,5678,-;"),
    Prefix("pstore", "<4>[ 1234.567890] "),
    Prefix("Talos", "{node}: kern: warning: [2026-03-01T10:02:03.5Z]: ", MARCH + 0.5, node=True),
    Prefix("pdsh", "{node}: [ 1234.567890] ", node=True),
    Prefix("compose", "{node} | [ 1234.567890] ", node=True),
    Prefix("CRI", "2026-03-01T10:02:03.123Z stdout F [ 1234.567890] ", MARCH + 0.123),
    Prefix("French month", "mars 01 10:02:03 {node} kernel: ", MARCH, node=True),
    Prefix("Chinese month", "3月 01 10:02:03 {node} kernel: ", MARCH, node=True),
    Prefix("full month", "march 1 10:02:03 {node} kernel: ", MARCH, node=True),
    Prefix("kernel tag", "kernel: [ 1234.567890] "),
    Prefix("both", "[Sun Mar  1 10:02:03 2026] {node} kernel: ", MARCH, node=True),
    Prefix("repeated", "Mar  1 10:02:03 {node} kernel: message repeated 3 times: [ ", MARCH, node=True, after="]"),
    Prefix("coloured", "\x1b[32m[ 1234.567890] \x1b[0m\x1b[33m", after="\x1b[0m"),
    Prefix("docker logs -t", "2026-03-01T10:02:03.123Z [ 1234.567890] ", MARCH + 0.123),
    Prefix("journalctl -o short-full", "Sun 2026-03-01 10:02:03 UTC {node} kernel: ", MARCH, node=True),
    Prefix("journalctl -o short-unix", "1772359323.000000 {node} kernel: ", MARCH, node=True),
    Prefix("journalctl -o short-monotonic", "[ 1234.567890] {node} kernel: ", node=True),
    Prefix("year in the middle", "Mar  1 2026 10:02:03 {node} kernel: ", MARCH, node=True),
    Prefix("ctime", "Sun Mar  1 10:02:03 2026 {node} kernel: ", MARCH, node=True),
    Prefix("ctime with uptime", "Sun Mar  1 10:02:03 2026 {node} kernel: [ 1234.567890] ", MARCH, node=True),
    Prefix("ctime without a host", "Sun Mar  1 10:02:03 2026 kernel: ", MARCH),
    Prefix("date", "Sun Mar  1 10:02:03 UTC 2026 {node} kernel: ", MARCH, node=True),
    Prefix("grep and ctime", "kern.log:Sun Mar  1 10:02:03 2026 {node} kernel: ", MARCH, node=True),
    Prefix("slashes", "2026/03/01 10:02:03 {node} kernel: ", MARCH, node=True),
    Prefix("grep", "/var/log/kern.log:Mar  1 10:02:03 {node} kernel: ", MARCH, node=True),
    Prefix("grep -n", "kern.log.1:12:2026-03-01T10:02:03Z {node} kernel: ", MARCH, node=True),
    Prefix("tab", "{node}\tMar  1 10:02:03 {node} kernel: ", MARCH, node=True),
    Prefix("Chinese dmesg -T", "[日 3月  1 10:02:03 2026] ", MARCH),
    Prefix("Windows", "", after="\r\n"),
    Prefix("NUL", "\0\0[ 1234.567890] "),
)


def journal_json(message: str, node: str) -> str:
    return json.dumps(
        {
            "_HOSTNAME": node,
            "_TRANSPORT": "kernel",
            "SYSLOG_IDENTIFIER": "kernel",
            "__REALTIME_TIMESTAMP": str(int(MARCH * 1e6)),
            "MESSAGE": message,
        }
    )


def docker_json(message: str) -> str:
    return json.dumps({"log": message + "\n", "stream": "stdout", "time": "2026-03-01T10:02:03.000000000Z"})


def seen(event: FaultSeen | None, name: str) -> str:
    """A field of the event as expectations write it."""
    if event is None:
        return "none" if name == "kind" else "null"
    detail = name.removeprefix("details.")  # said where a field has the same name
    value = getattr(event, name) if name in FaultSeen.__struct_fields__ else event.details.get(detail)
    return "null" if value is None else str(value)


def differences(event: FaultSeen | None, expected: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Each field that is not as expected: (expected, seen)."""
    found = {name: (value, seen(event, name)) for name, value in expected.items()}
    return {name: pair for name, pair in found.items() if pair[0] != pair[1]}
