"""The DCP format, laid out once so that a process without torch can write it.

A `.distcp` file is one `torch.save` archive after the other. All of an archive but its data is the same at each save:
it is taken from torch itself, once, and the saver puts the live bytes between.
"""

from __future__ import annotations

import functools
import io
import pickle  # noqa: TID251 - the format of DCP's `.metadata`
from collections.abc import Mapping, Sequence
from typing import IO, Any, cast

import msgspec
import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor, or this rank's part of one, and where it lies in the rank's file."""

    name: str
    size: tuple[int, ...]
    """of the whole tensor"""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    """of this part"""
    dtype: str
    at: int
    length: int


class Shell(msgspec.Struct, frozen=True, kw_only=True):
    """A `torch.save` archive without its data: the bytes before and after it."""

    head: bytes
    tail: bytes


class _Holes(io.RawIOBase):
    """Keeps what is written and where, not what is skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[tuple[int, bytes]] = []
        self._at = 0

    def write(self, data: Any) -> int:
        self.parts.append((self._at, bytes(data)))
        self._at += len(self.parts[-1][1])
        return len(self.parts[-1][1])

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset if whence == 0 else self._at + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def writable(self) -> bool:
        return True


@functools.lru_cache(maxsize=4096)
def shell(sizes: tuple[int, ...], dtype: torch.dtype) -> Shell:
    """What `torch.save` writes around a tensor of this shape. No memory is touched for the tensor itself."""
    out = _Holes()
    with torch.serialization.skip_data():
        torch.save(torch.empty(sizes, dtype=dtype), cast(IO[bytes], out))
    head, tail, end, gaps = b"", b"", 0, 0
    for at, data in out.parts:
        gaps += at != end
        if gaps:
            tail += data
        else:
            head += data
        end = at + len(data)
    expected = torch.empty(0, dtype=dtype).element_size() * _count(sizes)
    if end - len(head) - len(tail) != expected or gaps != (expected > 0):
        raise OSError(f"this torch ({torch.__version__}) writes archives that Medevac does not know")
    return Shell(head=head, tail=tail)


def _count(sizes: Sequence[int]) -> int:
    return functools.reduce(lambda one, other: one * other, sizes, 1)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor that this rank writes, and its place in the whole."""

    name: str
    local: Any
    size: tuple[int, ...]
    offsets: tuple[int, ...]


def parts_of(flat: Mapping[str, Any], rank: int) -> tuple[list[Part], dict[str, Any]]:
    """The tensors that this rank writes, and (rank 0) all that is no tensor. Of equal copies one rank writes."""
    tensors, others = [], {}
    for name, value in flat.items():
        if isinstance(value, DTensor):
            if _first_copy(value):
                sizes, offsets = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
                if _count(sizes) > 0:
                    local = value.to_local()
                    tensors.append(Part(name=name, local=local, size=tuple(value.shape), offsets=tuple(offsets)))
        elif isinstance(value, Tensor):
            if rank == 0:
                tensors.append(Part(name=name, local=value, size=tuple(value.shape), offsets=(0,) * value.dim()))
        elif rank == 0:
            others[name] = value
    return tensors, others


def _first_copy(value: DTensor) -> bool:
    coordinate = value.device_mesh.get_coordinate()
    return coordinate is not None and all(
        at == 0 for at, place in zip(coordinate, value.placements, strict=True) if isinstance(place, Replicate)
    )


def chunks_of(parts: Sequence[Part]) -> list[Chunk]:
    """Where each part will lie in this rank's file."""
    found, at = [], 0
    for part in parts:
        sizes = tuple(part.local.shape)
        around = shell(sizes, part.local.dtype)
        length = len(around.head) + part.local.numel() * part.local.element_size() + len(around.tail)
        found.append(
            Chunk(
                name=part.name,
                size=part.size,
                offsets=part.offsets,
                sizes=sizes,
                dtype=str(part.local.dtype).removeprefix("torch."),
                at=at,
                length=length,
            )
        )
        at += length
    return found


def file_name(rank: int) -> str:
    """As DCP names it."""
    return f"__{rank}_0.distcp"


class CannotSaveError(Exception):
    """A part of the state that is no tensor and that cannot be pickled: its name, and why."""


def encode_others(others: Mapping[str, Any]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """What is no tensor as archives one after the other, and where each lies among them. Raises `CannotSaveError`."""
    out, places = io.BytesIO(), {}
    for name, value in others.items():
        at = out.tell()
        one = io.BytesIO()
        try:
            torch.save(value, one)
        except (pickle.PickleError, TypeError, AttributeError, ValueError, RuntimeError) as problem:
            raise CannotSaveError(f"{name} cannot be pickled, and so not be saved: {problem}") from problem
        out.write(one.getbuffer())
        places[name] = (at, out.tell() - at)
    return out.getvalue(), places


def unsavable(others: Mapping[str, Any]) -> str:
    """The first of them that cannot be pickled, in words; "" for none."""
    try:
        encode_others(others)
    except CannotSaveError as problem:
        return str(problem)
    return ""


def metadata(chunks: Mapping[int, Sequence[Chunk]], others: Mapping[str, tuple[int, int]], mapping: Any) -> bytes:
    """The `.metadata` file: what lies where, by rank. `others` follow the chunks of rank 0."""
    tensors: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    where: dict[MetadataIndex, _StorageInfo] = {}
    for rank, mine in chunks.items():
        for chunk in mine:
            offsets, sizes = torch.Size(chunk.offsets), torch.Size(chunk.sizes)
            known = tensors.setdefault(
                chunk.name,
                TensorStorageMetadata(
                    properties=TensorProperties(dtype=getattr(torch, chunk.dtype)),
                    size=torch.Size(chunk.size),
                    chunks=[],
                ),
            )
            assert isinstance(known, TensorStorageMetadata)
            known.chunks.append(ChunkStorageMetadata(offsets=offsets, sizes=sizes))
            where[MetadataIndex(chunk.name, offsets)] = _StorageInfo(file_name(rank), chunk.at, chunk.length)
    end = max((chunk.at + chunk.length for chunk in chunks.get(0, ())), default=0)
    for name, (at, length) in others.items():
        tensors[name] = BytesStorageMetadata()
        where[MetadataIndex(name)] = _StorageInfo(file_name(0), end + at, length)
    made = Metadata(
        state_dict_metadata=tensors,
        planner_data=mapping,
        storage_data=where,
        storage_meta=StorageMeta(),
        version=CURRENT_DCP_VERSION,
    )
    return pickle.dumps(made)
