"""The progress lines of training frameworks: one row a format, the more telling first.

Groups: `step` (or `part`, a share of the whole as HF's epoch), `total`, `epoch`. What else a line says (loss, gradient
norm, seconds a step) is read by the patterns below, the same for all.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from medevac.core.events import Phase

NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|NaN|inf|Infinity)"
DECIMAL = r"(?=[-+]?(?:\d+\.\d|\d+[eE]|nan\b|NaN\b|inf))"
"""Behind a blank alone only what counts nothing is a value: `loss 2.11`, not `loss 4`."""


class Format(NamedTuple):
    """A shape of progress line: `needle` must stand in the line before the pattern is tried."""

    name: str
    needle: str
    pattern: re.Pattern[str]


def _format(name: str, needle: str, pattern: str) -> Format:
    return Format(name, needle, re.compile(pattern))


FORMATS: tuple[Format, ...] = (
    _format(
        "nemo",
        "global_step: ",
        r"epoch (?P<epoch>\d+), iteration \d+(?:/(?P<total>\d+))?\b.*\bglobal_step: (?P<step>\d+)",
    ),
    _format("megatron", "iteration", r"\biteration\s+(?P<step>\d+)\s*/\s*(?P<total>\d+)\s*\|"),
    _format("torchtitan", "loss:", r"(?:^|[\s\]-])step:\s*(?P<step>\d+)\s+loss:"),
    _format("deepspeed", "global_step=", r"epoch=(?P<epoch>\d+)/micro_step=\d+/global_step=(?P<step>\d+)"),
    _format("deepspeed-step", "skipped=", r"\bstep=(?P<step>\d+), skipped=\d+, lr="),
    _format(
        "llama-factory",
        '"current_steps"',
        r'"current_steps": (?P<step>\d+)(?:, "total_steps": (?P<total>\d+))?'
        r'(?:.*"elapsed_time": "(?P<elapsed>[^"]+)")?',
    ),
    _format("composer", "[batch=", r"\[batch=(?P<step>\d+)(?:/(?P<total>\d+))?\]"),
    _format("composer", "ime/batch", r"\b[Tt]ime/batch: (?P<step>\d+)"),
    _format("mlperf", ":::MLLOG", r'"key": "epoch_start".*?"epoch_num": (?P<step>\d+)'),
    _format(
        "lightning",
        "Epoch ",
        r"Epoch (?P<epoch>\d+):\s+\d+%\|[^|]*\|\s*(?P<step>\d+)/(?P<total>\d+) \[(?P<elapsed>[\d:]+)<",
    ),
    _format(
        "tqdm",
        "%|",
        r"\d+%\|[^|]*\|\s*(?P<step>\d+)/(?P<total>\d+)\s*\[(?P<elapsed>(?:\d+ days?, )?[\d:]+)<",
    ),
    _format("hf-trainer", "'epoch': ", r"\{.*'loss': .*'epoch': '?(?P<part>\d+(?:\.\d+)?)"),
    _format("ezpz", " dt=", r"\b(?:iter|step)=(?P<step>\d+)\s+(?:loss|dt)="),
    _format(
        "epoch-batch",
        "[",
        r"\bEpoch(?:\((?:train)\))?:?\s*\[?(?P<epoch>\d+)(?:/\d+)?\]?\s*\[\s*(?P<step>\d+)/(?P<total>\d+)\]",
    ),
    _format("mmengine", "Iter(train)", r"Iter\(train\)\s*\[\s*(?P<step>\d+)/(?P<total>\d+)\]"),
    _format("fairseq", "num_updates", r"['\"]?num_updates['\"]?[:=] ?['\"]?(?P<step>\d+)"),
    _format("keras", "ETA", r"(?:^|\s)(?P<step>\d+)/(?P<total>\d+) [\[━].*(?:ETA|/step)"),
    _format(
        "generic",
        "oss",
        r"(?i:(?<![\w-])(?:global[ _])?(?:step|iter|iteration|batch|update)s?)\s*[:=#]?\s*\[?(?P<step>\d+)"
        r"(?:\s*(?:/|of)\s*(?P<total>\d+))?\]?\b.*?(?i:loss)",
    ),
)

LOSS = re.compile(
    r"(?i)(?:(?<![a-z_])(?:lm[ _]|train[ _]|reduced_train_|step_|total[ _])?loss(?:/train/total)?)"
    rf"['\"]?(?:\s*[:=]\s*|\s+{DECIMAL})['\"]?(?P<value>{NUMBER})"
)
GRAD_NORM = re.compile(
    rf"(?i)(?:grad(?:ient)?[ _]?norm|gnorm)['\"]?(?:\s*[:=]\s*|\s+{DECIMAL})['\"]?(?P<value>{NUMBER})"
)
SECONDS = re.compile(
    r"elapsed time per iteration \((?P<unit>ms|s)\):\s*(?P<a>[\d.]+)"
    r"|train_step_timing in s[:=]\s*(?P<b>[\d.]+)"
    r"|\bdt=(?P<c>[\d.]+)"
    r"|(?<![a-z_])(?:step[ _]time|time/step|iter[ _]time|sec/(?:step|it(?:er)?))[:=]?\s*(?P<d>[\d.]+)\s*(?P<dms>ms)?"
    r"|,\s*(?P<e>[\d.]+)\s?s/it|,\s*(?P<f>[\d.]+)\s?it/s"
)
SAMPLES = re.compile(r"CurrSamplesPerSec=(?P<value>[\d.]+)")

PHASES: tuple[tuple[Phase, str, re.Pattern[str]], ...] = (
    ("eval", "alid", re.compile(r"(?i:valid(?:ation)? loss at iteration|running validation|validation dataloader)")),
    ("eval", "valuat", re.compile(r"(?i:\*+ *running evaluation|evaluating\b|begin(?:ning)? evaluation)")),
    ("save", "aving", re.compile(r"(?i:\bsaving (?:model |the )?(?:checkpoint|ckpt|state)|saving model checkpoint)")),
    (
        "load",
        "oading",
        re.compile(r"(?i:\bloading (?:model |the |states? )?(?:from )?(?:checkpoint|ckpt)|resum(?:e|ing) from)"),
    ),
)
