"""What differences between replicas come to: as a table of stories."""

from __future__ import annotations

from pathlib import Path

import pytest

from medevac.torch.place import Place
from medevac.torch.replay import FILE, KEPT, Accused, Case, File, Strike, agreed, read, struck, write


def strike(step: int, *ranks: tuple[int, str]) -> Strike:
    accused = tuple(Accused(rank=rank, node="n1", gpu=gpu, tensors=("w",)) for rank, gpu in ranks)
    return Strike(step=step, proven=step - 5, accused=accused, tensors=("w",))


def story(*strikes: Strike) -> Case:
    case = None
    for one in strikes:
        case = struck(case, one)
    assert case
    return case


A, B, C = "GPU-a", "GPU-b", "GPU-c"


@pytest.mark.parametrize(
    ("strikes", "outcome", "blamed"),
    [
        ([strike(10, (1, A))], "found", A),
        ([strike(10)], "found", None),
        ([strike(10, (1, A), (2, B))], "found", None),
        ([strike(10, (1, A)), strike(7, (1, A))], "again", A),
        ([strike(10), strike(7, (1, A))], "again", A),
        ([strike(10, (1, A), (2, B)), strike(7, (2, B))], "again", B),
        ([strike(10, (1, A)), strike(7, (1, A)), strike(7, (1, A))], "again", A),
        ([strike(10, (1, A)), strike(7, (1, A)), strike(7, (1, B))], "software", B),
        ([strike(10, (1, A)), strike(7, (2, A))], "hardware", A),
        ([strike(10, (1, A)), strike(7, (2, B))], "unclear", None),
        ([strike(10, (1, A)), strike(7)], "unclear", None),
        ([strike(10), strike(7)], "unclear", None),
        ([strike(10, (1, "")), strike(7, (2, ""))], "unclear", None),
    ],
)
def test_differences(strikes: list[Strike], outcome: str, blamed: str | None) -> None:
    case = story(*strikes)
    assert case.outcome == outcome
    assert (case.accused.gpu if case.accused else None) == blamed
    assert case.step == strikes[0].step
    assert case.open == (outcome in {"found", "again"})


@pytest.mark.parametrize(
    ("strikes", "now", "outcome"),
    [
        ([strike(10, (1, A))], A, "transient"),
        ([strike(10, (1, A))], B, "transient"),
        ([strike(10)], A, "transient"),
        ([strike(10, (1, A)), strike(7, (1, A))], A, "transient"),
        ([strike(10, (1, A)), strike(7, (1, A))], B, "hardware"),
    ],
)
def test_agreement_in_the_end(strikes: list[Strike], now: str, outcome: str) -> None:
    case = agreed(story(*strikes), {1: Place(rank=1, node="n2", gpu=now)})
    assert case.outcome == outcome
    assert not case.open


def test_the_file_outlives_the_process_and_stays_small(tmp_path: Path) -> None:
    case = story(strike(10, (1, A)), strike(7, (1, A)))
    write(tmp_path, File(open=case, closed=[case] * (KEPT + 50)))
    found = read(tmp_path)
    assert found.open == case
    assert len(found.closed) == KEPT
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"open": 3}', b"\xff"])
def test_a_file_that_cannot_be_read_is_no_case(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert read(tmp_path) == File()
    assert read(tmp_path / "none") == read(None) == File()
