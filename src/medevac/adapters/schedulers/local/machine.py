"""This machine as a node: its name, and its GPUs where it has any."""

from __future__ import annotations

import os
import socket

from medevac.adapters.sources.nvml import read_gpus
from medevac.core.events import Gpu, Node


def this_machine() -> Node:
    """One node, with the GPUs that CUDA_VISIBLE_DEVICES leaves. Raises `Unavailable` when the driver hangs."""
    return Node(name=node_name(), gpus=visible(read_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")))


def node_name() -> str:
    """The host's name without its domain."""
    return socket.gethostname().partition(".")[0]


def visible(gpus: tuple[Gpu, ...], names: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, by index or by the beginning of a UUID; all where it is not set.

    As CUDA does, it ends at the first name that fits none.
    """
    if names is None:
        return gpus
    found: list[Gpu] = []
    for name in (part.strip() for part in names.split(",")):
        fits = [gpu for gpu in gpus if name and (str(gpu.index) == name or gpu.uuid.startswith(name))]
        if not fits:
            break
        found.append(fits[0])
    return tuple(found)
