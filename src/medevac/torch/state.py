"""The training's state as one flat dictionary, the way DCP names it, and back."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import _get_fqns, get_state_dict, set_state_dict

from medevac.torch.reader import InMemory, MappedReader

_OPTIMIZER = "optim.state."


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

    def load(self, folder: str | os.PathLike[str], held: Mapping[str, InMemory] | None = None) -> None:
        """Put a checkpoint's values in place, whatever the number of ranks that wrote it; files that are `held` are
        read from there. Each rank reads for itself.

        Raises what DCP raises for a checkpoint of another model.
        """
        reader = MappedReader(folder, held)
        for optimizer in self._optimizers:
            make_room(self._model, optimizer, reader.read_metadata())
        nested = self._nested()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is ")  # each rank for itself: as intended
            state_dict_loader.load(nested, storage_reader=reader, no_dist=True)
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


def make_room(model: torch.nn.Module, optimizer: torch.optim.Optimizer, metadata: Metadata) -> None:
    """Give an optimizer that has made no step yet the state that a checkpoint has, its values to be loaded.

    Without it torch makes that state by a step with gradients of zero, which takes as long as a real one, and twice the
    memory. Where the checkpoint has more than tensors of the parameters' shapes and scalars, it is left to torch.
    """
    known = metadata.state_dict_metadata
    parts: dict[str, list[tuple[str, Any]]] = {}
    for name, stored in known.items():
        if name.startswith(_OPTIMIZER):
            fqn, _, key = name.removeprefix(_OPTIMIZER).rpartition(".")
            parts.setdefault(fqn, []).append((key, stored))
    named = {parameter: name for name, parameter in model.named_parameters()}
    rooms: dict[Tensor, dict[str, Tensor]] = {}
    for parameter in (one for group in optimizer.param_groups for one in group["params"] if one.requires_grad):
        fqns = _get_fqns(model, named[parameter]) if parameter in named else set()
        mine = [part for fqn in fqns for part in parts.get(fqn, ())]
        made = {key: _room(parameter, stored) for key, stored in mine}
        if not made or any(value is None for value in made.values()):
            return
        rooms[parameter] = {key: value for key, value in made.items() if value is not None}
    if not optimizer.state and all(parameter.grad is None for parameter in rooms):
        optimizer.state.update(rooms)


def _room(parameter: Tensor, stored: object) -> Tensor | None:
    if not isinstance(stored, TensorStorageMetadata):
        return None
    dtype = stored.properties.dtype
    if stored.size == parameter.shape and stored.size:
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    return torch.empty((), dtype=dtype) if not stored.size else None
