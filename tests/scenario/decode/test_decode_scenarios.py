"""Whole small logs and the incidents that they are: logs/*.log beside logs/*.txt, written for a reader on call.

After a change that is meant, write the texts anew with `python -m tests.scenario.decode.test_decode_scenarios` and read
the difference.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from medevac.cli.decode_show import action_words
from medevac.decode.files import decode_files
from medevac.decode.incidents import Incident, Incidents
from medevac.decode.output import iso
from medevac.decode.wording import blame_words, fact_words, root_words

LOGS = sorted((Path(__file__).parent / "logs").glob("*.log"))
WRITTEN = 1_798_700_000.0
"""When the logs were last written, for dates without a year: late 2026."""


def incidents_of(log: Path) -> list[Incident]:
    os.utime(log, (WRITTEN, WRITTEN))
    collected = Incidents()
    for fault in decode_files([str(log)]):
        collected.add(fault)
    return [story.incident for story in collected.stories()]


def told(incidents: Sequence[Incident]) -> str:
    """What a person on call reads, one paragraph an incident."""
    catalog = Incidents().annotator.catalog
    paragraphs = [
        "\n".join(
            (
                f"{iso(incident.first) or 'time not known'}: {incident.severity}: {root_words(incident)}",
                f"  blame: {blame_words(incident.blame)}",
                f"  now: {action_words(incident.action_now, catalog)}",
                f"  after: {action_words(incident.action_after, catalog)}",
                f"  the job dies: {incident.kills_job}; for: {incident.audience}",
                *(
                    f"  {fact.role}: {fact_words(fact)} {fact.node or '-'} {fact.pci or '-'} "
                    f"({fact.count} lines, {fact.distinct} different)"
                    for fact in incident.facts
                ),
            )
        )
        for incident in incidents
    ]
    return "\n\n".join(paragraphs) + "\n"


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_log_tells_its_incidents(log: Path) -> None:
    assert told(incidents_of(log)) == log.with_suffix(".txt").read_text()


if __name__ == "__main__":
    for path in LOGS:
        path.with_suffix(".txt").write_text(told(incidents_of(path)))
