"""Who this rank is and where it runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from medevac.core.events import SealRank

log = logging.getLogger("medevac.torch")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One rank: its number, its node, its GPU ("" where there is none to name)."""

    rank: int = 0
    local_rank: int = 0
    world: int = 1
    node: str = ""
    gpu: str = ""
    pci: str = ""

    def __str__(self) -> str:
        where = f" on {self.node}" if self.node else ""
        return f"rank {self.rank} (local {self.local_rank}){where}" + (f" {self.gpu} {self.pci}" if self.gpu else "")

    def sealed(self, ecc: int | None) -> SealRank:
        """What a checkpoint's seal says of this rank."""
        return SealRank(rank=self.rank, node=self.node, gpu_uuid=self.gpu, pci=self.pci, ecc=ecc)


def here(environ: Mapping[str, str] = os.environ) -> Place:
    """This process's place: by the process group if there is one, the environment and the CUDA device."""
    grouped = dist.is_available() and dist.is_initialized()
    rank = dist.get_rank() if grouped else _number(environ, "RANK", 0)
    if not grouped and _number(environ, "WORLD_SIZE", 1) > 1:
        log.warning("there is no process group yet: this rank saves, skips and rolls back for itself alone")
    local = _number(environ, "LOCAL_RANK", rank)
    gpu, pci = _cuda(local) if torch.cuda.is_available() else _told(environ, local)
    return Place(
        rank=rank,
        local_rank=local,
        world=dist.get_world_size() if grouped else 1,
        node=environ.get("MEDEVAC_NODE") or os.uname().nodename,
        gpu=gpu,
        pci=pci,
    )


def _told(environ: Mapping[str, str], local: int) -> tuple[str, str]:
    """A launcher's ranks share the launcher's environment: theirs are its GPUs in order."""
    if "TORCHELASTIC_RUN_ID" not in environ:
        return environ.get("MEDEVAC_GPU", ""), environ.get("MEDEVAC_PCI", "")
    gpus = (environ.get("MEDEVAC_GPUS") or environ.get("MEDEVAC_GPU", "")).split(",")
    pcis = (environ.get("MEDEVAC_PCIS") or environ.get("MEDEVAC_PCI", "")).split(",")
    return (gpus[local], pcis[local]) if local < len(gpus) == len(pcis) else ("", "")


def _cuda(local: int) -> tuple[str, str]:
    ready = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    device = torch.cuda.current_device() if ready else local % torch.cuda.device_count()
    found: Any = torch.cuda.get_device_properties(device)
    pci = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
    return f"GPU-{found.uuid}", pci


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else default
