"""Pages through one command of the site's: mail, a chat's command line, a script."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence

from medevac.core.actions import Page
from medevac.ports.errors import Unavailable


class CommandNotifier:
    """Runs `command` (an argv, no shell) with the text on stdin and MEDEVAC_PAGE_LEVEL, MEDEVAC_PAGE_ID,
    MEDEVAC_PAGE_CAUSE in its environment. It has `timeout_s`; then it and its children are killed.
    """

    def __init__(self, command: Sequence[str], *, timeout_s: float = 30.0) -> None:
        self._command = tuple(command)
        self._timeout_s = timeout_s

    async def page(self, action: Page) -> None:
        environ = os.environ | {
            "MEDEVAC_PAGE_LEVEL": action.level,
            "MEDEVAC_PAGE_ID": action.id,
            "MEDEVAC_PAGE_CAUSE": action.cause,
        }
        name = self._command[0]
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env=environ,
                start_new_session=True,
            )
        except OSError as problem:
            raise Unavailable(f"notify command {name}: {problem.strerror}; nobody was told") from problem
        try:
            await asyncio.wait_for(process.communicate(f"{action.text}\n".encode()), self._timeout_s)
        except TimeoutError as problem:
            raise Unavailable(f"notify command {name}: no end within {self._timeout_s:g} s; it was killed") from problem
        finally:
            await _end(process)
        if process.returncode:
            raise Unavailable(f"notify command {name}: exit code {process.returncode}; nobody may have been told")


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
