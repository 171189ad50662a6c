"""DCP's reader for checkpoints of ours: bytes go from a mapping straight into the tensors, with no archive opened.

The mapping is of a saver's memory (`medevac.torch.memory`) or of the file itself. A file that somebody else wrote has
other archives: then torch's own reader does it.
"""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from medevac.torch.layout import shell
from medevac.torch.memory import Held


class Source(Protocol):
    """One file's bytes. Both raise KeyError for what is not there in the expected form."""

    def archive(self, at: int, head: bytes, size: int) -> memoryview:
        """The data of the archive that begins at `at`."""
        ...

    def plain(self, at: int, size: int) -> bytes: ...


class InMemory:
    """A file as its saver holds it."""

    def __init__(self, held: Held, length: int) -> None:
        self._held, self._length = held, length

    def archive(self, at: int, head: bytes, size: int) -> memoryview:
        return self._held.tensor(at + len(head), size)

    def plain(self, at: int, size: int) -> bytes:
        return self._held.rest(at, size, self._length)


class OnDisk:
    """A file, mapped. Raises OSError, ValueError for an empty one."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._memory = mmap.mmap(
                file.fileno(), 0, access=mmap.ACCESS_COPY
            )  # torch warns of memory that is read-only

    def archive(self, at: int, head: bytes, size: int) -> memoryview:
        begin = at + len(head)
        if self._memory[at:begin] != head or begin + size > len(self._memory):
            raise KeyError(at)
        return memoryview(self._memory)[begin : begin + size]

    def plain(self, at: int, size: int) -> bytes:
        return self._memory[at : at + size]


class MappedReader(StorageReader):
    """Reads what `held` has from there, all else from the folder's files."""

    def __init__(self, folder: str | os.PathLike[str], held: Mapping[str, InMemory] | None = None) -> None:
        self._folder = Path(folder)
        self._theirs = filesystem.FileSystemReader(folder)
        self._sources: dict[str, Source] = dict(held or {})
        self._metadata: Metadata | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._theirs.reset(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._metadata is None:
            self._metadata = self._theirs.read_metadata(*args, **kwargs)
        return self._metadata

    def set_up_storage_reader(self, metadata: Metadata, *args: Any, **kwargs: Any) -> None:
        self._metadata = metadata
        self._theirs.set_up_storage_reader(metadata, *args, **kwargs)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return filesystem.FileSystemReader.validate_checkpoint_id(checkpoint_id)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        try:
            for item in plan.items:
                self._read(item, planner)
        except KeyError:
            return self._theirs.read_data(plan, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read(self, item: ReadItem, planner: LoadPlanner) -> None:
        assert self._metadata
        assert self._metadata.storage_data is not None
        place = self._metadata.storage_data[item.storage_index]
        source = self._source(place.relative_path)
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(source.plain(place.offset, place.length)))
            return
        stored = self._stored(item, source, place.offset)
        for dimension, (begin, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            stored = stored.narrow(dimension, begin, length)
        target = planner.resolve_tensor(item).detach()
        target.copy_(stored)
        planner.commit_tensor(item, target)

    def _source(self, name: str) -> Source:
        if name not in self._sources:
            self._sources[name] = OnDisk(self._folder / name)
        return self._sources[name]

    def _stored(self, item: ReadItem, source: Source, at: int) -> Tensor:
        """The tensor, or part of one, that was written as a whole. Its memory is not ours to write to."""
        assert self._metadata
        known = self._metadata.state_dict_metadata[item.storage_index.fqn]
        assert isinstance(known, TensorStorageMetadata)
        sizes = next(chunk.sizes for chunk in known.chunks if chunk.offsets == item.storage_index.offset)
        dtype = known.properties.dtype
        count = sizes.numel()
        head = shell(tuple(sizes), dtype).head
        data = source.archive(at, head, count * dtype.itemsize)
        if not count:
            return torch.empty(sizes, dtype=dtype)
        return torch.frombuffer(data, dtype=torch.uint8).view(dtype).view(sizes)
