"""No collection of garbage while a syntax tree is built: what other tests left behind is finalized elsewhere.

Python 3.11 ends such a build with a SystemError (recursion depth mismatch) when a finalizer runs Python code within.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """Not until the test is over."""
    gc.disable()
    yield
    gc.enable()
