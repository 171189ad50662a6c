"""The file of signatures: each matches its own example by either finder, and says nothing it must not."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medevac.catalog.schema import CatalogError
from medevac.catalog.signatures import Signature, merge, read_signatures, signatures
from medevac.decode.joblog import LONGEST, scan
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


NOISE = """\
iteration 7/ 90 | lm loss: 2.0E+00 | loss scale: 65536.0 | number of nan iterations:   0 |
INFO saving checkpoint at iteration 40 to /ckpt, 12 shards
[rank0]: step: 10  loss:  7.1  grad_norm:  1.0  memory: 12.0GiB(15.00%)  tps: 1,234
n3:44:91 [2] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.3<0>
n3:44:91 [2] NCCL INFO NET/Plugin : libnccl-net.so: cannot open shared object file: No such file or directory
n3:44:91 [2] NCCL INFO Failed to open libibverbs.so[.1]
n3:44:91 [2] NCCL WARN NET/OFI aws-ofi-nccl initialization failed
Downloading shards: 100%|#| 4/4 [00:02<00:00]
WARNING: could not import apex: ModuleNotFoundError: No module named 'apex', using torch
[W socket.cpp:464] [c10d] The client socket has failed to connect to [n3]:29500 (errno: 111 - Connection refused).
  check_for_nan_in_loss_and_grad .................. True
  min_loss_scale .................................. 1.0
  exit_on_nan: checking for NaN in loss every step
    HW Thermal Slowdown                   : Not Active
    Reset Required                        : No
    Uncorrectable ECC errors              : 0
    Row Remapping Failure Occurred        : No
slurmd: _run_prolog: run job script took usec=216
preemption signal handler installed
W tensorflow: Could not load dynamic library 'libcuda.so.1'; dlerror: libcuda.so.1: cannot open shared object file
pip: torchx 0.3 requires pyyaml<7, but you have pyyaml 7.1 which is incompatible.
Your branch and 'origin/main' have diverged,
OMP: Info: setting OMP_NUM_THREADS to 1 to avoid your system being overloaded
CUDA kernel errors might be asynchronously reported; this could be caused by an uncorrectable ECC error encountered
"""


def test_usual_output_matches_no_root() -> None:
    assert [(clue.signature, clue.text) for clue in scan([NOISE.encode()]).clues if clue.role == "root"] == []


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


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([text for one in signatures() for text in one.texts]) | st.text(max_size=9), max_size=30)
)
def test_any_words_in_any_order_are_read(words: list[str]) -> None:
    text = " ".join(words)
    log = scan([text.encode(), b"\n"])
    assert all(1 <= clue.line <= text.count("\n") + 1 for clue in log.clues)


@pytest.mark.parametrize("filler", ["a", " ", " x ", "error "])
def test_no_pattern_is_made_to_be_slow_by_a_line(filler: str) -> None:
    start = time.perf_counter()
    for one in signatures():
        one.regex.search((one.texts[0] + filler) * (LONGEST // (len(one.texts[0]) + len(filler))))
    assert time.perf_counter() - start < 30  # of a second usually; one runaway pattern alone takes longer
