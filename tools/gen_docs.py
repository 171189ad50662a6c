"""Write the generated pages, or with --check say which are stale.

A generator is a module in tools/generators/ with `generate() -> dict[str, str]`: paths from the project's root to the
text that belongs there. Put a file there and it runs; one that has nothing to write returns {}.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATORS = ROOT / "tools" / "generators"


def run_generator(path: Path) -> dict[str, str]:
    """Load one generator by its file and run it."""
    spec = importlib.util.spec_from_file_location(f"generator_{path.stem}", path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages: dict[str, str] = module.generate()
    return pages


def collect() -> dict[Path, str]:
    """All pages of all generators; two that write the same page are a mistake of ours."""
    pages: dict[Path, str] = {}
    for generator in sorted(GENERATORS.glob("[!_]*.py")):
        for name, text in run_generator(generator).items():
            path = ROOT / name
            assert path not in pages, f"{name} is written by two generators"
            pages[path] = text.rstrip("\n") + "\n"
    return pages


def difference(path: Path, text: str) -> str:
    """What would change in the page, as a unified diff; empty where it is fresh."""
    old = path.read_text() if path.exists() else ""
    name = str(path.relative_to(ROOT))
    return "\n".join(
        difflib.unified_diff(old.splitlines(), text.splitlines(), name, f"{name} (generated)", lineterm="")
    )


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if a page is stale")
    check = parser.parse_args().check
    sys.path.insert(0, str(ROOT / "src"))
    pages = collect()
    stale = {path: diff for path, text in pages.items() if (diff := difference(path, text))}
    for path, diff in stale.items():
        if check:
            print(f"{path.relative_to(ROOT)} is stale; run: make docs\n{diff}", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(pages[path])
            print(f"wrote {path.relative_to(ROOT)}")
    print(f"{len(pages)} generated pages, {len(stale)} {'stale' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
