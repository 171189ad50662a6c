"""The catalog's tables: complete, consistent, and clear about what is wrong in a broken one."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from medevac.catalog import Catalog, CatalogError, load_catalog
from medevac.catalog.load import FILES
from medevac.catalog.pages import xid_page
from medevac.catalog.schema import NOT_PUBLISHED, SxidEntry, XidEntry
from medevac.decode import annotate
from medevac.decode.incidents_story import RECOVERY_ACTIONS

FOLDER = files("medevac.catalog")


def catalog_with(name: str, old: str, new: str) -> Catalog:
    """The catalog with one piece of one file changed."""
    texts = {file: FOLDER.joinpath(file).read_text(encoding="utf-8") for file in FILES}
    assert old in texts[name]
    texts[name] = texts[name].replace(old, new, 1)
    return Catalog(lambda file: texts[file].encode())


def test_every_table_reads() -> None:
    load_catalog().check()


def test_codes_are_all_there() -> None:
    catalog = load_catalog()
    assert sorted(catalog.xids) == list(range(1, 177))
    assert len(catalog.sxids) == 400


def test_an_entry_read_alone_is_the_one_of_the_table() -> None:
    catalog = load_catalog()
    assert {code: Catalog(catalog.read).xid(code) for code in catalog.xids} == catalog.xids
    assert {code: Catalog(catalog.read).sxid(code) for code in catalog.sxids} == catalog.sxids


@pytest.mark.parametrize("table", ["xids", "sxids"])
def test_each_code_has_meaning_action_and_source(table: str) -> None:
    for entry in getattr(load_catalog(), table).values():
        assert entry.meaning
        assert entry.bucket_now
        assert entry.bucket_after
        assert entry.sources
        assert entry.checked


def test_no_action_is_made_up_where_none_is_published() -> None:
    entry = load_catalog().xid(167)
    assert entry is not None
    assert entry.bucket_now == NOT_PUBLISHED
    assert entry.severity == "unknown"


@pytest.mark.parametrize("code", [48, 64, 79, 95, 140])
def test_codes_that_isolate_are_critical(code: int) -> None:
    entry = load_catalog().xid(code)
    assert entry is not None
    assert entry.severity == "critical"


def test_codes_whose_bucket_needs_a_reset_or_reboot_at_once_are_critical() -> None:
    at_once = {"RESET_GPU", "RESTART_BM", "RESTART_VM"}
    assert {entry.severity for entry in load_catalog().xids.values() if entry.bucket_now in at_once} == {"critical"}


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_application_codes_are_not_critical(code: int) -> None:
    entry = load_catalog().xid(code)
    assert entry is not None
    assert entry.severity in {"info", "warning"}


def test_fatal_switch_codes_are_critical() -> None:
    entry = load_catalog().sxid(20034)
    assert entry is not None
    assert (entry.severity, entry.bucket_now) == ("critical", "RESET_GPU")


def test_unknown_code_is_none() -> None:
    catalog = load_catalog()
    assert catalog.xid(99999) is None
    assert catalog.sxid(11111) is None


def test_every_bucket_is_used_and_explained() -> None:
    catalog = load_catalog()
    for bucket in catalog.buckets.values():
        assert bucket.meaning
        assert bucket.source in catalog.sources


def test_hash_changes_with_a_file() -> None:
    assert catalog_with("xid.toml", "code = 79", "code = 7979").hash != load_catalog().hash


def test_unknown_bucket_is_named_with_file_and_key() -> None:
    broken = catalog_with("xid.toml", 'bucket_now = "RESTART_BM"', 'bucket_now = "REBOOT"')
    with pytest.raises(CatalogError, match=r"xid\.toml: code 79: bucket_now: no bucket 'REBOOT'"):
        broken.check()


def test_double_code_is_named() -> None:
    with pytest.raises(CatalogError, match=r"xid\.toml: code 80 stands twice"):
        catalog_with("xid.toml", "code = 79", "code = 80").check()


def test_unknown_key_is_named() -> None:
    with pytest.raises(CatalogError, match=r"xid\.toml: .*`sevrity`"):
        catalog_with("xid.toml", 'severity = "critical"', 'sevrity = "critical"').check()


def test_text_that_is_no_toml_is_named() -> None:
    with pytest.raises(CatalogError, match=r"nvlink5\.toml: not TOML"):
        catalog_with("nvlink5.toml", "[[unit]]", "[[unit").check()


def test_rule_of_a_kind_that_fits_every_line_is_its_last() -> None:
    for kind, rules in load_catalog().kinds.items():
        fits_all = [rule.id for rule in rules if not rule.when and not rule.codes]
        assert fits_all == [rules[-1].id] or (kind == "xid" and not fits_all), kind


# --- data, docs and rules say the same, in both directions ---

ROOT = Path(__file__).resolve().parents[3]
DOCS = {page: (ROOT / "docs" / page).read_text() for page in ("xid.md", "sxid.md", "decode-rules.md")}
CATALOG = load_catalog()


def test_xid_page_has_every_code_and_no_other() -> None:
    rows = re.findall(r"^\| (?:\[(\d+)\]\(#xid-\d+\)|(\d+)) \|", DOCS["xid.md"], re.MULTILINE)
    assert [int(linked or plain) for linked, plain in rows] == list(CATALOG.xids)


def test_xid_page_has_the_words_of_the_command() -> None:
    for entry in CATALOG.xids.values():
        if entry.category != "unused":
            assert xid_page(CATALOG, entry) in DOCS["xid.md"]


def test_sxid_page_has_every_code_and_no_other() -> None:
    rows = re.findall(r"^\| (\d{5}) \|", DOCS["sxid.md"], re.MULTILINE)
    assert [int(code) for code in rows] == list(CATALOG.sxids)


def test_rules_page_has_every_rule_and_every_bucket_and_no_other() -> None:
    rules, _, buckets = DOCS["decode-rules.md"].partition("## Actions")
    named = re.findall(r"^\| .* \| ([\w-]+) \|$", rules, re.MULTILINE)
    assert [name for name in named if name != "rule"] == [rule.id for each in CATALOG.kinds.values() for rule in each]
    assert re.findall(r"^\| ([^|]+) \|", buckets, re.MULTILINE)[1:] == list(CATALOG.buckets)


def test_rules_written_in_code_are_documented_too() -> None:
    source = Path(annotate.__file__).read_text()
    for rule in re.findall(r'"(line-says-[\w-]+|switch-says-[\w-]+|injected|nvlink-registers|all-clear)"', source):
        assert rule in DOCS["decode-rules.md"]


def test_rules_refer_to_codes_of_the_catalog() -> None:
    for rule in CATALOG.kinds["xid"]:
        assert rule.codes
        assert set(rule.codes) <= set(CATALOG.xids)


def test_rules_ask_only_for_details_that_are_looked_at() -> None:
    asked = {name for rules in CATALOG.kinds.values() for rule in rules for name in rule.when}
    assert asked <= set(annotate._WORDS)


def test_codes_that_only_a_decode_explains_have_one() -> None:
    bucket = {code for code, entry in CATALOG.xids.items() if entry.bucket_now == "WORKFLOW_NVLINK5_ERR"}
    assert bucket == {unit.xid for unit in CATALOG.link_units} == set(annotate.NVLINK5)


def test_every_bucket_and_every_source_is_used() -> None:
    used: set[str] = set(RECOVERY_ACTIONS.values()) | {"RESTART_FM"}
    sources: set[str] = {"medevac", "nvml"} | {bucket.source for bucket in CATALOG.buckets.values()}
    entries: list[XidEntry | SxidEntry] = [*CATALOG.xids.values(), *CATALOG.sxids.values()]
    for entry in entries:
        used |= {entry.bucket_now, entry.bucket_after}
        sources |= set(entry.sources)
    used |= {row.bucket for row in CATALOG.registers}
    used |= {name for rules in CATALOG.kinds.values() for rule in rules for name in (rule.action, rule.after)}
    used |= {name for unit in CATALOG.link_units for row in unit.rows for name in (row.bucket_now, row.bucket_after)}
    assert set(CATALOG.buckets) <= used
    assert set(CATALOG.sources) <= sources
