"""Real DDP ranks whose gradients are changed on their way: where and by whom is told, and nothing of it stays."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.runs import ROOT
from tests.e2e.test_torch_ddp import launch

from medevac.torch.stop import HARDWARE, ROLL_BACK

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("torch"), pytest.mark.timeout(300)]

STORIES = Path(__file__).parents[1] / "unit" / "torch" / "gradient_ranks.py"
RANKS, WRONG = 5, 2
AGAIN = [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9]


@functools.cache
def told() -> list[dict[str, Any]]:
    """All stories, as each rank tells them."""
    ended = launch(str(STORIES), ranks=RANKS)
    assert [code for code, _ in ended] == [0] * RANKS, ended
    return [json.loads(text.splitlines()[-1]) for _, text in ended]


@pytest.mark.parametrize(
    ("story", "where"),
    [
        ("crc_ready", "between the bucket being ready and its reduction"),
        ("crc_optimizer", "between the reduction and the optimizer"),
        ("crc_clipped", "between the reduction and the optimizer"),
    ],
)
def test_a_flipped_bit_is_found_where_it_was_and_the_step_done_again(story: str, where: str) -> None:
    for rank, each in enumerate(told()):
        found = each[story]
        assert found["begun"] == AGAIN
        assert found["equal"], "the parameters are not those of a training without the flip"
        lines = [f"gradients of step 4 changed {where}: rank {WRONG}"] if rank == WRONG else []
        assert [line.split(";")[0] for line in found["told"]] == lines


def test_a_rank_that_is_wrong_again_leaves() -> None:
    codes = [each["crc_lasting"]["code"] for each in told()]
    assert codes == [HARDWARE if rank == WRONG else ROLL_BACK for rank in range(RANKS)]


def test_a_result_that_is_not_the_same_everywhere_names_who_is_alone() -> None:
    (line,) = told()[0]["crc_result"]["told"]
    assert "its result is not the same on all ranks: rank 0;" in line


def test_a_rank_of_another_size_is_named_and_its_step_done_again() -> None:
    each = told()[WRONG]["sketches"]
    assert each["begun"] == [58, 59, 60, 61, 61, 62, 63, 64]
    (line,) = each["told"]
    assert f"unlike those of other ranks: rank {WRONG}" in line


def test_a_rank_that_is_unlike_the_others_in_the_same_step_again_leaves() -> None:
    """Nothing is there to roll back to."""
    for rank, each in enumerate(told()):
        assert each["sketches_lasting"]["code"] == (HARDWARE if rank == WRONG else ROLL_BACK)
        assert each["sketches_lasting"]["step"] == 8


def test_what_one_process_group_finds_all_ranks_act_upon() -> None:
    for rank, each in enumerate(told()):
        assert each["sub_groups"]["begun"] == [0, 1, 2, 3, 4, 4, 5, 6, 7]
        assert len(each["sub_groups"]["told"]) == (rank == WRONG)


def test_robust_aggregation_gives_all_ranks_the_same_bits() -> None:
    for name, (f, alike, close, left_out) in told()[0]["robust"].items():
        assert alike, name
        assert close, name
        assert f == (name != "bulyan"), name  # which needs 7 ranks
        if left_out:
            assert str(WRONG) in left_out or name == "krum"


def test_a_rank_that_is_never_finite_is_withstood_where_its_finding_comes_to_nothing() -> None:
    for each in told():
        assert each["nan_withstood"] == {"begun": list(range(6)), "told": [], "finite": True}


def test_training_goes_on_where_the_mean_is_lost() -> None:
    losses = told()[0]["robust_training"]
    first, last = losses["mean"]
    assert last > 10 * first
    first, last = losses["multi-krum"]
    assert last < first / 2


def test_the_accuracy_of_each_method_under_each_attack() -> None:
    """On the digits: as benchmarks/gradients.py has it, with fewer steps."""
    code = (
        "import json, gradients; gradients.STEPS = 80; gradients.SEEDS = (0,);"
        "print(json.dumps(gradients.robust_rows()['robust_accuracy']))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "benchmarks", capture_output=True, text=True, check=True, timeout=250
    )
    table = json.loads(run.stdout)
    for row, cells in table.items():
        clean = table[f"mean, {row.split(', ')[1]}"]["no attack"]
        for attack, reached in cells.items():
            if row.startswith("mean") and attack != "no attack":
                continue
            assert reached > clean - 0.12, (row, attack, reached, clean)
    for f in ("f=1 of 7", "f=2 of 11"):
        cells = table[f"mean, {f}"]
        assert cells["nan"] < 0.2
        assert cells["scaled"] < cells["no attack"] - 0.2
