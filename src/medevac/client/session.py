"""One rank's conversation with Medevac."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, SupportsFloat

import msgspec

from medevac.client.link import FileLink, Link, NoLink, Request, SocketLink
from medevac.core.events import AnyEvent, Corruption, CorruptionSeen, Phase, ResumedFrom, StepReported

MEMORY_SECONDS = 1.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Client:
    """Heartbeats of one rank, and the requests that come back.

    Values may be anything that `float()` takes; a non-finite one is left out and the heartbeat says finite=False
    (JSON has no NaN). A tensor on a GPU is waited for by `float()`: pass what is on the host already.
    """

    def __init__(self, link: Link, *, job: str = "", attempt: int = 0, rank: int = 0) -> None:
        self.job = job
        self.attempt = attempt
        self.rank = rank
        self.resume_from: Path | None = None
        """The checkpoint folder that this attempt was told to load; None: start from nothing."""
        self._link = link
        self._place: dict[str, Any] = {}
        self._gpu_memory: Callable[[], int] | None = None
        self._measure_at = 0.0

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Client:
        """The client that the job's environment describes; one that does nothing where there is no MEDEVAC_JOB_ID."""
        job = environ.get("MEDEVAC_JOB_ID", "")
        attempt, rank = _number(environ, "MEDEVAC_ATTEMPT"), _number(environ, "RANK")
        client = cls(_link(environ, job, attempt, rank), job=job, attempt=attempt, rank=rank)
        resume = environ.get("MEDEVAC_RESUME_FROM")
        client.resume_from = Path(resume) if resume else None
        # Ranks of a launcher share its environment, and with it all of its GPUs: they know their own themselves.
        own = {} if "TORCHELASTIC_RUN_ID" in environ else environ
        client.stands(
            node=environ.get("MEDEVAC_NODE") or os.uname().nodename,
            gpu=own.get("MEDEVAC_GPU", ""),
            pci=own.get("MEDEVAC_PCI", ""),
            local_rank=_number(environ, "LOCAL_RANK") if "LOCAL_RANK" in environ else None,
        )
        return client

    def stands(
        self,
        *,
        node: str,
        gpu: str = "",
        pci: str = "",
        local_rank: int | None = None,
        gpu_memory: Callable[[], int] | None = None,
    ) -> None:
        """Where this rank runs: said with all that it says but plain steps. `gpu` is a UUID.

        `gpu_memory` is asked about once a second for the bytes that its tensors take there.
        """
        self._place = {"node": node, "gpu": gpu, "pci": pci, "local_rank": local_rank}
        self._gpu_memory = gpu_memory

    @property
    def dropped(self) -> int:
        """How many events could not be passed on."""
        return self._link.dropped

    def heartbeat(
        self,
        step: int,
        phase: Phase = "step",
        *,
        loss: SupportsFloat | None = None,
        grad_norm: SupportsFloat | None = None,
        compute_s: SupportsFloat | None = None,
        handled: str = "",
    ) -> None:
        """Say that `step` is done (or that `phase` began); `compute_s` is the rank's own seconds before all-reduce.

        `handled`: this step was bad, and what has been done about it in place, in words: no failure of the job.
        """
        values = _float(loss), _float(grad_norm), _float(compute_s)
        kept = [value if value is None or math.isfinite(value) else None for value in values]
        finite = kept[:2] == list(values[:2])
        plain = phase == "step" and finite and not handled
        self._send(
            StepReported(
                at=time.time(),
                job=self.job,
                attempt=self.attempt,
                rank=self.rank,
                step=step,
                phase=phase,
                loss=kept[0],
                grad_norm=kept[1],
                compute_s=kept[2],
                finite=finite,
                handled=handled,
                **({} if plain else self._place),
                **self._memory(),
            )
        )

    def resumed(self, step: int | None) -> None:
        """Say which checkpoint step was loaded, None for a start from nothing. Said again after a reconnection."""
        packet = _encode(
            ResumedFrom(
                at=time.time(),
                id=f"resumed/{self.job}/{self.attempt}/{self.rank}",
                job=self.job,
                attempt=self.attempt,
                rank=self.rank,
                step=step,
                **self._place,
            )
        )
        if packet:
            self._link.introduce(packet)

    def corruption(self, outcome: Corruption, *, step: int, since: int, tensors: Sequence[str], **named: Any) -> None:
        """Say that replicas of the state differ, or what that was: `CorruptionSeen`; `named`: rank, node, gpu, pci."""
        self._send(
            CorruptionSeen(
                at=time.time(),
                id=f"corruption/{self.job}/{self.attempt}/{step}/{outcome}",
                job=self.job,
                attempt=self.attempt,
                outcome=outcome,
                step=step,
                since=since,
                tensors=tuple(tensors),
                **named,
            )
        )

    def request(self) -> Request | None:
        """What Medevac asked for since the last call, once; all ranks are asked, each in its own time."""
        return self._link.receive()

    def close(self) -> None:
        """Let go of the socket or file; may take half a second where lines wait for a disk."""
        self._link.close()

    def _memory(self) -> dict[str, Any]:
        now = time.monotonic()
        if now < self._measure_at:
            return {}
        self._measure_at = now + MEMORY_SECONDS
        found = {}
        with suppress(OSError, ValueError, IndexError):
            found["memory"] = (
                int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE
            )  # proc_pid_statm(5): resident
        with suppress(RuntimeError, TypeError):
            if self._gpu_memory:
                found["gpu_memory"] = int(self._gpu_memory())
        return found

    def _send(self, event: AnyEvent) -> None:
        packet = _encode(event)
        if packet:
            self._link.send(packet)


def _encode(event: AnyEvent) -> bytes:
    try:
        return msgspec.json.encode(event)
    except (TypeError, ValueError, OverflowError):  # a step that is no number: the caller's, and not worth a crash
        return b""


def _link(environ: Mapping[str, str], job: str, attempt: int, rank: int) -> Link:
    if not job:
        return NoLink()
    if path := environ.get("MEDEVAC_SOCKET"):
        return SocketLink(path)
    if folder := environ.get("MEDEVAC_CHECKPOINT_DIR"):
        node = environ.get("MEDEVAC_NODE") or os.uname().nodename
        return FileLink(Path(folder) / ".medevac", f"{node}.{rank}", attempt)
    return NoLink()


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def _float(value: SupportsFloat | None) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
