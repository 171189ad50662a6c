"""The one place where Slurm's commands are run.

In monitor mode only the forms of `READS` pass, whatever is asked. Every command has a deadline, speaks English and
tells times in UTC.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from typing import Literal

from medevac.ports.errors import OutcomeUnknown, PortError, Refused, Unavailable

READS = frozenset({"squeue", "sinfo", "sacct", "sprio", "sshare"})
"""Programs that only read, whatever their options."""

_SHOWS = frozenset({"show", "ping", "version", "listpids"})
_FLAGS = re.compile(r"-[odaQv]+|--(?:oneliner|details|all|quiet|verbose|future)")
_LARGEST = 512 * 1024 * 1024

_UNREACHABLE = re.compile(
    r"unable to contact slurm controller|connection refused|unable to establish controller|no route to host|"
    r"standby mode|munge|authentication|controller is not responding|slurm_persist_conn|unable to connect|"
    r"resource temporarily unavailable|could not establish a configuration source|server is not responding|"
    r"connection timed out",
    re.IGNORECASE,
)
_UNANSWERED = re.compile(
    r"timed out|zero bytes|unexpected message|connection reset|communication|transmission|not responding", re.IGNORECASE
)

FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/sbin")


def reads_only(name: str, args: tuple[str, ...]) -> bool:
    """Whether this form changes nothing in Slurm."""
    if name in READS:
        return True
    if name == "scontrol":
        words = [word for word in args if not _FLAGS.fullmatch(word)]
        return bool(words) and words[0] in _SHOWS and not any(word.startswith("-") for word in words)
    if name == "sacctmgr":
        words = [word for word in args if word not in {"-n", "-P", "-p", "--noheader", "--parsable2", "--parsable"}]
        mends = any(word.startswith("-") or word.lower().startswith("runaway") for word in words)
        return bool(words) and words[0] in {"show", "list"} and not mends
    return False


class Commands:
    """`prefix` is a Slurm's own folder (with bin), else MEDEVAC_SLURM_PREFIX, else PATH. `conf` names another
    slurm.conf than the system's.
    """

    def __init__(
        self, *, mode: Literal["act", "monitor"] = "act", prefix: str = "", conf: str = "", deadline_s: float = 20.0
    ) -> None:
        self.mode = mode
        self._prefix = prefix or os.environ.get("MEDEVAC_SLURM_PREFIX", "")
        self._conf = conf
        self._deadline_s = deadline_s

    async def run(self, name: str, *args: str) -> str:
        """What the command writes; bytes that are no UTF-8 are kept as lone surrogates.

        Raises `Unavailable` where Slurm cannot be reached, `Refused` where it said no (and for what monitor mode
        forbids), `OutcomeUnknown` where a change was sent and no answer came.
        """
        reads = reads_only(name, args)
        if self.mode == "monitor" and not reads:
            raise Refused(f"monitor mode: {name} {' '.join(args)} is not run")
        code, out, errors = await self._start(name, args, reads=reads)
        if code:
            raise _problem(f"{name} {' '.join(args)}", errors or out, reads=reads)
        return out

    async def _start(self, name: str, args: tuple[str, ...], *, reads: bool) -> tuple[int, str, str]:
        try:
            process = await asyncio.create_subprocess_exec(
                self._path(name),
                *args,
                env=self._env(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as problem:
            raise Unavailable(f"{name} cannot be started: {problem.strerror or problem}") from problem
        try:
            async with asyncio.timeout(self._deadline_s):
                out, errors = await process.communicate()
        except TimeoutError as late:
            kind = Unavailable if reads else OutcomeUnknown
            raise kind(f"{name} {' '.join(args)}: no answer within {self._deadline_s:g} s") from late
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return process.returncode or 0, _text(out), _text(errors)

    def _path(self, name: str) -> str:
        if self._prefix:
            for folder in ("bin", "sbin"):
                if found := shutil.which(name, path=f"{self._prefix}/{folder}"):
                    return found
            raise Unavailable(f"{self._prefix}: there is no {name} in its bin; set MEDEVAC_SLURM_PREFIX right")
        found = shutil.which(name) or shutil.which(name, path=":".join(FOLDERS))
        if found is None:
            raise Unavailable(f"{name} is not on PATH; install Slurm's client or set MEDEVAC_SLURM_PREFIX")
        return found

    def _env(self) -> dict[str, str]:
        """Without what a user's shell says about formats, jobs and clusters."""
        ours = ("SLURM_CONF", "SLURM_JWT", "SLURM_CONF_SERVER")
        env = {
            key: value
            for key, value in os.environ.items()
            if key in ours or not key.startswith(("SLURM_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SCONTROL_"))
        }
        env |= {"TZ": "UTC", "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0"}
        return env | ({"SLURM_CONF": self._conf} if self._conf else {})


def _problem(what: str, said: str, *, reads: bool) -> PortError:
    line = " ".join(said.split())[:400] or "it failed without a word"
    if _UNREACHABLE.search(said):
        return Unavailable(f"{what}: {line}")
    if _UNANSWERED.search(said):
        return Unavailable(f"{what}: {line}") if reads else OutcomeUnknown(f"{what}: {line}")
    return Refused(f"{what}: {line}")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
