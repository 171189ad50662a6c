"""Progress lines of the frameworks, one by one and as a whole log."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medevac.decode.progress_lines import Progress, ProgressReader, phase_of
from medevac.decode.progress_lines_survey import survey

LINES = [
    (
        "megatron",
        " iteration      410/   90000 | elapsed time per iteration (ms): 812.5 | lm loss: 3.25E+00 | grad norm: 0.75 |",
        {"step": 410, "total": 90000, "loss": 3.25, "grad_norm": 0.75, "seconds": 0.8125},
    ),
    (
        "nemo",
        "Training epoch 1, iteration 7/49 | global_step: 57 | reduced_train_loss: 2.5 | train_step_timing in s: 0.5",
        {"step": 57, "total": 49, "epoch": 1, "loss": 2.5, "seconds": 0.5},
    ),
    (
        "torchtitan",
        "[titan] 2026-04-02 08:00 - INFO - \x1b[31mstep: 20 \x1b[32m loss:  6.5 \x1b[0m memory: 3GiB tps: 900",
        {"step": 20, "loss": 6.5},
    ),
    (
        "deepspeed",
        "[INFO] [timer.py:199:stop] epoch=0/micro_step=30/global_step=30, CurrSamplesPerSec=9.1",
        {"step": 30, "epoch": 0},
    ),
    ("deepspeed-step", "[2026-04-02 08:00:01,500] [Rank 0] step=40, skipped=2, lr=[1e-05], mom=[0.9]", {"step": 40}),
    (
        "lightning",
        "Epoch 2:  12%|#2        | 12/100 [00:24<02:56,  2.00s/it, v_num=3, train_loss=1.5]",
        {"step": 12, "total": 100, "epoch": 2, "seconds": 2.0, "elapsed": 24.0},
    ),
    ("tqdm", " 5%|5 | 50/1000 [01:40<31:40,  2.00s/it]", {"step": 50, "total": 1000, "elapsed": 100.0}),
    (
        "hf-trainer",
        "{'loss': 1.75, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.3}",
        {"step": 0.3, "loss": 1.75},
    ),
    (
        "llama-factory",
        '{"current_steps": 15, "total_steps": 90, "loss": 0.5, "lr": 1e-5, "elapsed_time": "0:01:30"}',
        {"step": 15, "total": 90, "elapsed": 90.0},
    ),
    ("composer", "[batch=11/200]: Train loss: 2.25", {"step": 11, "total": 200}),
    (
        "ezpz",
        "[2026-04-02 08:00:01,1][I][train] iter=7 loss=4.5 dt=0.25 dtf=0.1",
        {"step": 7, "loss": 4.5, "seconds": 0.25},
    ),
    (
        "epoch-batch",
        "Epoch: [3]  [ 40/500]  eta: 0:10:00  loss: 0.5  time: 0.2",
        {"step": 40, "total": 500, "epoch": 3},
    ),
    ("generic", "train step 88/900, loss 1.5", {"step": 88, "total": 900}),
]


@pytest.mark.parametrize(("name", "line", "expected"), LINES, ids=[row[0] for row in LINES])
def test_each_framework_is_read(name: str, line: str, expected: dict[str, float]) -> None:
    seen = ProgressReader().read(line)
    assert seen is not None
    assert seen.format == name
    assert {key: getattr(seen, key) for key in expected} == expected


@pytest.mark.parametrize(
    "line",
    [
        "",
        "loading checkpoint shards",
        "RuntimeError: step function failed",
        "NCCL INFO Channel 00/02 : 0 1 2 3",
        "Downloading: 12MB",
        "total_steps: 900",
    ],
)
def test_other_lines_are_no_progress(line: str) -> None:
    assert ProgressReader().read(line) is None


def test_a_nan_loss_is_a_value() -> None:
    seen = ProgressReader().read(" iteration 7/ 90 | lm loss: nan | grad norm: inf |")
    assert seen is not None
    assert seen.loss is not None
    assert seen.loss != seen.loss


def test_a_regex_of_ones_own_comes_first() -> None:
    seen = ProgressReader(r"upd (?P<step>\d+) took (?P<seconds>[\d.]+)").read("upd 12 took 1.5 sec, step 3 loss 4")
    assert seen == Progress(format="custom", step=12, seconds=1.5)


@pytest.mark.parametrize("regex", ["(", r"(\d+)"])
def test_a_wrong_regex_is_named(regex: str) -> None:
    with pytest.raises(ValueError, match="progress regex"):
        ProgressReader(regex)


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("saving checkpoint at iteration 40 to /ckpt", "save"),
        ("***** Running Evaluation *****", "eval"),
        (" validation loss at iteration 40 | lm loss value: 2", "eval"),
        ("loading checkpoint from /ckpt at iteration 40", "load"),
        ("iteration 40/ 90 | lm loss: 2", None),
    ],
)
def test_phases(line: str, phase: str | None) -> None:
    assert phase_of(line) == phase


def megatron(step: int, second: int) -> str:
    return f" [2026-04-02 08:{second // 60:02d}:{second % 60:02d}] iteration {step}/ 900 | lm loss: 2.0 |"


def test_a_survey_says_when_a_hang_would_be_noticed() -> None:
    seen = survey(enumerate([megatron(step, 10 + 2 * step) for step in range(1, 31)], 1))
    assert (seen.format, seen.first, seen.last, seen.total) == ("megatron", 1, 30, 900)
    assert seen.step_s == pytest.approx(2)
    assert seen.limit_s == pytest.approx(7)


def test_two_writers_are_told_from_a_restart() -> None:
    doubled = [megatron(step, 10 + step) for step in range(1, 31) for _ in range(2)]
    doubled[1::4], doubled[2::4] = doubled[2::4], doubled[1::4]
    assert survey(enumerate(doubled, 1)).writers == 2
    again = [megatron(step, 10 + n) for n, step in enumerate([*range(1, 20), *range(15, 30)])]
    seen = survey(enumerate(again, 1))
    assert (seen.writers, seen.restarts, seen.jumps_back, seen.last) == (1, 1, 1, 29)


def test_the_longest_bar_is_the_training() -> None:
    rows = [
        " 100%|#| 7/7 [00:01<00:00, 7.00it/s]",
        " 0%| | 0/5000 [00:00<?, ?it/s]",
        " 50%|#| 4/8 [00:01<00:00, 4.00it/s]",
    ]
    seen = survey(enumerate(rows, 1))
    assert (seen.first, seen.last, seen.total) == (0, 0, 5000)


def test_nothing_seen_is_said() -> None:
    assert survey([(1, "hello"), (2, "world")]).progress_lines == 0


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_line_is_read_or_not(line: str) -> None:
    seen = ProgressReader().read(line)
    assert seen is None or seen.step >= 0
