"""`medevac diagnose LOG...`: why a job died, hung or slowed down, with the lines that say so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter

from medevac.catalog.signatures import Signature, merge, read_signatures, signatures
from medevac.cli.exits import Exit
from medevac.cli.inputs import HYPHEN, names
from medevac.cli.output import CommandError, print_json, say_error
from medevac.core.diagnose import diagnose as find_cause
from medevac.core.diagnose_case import Clue, Diagnosis, Suspect
from medevac.decode.joblog_case import LogRead, build_case, read_log
from medevac.decode.joblog_files import UnreadableLog, blocks
from medevac.decode.joblog_kernel import kernel_clues
from medevac.decode.joblog_record import Record, read_record

SHOWN = 6
"""Lines of each kind that the story quotes; --json gives all."""

ReadT = TypeVar("ReadT")


def diagnose(
    logs: Annotated[list[str], HYPHEN],
    /,
    *,
    kernel_log: Annotated[tuple[Path, ...], Parameter(negative="")] = (),
    slurm_record: Path | None = None,
    flight_recorder: Path | None = None,
    signature_file: Path | None = None,
    progress_regex: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> Exit:
    """Say why a job died, hung or slowed down, whom it concerns, and what to do.

    Parameters
    ----------
    logs
        Output of the job: files (also .gz, .xz, .zst), `-` for standard input.
    kernel_log
        Kernel logs of its nodes.
    slurm_record
        Saved text of `scontrol show job` or `sacct -P`.
    flight_recorder
        Folder of NCCL flight-recorder dumps.
    signature_file
        Signatures of your own; one with an id of ours replaces it.
    progress_regex
        How your job prints a step: a regex with a group `step`.
    json
        Print one JSON object.
    """
    names(logs, "diagnose")
    known = _signatures(signature_file)
    failed: list[str] = []
    record = _attempt(failed, partial(_record, slurm_record))
    read = [_attempt(failed, partial(_log, name, known, progress_regex)) for name in logs]
    reads = [one for one in read if one is not None]
    extra = [clue for path in kernel_log for clue in _attempt(failed, partial(_kernel, path, record)) or ()]
    if flight_recorder is not None:
        extra += _attempt(failed, partial(_flight_recorder, flight_recorder)) or ()
    for message in failed:
        say_error(message)
    if not reads and not extra and record is None:
        return Exit.UNREADABLE
    extra += record.clues if record else ()
    verdict = find_cause(build_case(reads, extra))
    print_json(as_json(verdict)) if json else print(story(verdict), end="")
    if failed:
        return Exit.UNREADABLE
    return Exit.DONE if verdict.symptom == "none" and verdict.abstained else Exit.FOUND


def as_json(verdict: Diagnosis) -> dict[str, Any]:
    """The object of --json; docs/diagnosis.md names its fields."""
    return {
        "class": verdict.cause,
        "symptom": verdict.symptom,
        "confidence": round(verdict.confidence, 2),
        "abstained": verdict.abstained,
        "advice": verdict.advice,
        "suspects": [{"node": s.node, "gpu": s.gpu, "rank": s.rank, "why": s.why} for s in verdict.suspects],
        "root": [_quote(clue) for clue in verdict.root],
        "cascade": [_quote(clue) for clue in verdict.cascade],
        "settle": verdict.settle,
    }


def story(verdict: Diagnosis) -> str:
    """The verdict for a person."""
    lines = [_headline(verdict)]
    if verdict.suspects:
        lines += ["", "Suspects:", *(f"  {_part(one)}: {one.why}" for one in verdict.suspects)]
    if verdict.root:
        lines += ["", "Because:", *_quoted(verdict.root)]
    if verdict.cascade:
        lines += ["", "Seen as well, no cause by itself:", *_quoted(verdict.cascade)]
    if verdict.symptom == "none" and verdict.abstained:
        return "\n".join(lines) + "\n"
    lines += ["", f"Advice: {ADVICE[verdict.advice]}"]
    if verdict.settle:
        lines.append(f"{'Would settle it' if verdict.abstained else 'To confirm'}: {verdict.settle}.")
    return "\n".join(lines) + "\n"


ADVICE = {
    "restart": "restart the job.",
    "restart-excluding": "restart the job without the suspect part.",
    "stop": "do not restart before it is corrected: it will fail again.",
    "look": "have a person look before the job is restarted.",
}
SEEN = {"crash": "The job died", "hang": "The job hung", "slow": "The job was slow", "none": "No failure is seen"}


def _headline(verdict: Diagnosis) -> str:
    seen = SEEN[verdict.symptom]
    if verdict.abstained:
        if verdict.symptom == "hang" and not any(clue.symptom == "hang" for clue in verdict.cascade):
            return "The log stops amid its steps: the job hangs, was killed without a word, or still runs."
        return f"{seen}." if verdict.symptom == "none" else f"{seen}; why, these logs do not say."
    return f"{seen}: {verdict.cause} (confidence {verdict.confidence:.0%})."


def _part(one: Suspect) -> str:
    words = [f"rank {one.rank}" if one.rank is not None else "", one.node, f"GPU {one.gpu}" if one.gpu else ""]
    return ", ".join(word for word in words if word)


def _quoted(clues: Sequence[Clue]) -> Iterable[str]:
    for clue in clues[:SHOWN]:
        times = f" ({clue.count} times)" if clue.count > 1 else ""
        yield f"  {clue.file}:{clue.line}: {clue.text[:160]}{times}"
    if len(clues) > SHOWN:
        yield f"  and {len(clues) - SHOWN} more (--json shows all)"


def _quote(clue: Clue) -> dict[str, Any]:
    return {
        "file": clue.file,
        "line": clue.line,
        "text": clue.text,
        "signature": clue.signature,
        "count": clue.count,
        "rank": clue.rank,
        "node": clue.node,
    }


def _attempt(failed: list[str], read: Callable[[], ReadT]) -> ReadT | None:
    """The value, or None with the reason among `failed`: one unreadable input must not cost the others."""
    try:
        return read()
    except (OSError, UnicodeDecodeError) as error:
        failed.append(str(error) if isinstance(error, UnreadableLog) else f"{getattr(error, 'filename', '')}: {error}")
        return None


def _log(name: str, known: Sequence[Signature], regex: str | None) -> LogRead:
    try:
        return read_log("stdin" if name == "-" else name, blocks(name), among=known, regex=regex)
    except ValueError as error:
        raise CommandError(str(error)) from error


def _kernel(path: Path, record: Record | None) -> tuple[Clue, ...]:
    return kernel_clues(str(path), blocks(str(path)), record=record)


def _record(path: Path | None) -> Record | None:
    if path is None:
        return None
    try:
        return read_record(str(path), path.read_text("utf-8", "replace"))
    except ValueError as error:
        raise CommandError(str(error)) from error


def _signatures(path: Path | None) -> tuple[Signature, ...]:
    if path is None:
        return signatures()
    try:
        return merge(signatures(), read_signatures(str(path), path.read_bytes()))
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error


def _flight_recorder(folder: Path) -> list[Clue]:
    from medevac.decode.fr_dump_files import recorder_clues

    return recorder_clues(folder)
