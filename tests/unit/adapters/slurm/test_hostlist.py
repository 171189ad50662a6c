"""Lists of hosts. Examples are of slurm.conf(5) and of recorded outputs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medevac.adapters.schedulers.slurm.hostlist import expand, join, numbers


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[0-1]", ["node0", "node1"]),
        ("node[008-011,7]", ["node008", "node009", "node010", "node011", "node7"]),
        ("cpn-f13-03-[01-02],cpn-f13-04-[01-02]", [f"cpn-f13-{a}-{b}" for a in ("03", "04") for b in ("01", "02")]),
        ("r[1-2]n[0-1]x", ["r1n0x", "r1n1x", "r2n0x", "r2n1x"]),
        ("login,gpu[1]", ["login", "gpu1"]),
        ("(null)", []),
        ("", []),
        ("None assigned", []),
    ],
)
def test_lists_expand(text: str, hosts: list[str]) -> None:
    assert list(expand(text)) == hosts


@pytest.mark.parametrize("text", ["a[1-", "a]1[", "a[x-y]", "a[5-2]", "a[[1]]", "a[1-99999999]", "a[0-999]b[0-9999]"])
def test_what_is_no_list_is_said(text: str) -> None:
    with pytest.raises(ValueError, match=r"host list"):
        expand(text)


@given(st.text(max_size=60))
def test_any_text_is_a_list_or_an_error(text: str) -> None:
    try:
        hosts = expand(text)
    except ValueError:
        return
    assert all(isinstance(host, str) for host in hosts)


@given(st.lists(st.from_regex(r"[a-z]{1,5}[0-9]{0,4}", fullmatch=True), max_size=12))
def test_what_is_joined_expands_to_the_same(names: list[str]) -> None:
    assert set(expand(join(names))) == set(names) - {"n/a"}


def test_array_ranges_leave_the_throttle_out() -> None:
    assert numbers("28-30%100") == (28, 29, 30)
    assert numbers("0-1,6") == (0, 1, 6)
    assert numbers("") == ()
