"""How often is `medevac diagnose` right? Confusion matrix, precision, coverage, calibration, baselines, speed.

`python benchmarks/diagnosis.py [--cases FILE.jsonl] [--split held] [--speed MB]`. A case is one JSON object a line:
`lines`, `class`, `symptom`, and where known `suspect`, `kernel_lines` and `also` (classes that can be defended too).
A suspect of null says that nobody should be named; a part of it that is null is not asserted.

`--split blind` takes the cases of an author who had not seen the rules, `blind-read` the half of them (by a hash of the
incident) that rules were mended on afterwards, `blind-unread` the other half; `fresh` the cases of another one, who had
not seen the signatures either; `others` both.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from medevac.core.diagnose import diagnose
from medevac.core.diagnose_case import Diagnosis, Suspect
from medevac.decode.joblog import scan
from medevac.decode.joblog_case import build_case, read_log
from medevac.decode.joblog_kernel import kernel_clues

TESTS = Path(__file__).parents[1] / "tests"
CASES = TESTS / "scenario" / "diagnosis" / "cases.jsonl"
BLIND = TESTS / "unit" / "diagnosis" / "blind_cases.jsonl"
FRESH = TESTS / "unit" / "diagnosis" / "fresh_cases.jsonl"
UNKNOWN = "unknown"

GREP = (
    ("out of memory", "out-of-memory"),
    ("oom", "out-of-memory"),
    ("ECC", "hardware"),
    ("Xid", "hardware"),
    ("NVLink", "hardware"),
    ("No space", "storage"),
    ("Input/output error", "storage"),
    ("timeout", "network"),
    ("NCCL", "network"),
    ("Connection", "network"),
    ("nan", "numerical"),
    ("CANCELLED", "preemption"),
    ("preempt", "preemption"),
    ("driver", "system-software"),
    ("Error", "user-code"),
)
"""What a site's grep list looks like: the first line with a match decides."""


class Labelled(msgspec.Struct, frozen=True):
    """One case. `suspect`: None where the label says nothing, empty where nobody should be named."""

    lines: tuple[str, ...]
    kernel: tuple[str, ...]
    label: str
    symptom: str
    suspect: dict[str, Any] | None
    also: tuple[str, ...]


def read_cases(path: Path, split: str | None) -> list[Labelled]:
    """The cases of a file, or of one split of it. Rows may use other names (`expected_class`)."""
    rows = [msgspec.json.decode(line) for line in path.read_bytes().splitlines() if line.strip()]
    return [_labelled(row) for row in rows if split is None or row.get("split", blind_half(row)) == split]


def chosen(path: Path, split: str | None) -> list[Labelled]:
    """The cases that the command line asks for."""
    match split:
        case "fresh":
            return read_cases(FRESH, None)
        case "others":
            return [*read_cases(BLIND, None), *read_cases(FRESH, None)]
        case "blind" | "blind-read" | "blind-unread":
            return read_cases(BLIND, None if split == "blind" else split)
        case _:
            return read_cases(path, split)


def blind_half(row: dict[str, Any]) -> str:
    """Cases of one incident are on the same side."""
    odd = hashlib.sha256(row.get("incident", row["id"]).encode()).digest()[0] % 2
    return "blind-unread" if odd else "blind-read"


def _labelled(row: dict[str, Any]) -> Labelled:
    said = row.get("suspect", row.get("culprit", ""))
    return Labelled(
        tuple(row["lines"]),
        tuple(row.get("kernel_lines") or ()),
        row.get("class") or row["expected_class"],
        row.get("symptom") or row["expected_symptom"],
        None if said == "" else {key: value for key, value in (said or {}).items() if value is not None},
        tuple(row.get("also") or row.get("also_acceptable") or ()),
    )


def ours(case: Labelled) -> Diagnosis:
    """The verdict of `medevac diagnose`."""
    kernel = kernel_clues("kernel", [_text(case.kernel)]) if case.kernel else ()
    return diagnose(build_case([read_log("log", [_text(case.lines)])], kernel))


def _text(lines: Sequence[str]) -> bytes:
    return "\n".join((*lines, "")).encode()


def first_grep(case: Labelled) -> str:
    """The baseline: the first line of the log that any word of the list is in."""
    return next((label for line in case.lines for word, label in GREP if word in line), UNKNOWN)


def wilson(right: int, of: int) -> tuple[float, float]:
    """95 % interval of a share."""
    if not of:
        return 0.0, 1.0
    z, share = 1.96, right / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return middle - half, middle + half


def share(name: str, right: int, of: int) -> str:
    """`precision 0.98 (40 of 41, 95 % 0.87 to 1.00)`."""
    low, high = wilson(right, of)
    return f"{name} {right / of if of else 0:.3f} ({right} of {of}, 95 % {low:.2f} to {high:.2f})"


def score(name: str, cases: Sequence[Labelled], answer: Callable[[Labelled], str]) -> None:
    """Precision where answered, and coverage: right answers among the cases that have one."""
    answers = [(case, answer(case)) for case in cases]
    given = [(case, said) for case, said in answers if said != UNKNOWN]
    right = sum(said in (case.label, *case.also) for case, said in given)
    known = sum(case.label != UNKNOWN for case in cases)
    print(f"{name}: {share('precision', right, len(given))}; {share('coverage', right, known)}")


def confusion(pairs: Iterable[tuple[str, str]]) -> None:
    """Rows are the labels, columns the answers."""
    counts = Counter(pairs)
    names = sorted({name for pair in counts for name in pair})
    print(f"\n{'':18}" + "".join(f"{name[:9]:>10}" for name in names) + "   precision  recall")
    for row in names:
        cells = [counts[row, column] for column in names]
        said = sum(counts[other, row] for other in names)
        print(
            f"{row:18}"
            + "".join(f"{cell or '.':>10}" for cell in cells)
            + f"{counts[row, row] / max(said, 1):>12.2f}{counts[row, row] / max(sum(cells), 1):>8.2f}"
        )


def calibration(verdicts: Sequence[tuple[Labelled, Diagnosis]]) -> None:
    """In each band of confidence, how often the answer was right."""
    print("\nconfidence   answers  right")
    for low in (0.6, 0.7, 0.8, 0.9):
        band = [(case, said) for case, said in verdicts if not said.abstained and low <= said.confidence < low + 0.1]
        right = sum(said.cause in (case.label, *case.also) for case, said in band)
        print(f"{low:.1f} to {low + 0.1:.1f} {len(band):>9} {right / len(band) if band else 0:>6.2f}")


def suspects(verdicts: Sequence[tuple[Labelled, Diagnosis]]) -> None:
    """The first suspect against the label: right where it names a part and no part wrongly. None is an abstention."""
    labelled = [(case.suspect, said) for case, said in verdicts if case.suspect is not None]
    named = [(label, said.suspects[0]) for label, said in labelled if said.suspects]
    right = sum(agrees(label, one) for label, one in named)
    print("\n" + share("first suspect right", right, len(named)))
    print(share("first suspect found", right, sum(bool(label) for label, _ in labelled)))
    print(share("nobody named where nobody is", *_nobody(labelled)))


def _nobody(labelled: Sequence[tuple[dict[str, Any], Diagnosis]]) -> tuple[int, int]:
    said = [one for label, one in labelled if not label]
    return sum(not one.suspects for one in said), len(said)


def agrees(label: dict[str, Any], one: Suspect) -> bool:
    """No part that the label asserts is named otherwise, and at least one is named."""
    parts = [(str(label[key]), part) for key, part in _parts(one).items() if key in label and part]
    return bool(parts) and all(part.startswith(said) if ":" in said else part == said for said, part in parts)


def _parts(one: Suspect) -> dict[str, str]:
    return {"rank": "" if one.rank is None else str(one.rank), "node": one.node, "gpu": one.gpu}


def speed(megabytes: int) -> None:
    """Scan a log of training output with an error every thousand lines."""
    chance = random.Random(7)
    rows = [
        f" [2026-03-01 10:00] iteration {step:8d}/ 500000 | elapsed time per iteration (ms): {chance.uniform(5, 6):.4f}"
        f" | lm loss: {chance.uniform(1, 3):.6E} | grad norm: {chance.random():.3f} | number of nan iterations:   0 |"
        if step % 1000
        else f"[rank{step % 8}]: RuntimeError: NCCL error: unhandled system error"
        for step in range(megabytes * 5500)
    ]
    data = "\n".join(rows).encode()
    blocks = [data[at : at + (1 << 20)] for at in range(0, len(data), 1 << 20)]
    scan(blocks[:1])
    wall = own = math.inf
    for _ in range(3):
        start, used = time.perf_counter(), time.process_time()
        scan(blocks)
        wall, own = min(wall, time.perf_counter() - start), min(own, time.process_time() - used)
    size = len(data) / 1e6
    clock = f"{size / wall:.0f} MB/s by the clock"
    print(f"\nspeed: {size / own:.0f} MB in a second of one core ({clock}), {size:.0f} MB, best of 3")


def main() -> None:
    """Print it all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("--split", help="held, built, blind, blind-read, blind-unread, fresh or others")
    parser.add_argument("--wrong", action="store_true", help="list the cases that are answered wrongly or not at all")
    parser.add_argument("--speed", type=int, default=0, metavar="MB")
    given = parser.parse_args()
    cases = chosen(given.cases, given.split)
    verdicts = [(case, ours(case)) for case in cases]
    by_case = {id(case): said.cause for case, said in verdicts}
    print(f"{len(cases)} cases, {sum(case.label == UNKNOWN for case in cases)} of them rightly unknown")
    score("medevac", cases, lambda case: by_case[id(case)])
    score("first grep match", cases, first_grep)
    most = Counter(case.label for case in cases if case.label != UNKNOWN).most_common(1)[0][0]
    score(f"always {most}", cases, lambda _: most)
    right = sum(case.symptom == said.symptom for case, said in verdicts)
    print(share("symptom", right, len(cases)))
    confusion((case.label, said.cause) for case, said in verdicts)
    calibration(verdicts)
    suspects(verdicts)
    if given.speed:
        speed(given.speed)


if __name__ == "__main__":
    main()
