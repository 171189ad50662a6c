"""The catalog's tables: complete, consistent, and clear about what is wrong in a broken one."""

from __future__ import annotations

from importlib.resources import files

import pytest

from medevac.catalog import Catalog, CatalogError, load_catalog
from medevac.catalog.load import FILES
from medevac.catalog.schema import NOT_PUBLISHED

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


def test_first_rule_of_a_kind_that_fits_everything_is_its_last() -> None:
    for kind, rules in load_catalog().kinds.items():
        open_rules = [rule.id for rule in rules if not rule.when]
        assert open_rules[-1:] == [rules[-1].id] or not open_rules, kind
