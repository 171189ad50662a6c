"""What a line parser reads, the scanner finds: no kind is lost between a file and its lines."""

from __future__ import annotations

from pathlib import Path

from tests.unit.decode.shapes import REFERENCE, rows

from medevac.decode.context import Context
from medevac.decode.files import Options, decode_files
from medevac.decode.lines import decode_line
from medevac.decode.scanner import ANCHORS

ESCAPES = ("\\n", "\\r", "\\0", "\\x1b")


def test_every_labelled_line_that_is_an_event_has_an_anchor() -> None:
    lost = []
    for raw, _ in rows("lines.tsv"):
        if any(escape in raw for escape in ESCAPES):
            continue
        event = decode_line(raw, Context(reference=REFERENCE))
        data = raw.encode()
        if event is not None and not any(anchor in data for anchor in ANCHORS):
            lost.append(raw)
    assert lost == []


def test_kinds_of_rare_words_come_out_of_a_file(tmp_path: Path) -> None:
    lines = [
        "Mar  3 10:00:01 gpu7 kernel: blk_update_request: critical medium error, dev sdb, sector 991 op 0x0:(READ)",
        "Mar  3 10:00:02 gpu7 kernel: BTRFS error (device sdc1): bdev /dev/sdc1 errs: wr 3, rd 0, flush 0, corrupt 0",
        "Mar  3 10:00:03 gpu7 kernel: mce: [Hardware Error]: Machine check events logged",
        "Mar  3 10:00:04 gpu7 kernel: CPU3: Package power limit notification (total events = 12)",
    ]
    log = tmp_path / "kern.log"
    log.write_text("\n".join(lines) + "\n")
    read = {decode.line for decode in decode_files([str(log)], options=Options())}
    known = {n for n, line in enumerate(lines, 1) if decode_line(line, Context(reference=REFERENCE)) is not None}
    assert read == known
    assert known
