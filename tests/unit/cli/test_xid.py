"""`medevac xid` and `medevac sxid`: the catalog's page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medevac.catalog.load import load_catalog
from medevac.cli.main import main


def page(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 0
    return capsys.readouterr().out


def test_page_has_meaning_causes_evidence_actions_others_sources_and_date(capsys: pytest.CaptureFixture[str]) -> None:
    text = page(capsys, "xid", "79")
    for piece in (
        "## Xid 79: The GPU no longer answers on PCIe",
        "RESTART_BM: reboot the node",
        "Usual causes:",
        "Evidence to look for:",
        "NVSentinel: FATAL, RESTART_BM",
        "Sources (checked 20",
    ):
        assert piece in text


def test_page_says_what_is_not_published(capsys: pytest.CaptureFixture[str]) -> None:
    assert "- Do now: not published" in page(capsys, "xid", "167")


def test_page_names_the_rules_of_a_lines_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    said = "rst is No: warning, RESTART_APP, then RESET_WHEN_IDLE (rule uncontained-no-reset)"
    assert said in page(capsys, "xid", "95")
    assert "in any line: critical, RESET_GPU, then RUN_FIELDDIAG (rule gsp-timeout)" in page(capsys, "xid", "119")


@pytest.mark.parametrize(
    ("code", "gpu", "said"),
    [
        ("74", "H100", "On H100: can occur"),
        ("74", "h200", "On h200: can occur"),
        ("74", "B200", "On B200: not expected on this model"),
        ("175", "H100", "On H100: not published"),
        ("79", "L40S", "On L40S: unknown: NVIDIA's table has no such model; it has A100, H100, B100, GB200"),
        ("175", "FOO", "On FOO: unknown: NVIDIA's table has no such model"),
    ],
)
def test_page_for_a_model(code: str, gpu: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in page(capsys, "xid", code, "--gpu", gpu)


def test_entry_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    entry = json.loads(page(capsys, "xid", "48", "--json"))
    assert (entry["code"], entry["bucket_now"]) == (48, "WORKFLOW_XID_48")
    entry = json.loads(page(capsys, "sxid", "20034", "--json"))
    assert (entry["code"], entry["severity"]) == (20034, "critical")


def test_a_code_that_is_not_published_is_unknown_on_its_page_as_in_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["xid", "177"]) == 2
    assert "Xid 177 is not in the catalog: its meaning is not published, so unknown" in capsys.readouterr().err
    log = tmp_path / "kern.log"
    log.write_text("NVRM: Xid (PCI:0000:3b:00): 177, Resource remapper: activated\n")
    main(["decode", str(log), "--json"])
    event = json.loads(capsys.readouterr().out)
    assert (event["code"], event["severity"], event["action"], event["policy_action"]) == (177, "unknown", None, None)
    assert event["meaning"] == "Xid not in the catalog: its meaning is not published, so unknown"


def test_every_code_has_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    catalog = load_catalog()
    for code in catalog.xids:
        assert f"## Xid {code}: " in page(capsys, "xid", str(code))
    for code in list(catalog.sxids)[::20]:
        assert f"## SXid {code}: " in page(capsys, "sxid", str(code))
