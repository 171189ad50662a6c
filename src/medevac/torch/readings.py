"""What a step came to, for the heartbeat. A value on a GPU is not waited for: it is told a step later."""

from __future__ import annotations

from contextlib import suppress

import torch

from medevac.client import Client
from medevac.torch.place import Place


def begin(client: Client, place: Place) -> None:
    """The first heartbeat: who this rank is, and from now on what memory it takes."""
    on_gpu = torch.cuda.memory_allocated if torch.cuda.is_available() else None
    client.stands(node=place.node, gpu=place.gpu, pci=place.pci, local_rank=place.local_rank, gpu_memory=on_gpu)
    client.heartbeat(0, "start")


class Readings:
    """Loss, gradient norm and compute time of the newest step that is known of."""

    def __init__(self) -> None:
        self.loss: float | None = None
        self.norm: float | None = None
        self.compute_s: float | None = None
        self._host: torch.Tensor | None = None
        self._arrived: torch.cuda.Event | None = None

    def put_loss(self, loss: float | torch.Tensor | None) -> None:
        """Take a step's loss; anything that is no number is no loss."""
        if isinstance(loss, torch.Tensor) and loss.is_cuda:
            self._later(loss.detach())
            return
        self.loss = None
        with suppress(TypeError, ValueError, RuntimeError):
            self.loss = None if loss is None else float(loss.detach() if isinstance(loss, torch.Tensor) else loss)

    def _later(self, loss: torch.Tensor) -> None:
        if self._arrived is not None and self._host is not None and self._arrived.query():  # type: ignore[no-untyped-call]
            self.loss, self._arrived = float(self._host), None
        if self._arrived is None:
            if self._host is None:
                self._host = torch.empty((), pin_memory=True)
            self._host.copy_(loss, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()
