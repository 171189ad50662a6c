"""The file of signatures: each matches its own example by either finder, and says nothing it must not."""

from __future__ import annotations

import pytest

from medevac.catalog.schema import CatalogError
from medevac.catalog.signatures import Signature, merge, read_signatures, signatures
from medevac.decode.joblog import scan
from medevac.decode.joblog_find import HyperscanFinder, PlainFinder

ROW = """
[[signature]]
id = "x"
contains = "bad thing"
role = "root"
class = "storage"
weight = 80
symptom = "crash"
names = "rank"
source = "ours"
example = "a bad thing happened"
"""


@pytest.mark.parametrize("one", signatures(), ids=lambda one: one.id)
def test_each_signature_finds_its_example(one: Signature) -> None:
    found = scan([f"[rank5]: {one.example}\n".encode()], among=[one])
    assert [clue.signature for clue in found.clues] == [one.id]
    assert one.source


def test_both_finders_find_the_same() -> None:
    log = "\n".join(f"n1: {one.example}\nstep 5 loss: 2.0" for one in signatures()).encode()
    plain = [(hit.start, {one.id for one in hit.among}) for hit in PlainFinder(signatures()).hits(log)]
    pytest.importorskip("hyperscan")
    fast = [(hit.start, {one.id for one in hit.among}) for hit in HyperscanFinder(signatures()).hits(log)]
    assert plain == fast
    assert len(plain) >= len(signatures())


def test_training_output_matches_no_root() -> None:
    usual = (
        "iteration 7/ 90 | lm loss: 2.0E+00 | loss scale: 65536.0 | number of nan iterations:   0 |\n"
        "INFO saving checkpoint at iteration 40 to /ckpt, 12 shards\n"
        "[rank0]: step: 10  loss:  7.1  grad_norm:  1.0  memory: 12.0GiB(15.00%)  tps: 1,234\n"
        "n3:44:91 [2] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.3<0>\n"
        "Downloading shards: 100%|#| 4/4 [00:02<00:00]\n"
        "Setting `pad_token_id` to `eos_token_id` for open-end generation.\n"
    )
    assert [clue for clue in scan([usual.encode()]).clues if clue.role == "root"] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ROW + ROW, "stands there twice"),
        (ROW.replace("a bad", "a good").replace("bad thing h", "good h"), "its own example"),
        (ROW.replace("weight = 80\n", ""), "class and weight"),
        (ROW + 'pattern = "("', "pattern"),
        (ROW + "colour = 1", "colour"),
        ("= 3", "not TOML"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(text: str, says: str) -> None:
    with pytest.raises(CatalogError, match=r"site\.toml") as caught:
        read_signatures("site.toml", text.encode())
    assert says in str(caught.value)


def test_a_site_replaces_by_id() -> None:
    ours = read_signatures("a", ROW.encode())
    site = read_signatures("b", ROW.replace("80", "90").encode())
    assert [one.weight for one in merge(ours, site)] == [90]
