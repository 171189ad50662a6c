"""The change log is made of fragments, so that two branches never meet in one file.

`changes/NAME.KIND.md` holds a sentence or two for a user; KIND is added, changed, fixed, removed or security.
`tools/changelog.py --check` looks at the names; `tools/changelog.py 0.2.0 2026-01-31` moves all fragments into
CHANGELOG.md under that version; `--draft` only prints what it would write.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHANGES = ROOT / "changes"
LOG = ROOT / "CHANGELOG.md"
KINDS = ("added", "changed", "fixed", "removed", "security")
MARK = "<!-- new versions go below this line -->\n"


def fragments() -> list[Path]:
    """All fragments, by name."""
    return sorted(path for path in CHANGES.glob("*.md") if path.name != "README.md")


def kind(path: Path) -> str:
    """The KIND part of NAME.KIND.md."""
    return path.suffixes[-2].lstrip(".") if len(path.suffixes) > 1 else ""


def mistakes() -> list[str]:
    """One line for each fragment that cannot be used."""
    wrong = []
    for path in fragments():
        if kind(path) not in KINDS:
            wrong.append(f"changes/{path.name}: name it NAME.KIND.md, KIND one of {', '.join(KINDS)}")
        if not path.read_text().strip():
            wrong.append(f"changes/{path.name}: is empty; say what changed for a user")
    return wrong


def section(version: str, date: str) -> str:
    """The version's part of the change log."""
    lines = [f"## {version}" + (f" ({date})" if date else "")]
    for name in KINDS:
        texts = [" ".join(path.read_text().split()) for path in fragments() if kind(path) == name]
        if texts:
            lines += ["", f"### {name.capitalize()}", "", *(f"- {text}" for text in texts)]
    return "\n".join(lines) + "\n"


def release(version: str, date: str) -> None:
    """Move the fragments into CHANGELOG.md."""
    head, mark, rest = LOG.read_text().partition(MARK)
    LOG.write_text(f"{head}{mark}\n{section(version, date)}{rest}")
    for path in fragments():
        path.unlink()


def main() -> int:
    """Check, draft or release."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", nargs="?", default="Unreleased")
    parser.add_argument("date", nargs="?", default="")
    parser.add_argument("--check", action="store_true", help="only look at the fragments' names")
    parser.add_argument("--draft", action="store_true", help="print, change nothing")
    options = parser.parse_args()
    if wrong := mistakes():
        print("\n".join(wrong), file=sys.stderr)
        return 1
    if options.draft:
        print(section(options.version, options.date), end="")
    elif not options.check:
        release(options.version, options.date)
    return 0


if __name__ == "__main__":
    sys.exit(main())
