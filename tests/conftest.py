"""What all tests share: Hypothesis profiles, the `need` fixture, a clean environment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from tests.needs import need as need_component

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a shell without job control: what the tests start and interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

SLOW_IS_FINE = [HealthCheck.too_slow]  # shared machines: how long a case takes says nothing

settings.register_profile("default", deadline=None, max_examples=50, suppress_health_check=SLOW_IS_FINE)
settings.register_profile("soak", deadline=None, max_examples=2000, suppress_health_check=SLOW_IS_FINE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture
def need() -> Callable[..., None]:
    """`need("scontrol")`: skip where it is missing, fail in CI (see tests/needs.py)."""
    return need_component


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own MEDEVAC_ variables do not reach the tests."""
    for name in [name for name in os.environ if name.startswith("MEDEVAC_")]:
        monkeypatch.delenv(name)
