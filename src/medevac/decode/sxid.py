"""NVSwitch errors: the SXid lines of the switch driver, and the same facts in the Fabric Manager's own log.

One error prints several lines with one code: the text, then `Severity ...` and `Data {...}`. Only the first is the
fact (Fabric Manager user guide); the others add to it.
"""

from __future__ import annotations

import re

from medevac.decode.reading import PCI_PATTERN, Details, Reading, pci_address, put, put_numbers, yes

SXID = re.compile(
    rf"nvidia-nvswitch(\d{{1,3}}):\s{{1,4}}SXid\s{{0,4}}\(\s?(?:PCI:)?({PCI_PATTERN}|\.\.\.)\s?\)\s{{0,4}}:\s{{0,4}}"
    r"(\d{4,6})(?![^\s,(.;:])[,\s]{0,8}",
    re.IGNORECASE,
)
_SEVERITY = re.compile(r"(Fatal|Non-?fatal)\b,?\s?", re.IGNORECASE)
_LINK = re.compile(r"Link (?P<link>\d{1,3})\b")
_ENGINE = re.compile(
    r"Severity (?P<severity>\d{1,2}) Engine instance (?P<engine_instance>\d{1,4})"
    r"(?: Sub-engine instance (?P<sub_engine_instance>\d{1,4}))?"
)
_DATA = re.compile(r"Data \{(?P<data>[^}]{0,400})")
_MANAGER = re.compile(
    r"detected NVSwitch (?P<word>fatal|non-fatal) error (?P<code>\d{4,6}).{0,60}? pci bus id (?P<pci>[0-9a-f:.]{7,16})"
    r"(?: physical id (?P<nvswitch>\d{1,3}))?(?: port (?P<link>\d{1,3}))?",
    re.IGNORECASE,
)

# How many codes each thousand has, from 1 on: the open driver's and the Fabric Manager guide's list.
_KNOWN = {10: 10, 11: 47, 12: 51, 13: 8, 14: 18, 15: 20, 16: 3, 17: 8, 18: 20, 19: 84, 20: 38, 21: 10, 22: 13, 23: 17}
_KNOWN |= {24: 10, 25: 10, 26: 8, 27: 7, 28: 6, 29: 6, 30: 6}


def is_known(code: int) -> bool:
    """Whether the driver has an error of this number."""
    return 1 <= code % 1000 <= _KNOWN.get(code // 1000, 0)


def parse(text: str) -> Reading | None:
    """Read a message that begins with the switch driver's own name."""
    match = SXID.match(text)
    if match:
        return read(match, text)
    switch = re.match(r"nvidia-nvswitch(\d{1,3}):", text)
    return Reading("nvrm_info", details={"nvswitch": int(switch[1])}) if switch and "SXid" not in text else None


def read(match: re.Match[str], text: str) -> Reading:
    """Read the SXid that `match` of SXID found in `text`."""
    switch, address, digits = match.groups()
    code, tail = int(digits), text[match.end() :]
    details: Details = {"nvswitch": int(switch)}
    kind = "sxid"
    if tail.startswith(("Severity ", "Data ")):
        put_numbers(details, _ENGINE, tail)
        put(details, _DATA, tail)
        kind = "sxid_continuation" if is_known(code) else "sxid"
    else:
        _text(details, tail)
    return Reading(kind, code, None if address == "..." else pci_address(address), details=details)


def _text(details: Details, tail: str) -> None:
    word = _SEVERITY.match(tail)
    if word:
        details["severity"] = word[1]
        details["fatal"] = yes(word[1].lower() == "fatal")
        tail = tail[word.end() :]
    link = _LINK.match(tail)
    if link:
        details["link"] = int(link["link"])
        tail = tail[link.end() :].lstrip()
    if "(First)" in tail:
        details["first"] = "yes"
    if tail:
        details["text"] = tail.replace("(First)", "").strip()[:200]


def parse_manager(text: str) -> Reading | None:
    """Read `detected NVSwitch fatal error 20034 ...` of fabricmanager.log: a SXid told by another program."""
    match = _MANAGER.search(text)
    if match is None:
        return None
    details: Details = {"severity": match["word"], "fatal": yes(match["word"].lower() == "fatal")}
    for name in ("nvswitch", "link"):
        if match[name]:
            details[name] = int(match[name])
    return Reading("sxid", int(match["code"]), pci_address(match["pci"]), details=details)
