"""The training's state as one flat dictionary, the way DCP names it, and back."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import filesystem, state_dict_loader
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


class Stateful(Protocol):
    """A scheduler, a GradScaler, a data loader: what has a state of its own."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


class TrainingState:
    """Model, optimizer and whatever else must come back together. Sharded tensors stay sharded."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, extra: Mapping[str, Stateful]
    ) -> None:
        self._model = model
        self._optimizers = () if optimizer is None else (optimizer,)
        self._extra = dict(extra)

    def flat(self) -> tuple[dict[str, Any], Any]:
        """Names and values, and the mapping that DCP keeps to nest them again. Nothing is copied."""
        flat, mapping = flatten_state_dict(self._nested())
        return dict(flat), mapping

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Put a checkpoint's values in place, whatever the number of ranks that wrote it. On all ranks together.

        Raises what DCP raises for a checkpoint of another model.
        """
        nested = self._nested()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process: as intended
            state_dict_loader.load(nested, storage_reader=filesystem.FileSystemReader(folder), no_dist=not _grouped())
        set_state_dict(
            self._model,
            self._optimizers,
            model_state_dict=nested["model"],
            optim_state_dict=nested.get("optim", {}),
        )
        for name, one in self._extra.items():
            one.load_state_dict(nested["extra"][name])

    def finite(self) -> bool:
        """Whether all floats of the state that this rank holds are finite. Reads everything: for when in doubt."""
        tensors = [value for value in self.flat()[0].values() if isinstance(value, torch.Tensor)]
        locals_ = [value.to_local() if hasattr(value, "to_local") else value for value in tensors]
        return all(bool(torch.isfinite(one).all()) for one in locals_ if one.is_floating_point())

    def _nested(self) -> dict[str, Any]:
        model, optim = get_state_dict(self._model, self._optimizers)
        nested: dict[str, Any] = {"model": model}
        if self._optimizers:
            nested["optim"] = optim
        if self._extra:
            nested["extra"] = {name: one.state_dict() for name, one in self._extra.items()}
        return nested


def _grouped() -> bool:
    return dist.is_available() and dist.is_initialized()
