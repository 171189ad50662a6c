"""What a test needs beside Python: missing on a developer's machine it is a skip with a reason, in CI a failure."""

from __future__ import annotations

import importlib.util
import os
import shutil

import pytest


def need(component: str, *, present: bool | None = None) -> None:
    """Go on only where the component is there.

    `component` is the name of a program or of a Python module; with `present` it is any words, and the caller has
    looked. Where `CI` is set in the environment nothing may be missing, so that a skip cannot hide there.
    """
    if present is None:
        present = shutil.which(component) is not None or importlib.util.find_spec(component) is not None
    if present:
        return
    if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
        pytest.fail(f"{component} is missing, and CI may skip nothing", pytrace=False)
    pytest.skip(f"{component} is missing")
