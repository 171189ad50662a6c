"""Policies: what ships is sound, and a wrong file gets one line that names file and key."""

from __future__ import annotations

import pytest

from medevac.catalog.load import load_catalog
from medevac.catalog.policy import SHIPPED, load_policy
from medevac.catalog.schema import CatalogError
from medevac.core.policy import Policy, Seen


def from_text(text: str) -> Policy:
    return load_policy("site.toml", read=lambda _: text)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_policies_load(name: str) -> None:
    policy = load_policy(name)
    assert policy.name == name
    assert policy.rules
    assert len(policy.digest) == 16


def test_demo_loosens_no_rule() -> None:
    assert load_policy("demo").rules == load_policy("standard").rules


def test_every_rule_has_a_source_and_known_codes() -> None:
    catalog = load_catalog()
    for rule in load_policy("standard").rules:
        assert rule.source
        for predicate in rule.when:
            if isinstance(predicate, Seen) and predicate.kind == "xid":
                assert all(catalog.xid(code) for code in predicate.codes), rule.id


def test_codes_that_need_a_reset_at_once_isolate() -> None:
    """The union of rules covers each code whose bucket asks for a reset or reboot."""
    hard = {
        code
        for rule in load_policy("standard").rules
        if rule.response == "hard"
        for p in rule.when
        if isinstance(p, Seen) and p.kind == "xid"
        for code in p.codes
    }
    wanted = {c for c, x in load_catalog().xids.items() if x.bucket_now in {"RESET_GPU", "RESTART_BM"}}
    assert wanted <= hard


def test_a_site_file_overrides_one_number_and_one_rule() -> None:
    policy = from_text(
        """
        name = "site"
        extends = "standard"
        [budget]
        cluster_share = 0.2
        [[rule]]
        id = "row-remap-storm"
        meaning = "more than 4 row remaps"
        severity = "warning"
        response = "soft"
        source = "the site's own history"
        when = [{ is = "seen", kind = "xid", codes = [63], at_least = 5 }]
        """
    )
    standard = load_policy("standard")
    assert policy.budget.cluster_share == 0.2
    assert policy.budget.rack_share == standard.budget.rack_share
    assert [rule.id for rule in policy.rules] == [rule.id for rule in standard.rules]
    assert next(r for r in policy.rules if r.id == "row-remap-storm").when[0] == Seen(
        kind="xid", codes=(63,), at_least=5
    )
    assert policy.digest != standard.digest


RULE = '[[rule]]\nid = "x"\nmeaning = "m"\nseverity = "info"\n'
SOME = 'source = "a"\nwhen = [{ is = "seen", kind = "xid" }]\n'
WRONG = {
    "an unknown key": ('name = "s"\nextends = "standard"\ncolour = "red"', r"site\.toml: colour: no such key"),
    "an unknown key in a section": ('name = "s"\n[budget]\nshare = 1', r"site\.toml: .*share.*budget"),
    "a share over 1": (
        'name = "s"\nextends = "standard"\n[budget]\nrack_share = 7.0',
        r"site\.toml: budget\.rack_share",
    ),
    "no back-off": ('name = "s"\n[recovery]\nbackoff_s = []', r"site\.toml: recovery\.backoff_s"),
    "a limit of no attempts": ('name = "s"\n[recovery]\nattempts_without_progress = 0', r"attempts_without_progress"),
    "an impossible threshold": (
        f'name = "s"\n{RULE}source = "me"\nwhen = [{{ is = "seen", kind = "xid", at_least = 0 }}]',
        r"rule x: when: at_least: a threshold of 0",
    ),
    "a threshold over what is kept": (
        f'name = "s"\n{RULE}source = "me"\nwhen = [{{ is = "seen", kind = "xid", at_least = 257 }}]',
        r"rule x: when: at_least: 257 never holds",
    ),
    "a time that is no number": (
        f'name = "s"\n{RULE}source = "me"\nwhen = [{{ is = "seen", kind = "xid", within_s = nan }}]',
        r"rule x: when: within_s: nan",
    ),
    "a kind that no line has": (
        f'name = "s"\n{RULE}source = "me"\nwhen = [{{ is = "seen", kind = "xud" }}]',
        r"rule x: when: kind: no line is a 'xud': use one of .*xid",
    ),
    "a hang limit that is no number": ('name = "s"\n[hang]\nfloor_s = nan', r"site\.toml: hang\.floor_s: nan"),
    "evidence that no look finds": (
        'name = "s"\n[hang]\nconfirmed_by = ["process-stoped"]',
        r"hang\.confirmed_by: no look finds 'process-stoped': use some of process-stopped",
    ),
    "a slow rule without steps": ('name = "s"\n[slow]\nwindow = 0', r"site\.toml: slow\.window: 0 can never hold"),
    "a floor over its ceiling": ('name = "s"\n[hang]\nfloor_s = 9\nceiling_s = 5', r"hang\.floor_s: 9.*ceiling_s"),
    "doubt that looks forward": ('name = "s"\n[lineage]\nmargin_s = -1', r"site\.toml: lineage\.margin_s: -1"),
    "fewer than no restarts": ('name = "s"\n[recovery]\nmax_restarts = -1', r"recovery\.max_restarts: -1"),
    "a rule without a source": (f'name = "s"\n{RULE}when = []', r"site\.toml: rule x: .*source"),
    "a rule with an empty source": (
        f'name = "s"\n{RULE}source = " "\nwhen = [{{ is = "seen", kind = "xid" }}]',
        r"rule x: source: empty",
    ),
    "a rule that looks at nothing": (f'name = "s"\n{RULE}source = "me"\nwhen = []', r"rule x: when: empty"),
    "an unknown predicate": (f'name = "s"\n{RULE}source = "me"\nwhen = [{{ is = "felt" }}]', r"rule x: .*felt"),
    "an unknown bucket": (
        f'name = "s"\n{RULE}source = "me"\nwhen = [{{ is = "seen", kind = "xid", buckets = ["KICK"] }}]',
        r"rule x: buckets: no bucket 'KICK'",
    ),
    "a rule twice": (
        f'name = "s"\n{RULE}{SOME}{RULE}{SOME}',
        r"rule x: id: stands twice",
    ),
    "an unknown base": ('name = "s"\nextends = "lax"', r"site\.toml: extends: no policy 'lax'"),
    "an unknown rule file": ('name = "s"\nrules = ["../x.toml"]', r"site\.toml: rules: no rule file"),
    "no name": ('extends = "standard"', r"site\.toml: name: missing"),
    "no TOML": ("name = ", r"site\.toml: "),
    "a section that is no table": ('name = "s"\nbudget = 1', r"site\.toml: budget: must be a table"),
}


@pytest.mark.parametrize("case", WRONG)
def test_one_line_names_file_and_key(case: str) -> None:
    text, says = WRONG[case]
    with pytest.raises(CatalogError, match=says) as caught:
        from_text(text)
    assert "\n" not in str(caught.value)


def test_no_such_policy() -> None:
    with pytest.raises(CatalogError, match="policy 'lax': no such policy: use one of standard"):
        load_policy("lax")
