"""The catalog in memory. `load_catalog()` reads the files of this package once; each table when first asked for.

Raises `CatalogError` where a file is wrong: unknown key, double code, a bucket or source that is not defined.
"""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from medevac.catalog import schema
from medevac.catalog.schema import CatalogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

EntryT = TypeVar("EntryT", schema.XidEntry, schema.SxidEntry)
FileT = TypeVar("FileT", schema.XidFile, schema.SxidFile)

FILES = ("buckets.toml", "kinds.toml", "nvlink5.toml", "sxid.toml", "xid.toml", "xid74.toml")


class Catalog:
    """All tables. `read(name)` gives the bytes of a file by its name."""

    def __init__(self, read: Callable[[str], bytes]) -> None:
        self.read = read
        self._xids: dict[int, schema.XidEntry | None] = {}
        self._sxids: dict[int, schema.SxidEntry | None] = {}

    def xid(self, code: int) -> schema.XidEntry | None:
        """The entry of an Xid code, None where the catalog does not know it."""
        if code not in self._xids:
            alone = self._alone("xid", code, schema.XidFile)
            self._xids[code] = _dated(alone.xid[0], alone.checked) if alone else self.xids.get(code)
        return self._xids[code]

    def sxid(self, code: int) -> schema.SxidEntry | None:
        """The entry of an SXid code, None where the catalog does not know it."""
        if code not in self._sxids:
            alone = self._alone("sxid", code, schema.SxidFile)
            self._sxids[code] = _dated(alone.sxid[0], alone.checked) if alone else self.sxids.get(code)
        return self._sxids[code]

    def _alone(self, table: str, code: int, shape: type[FileT]) -> FileT | None:
        """A table's file with the entry of `code` only, None where it has none: the whole takes 20 to 40 ms to read."""
        name, mark = f"{table}.toml", f"\n[[{table}]]\n".encode()
        before, begin, after = self.read(name).partition(mark + b"code = %d\n" % code)
        if not begin:
            return None
        return schema.parse(name, before.partition(mark)[0] + begin + after.partition(mark)[0], shape)

    @cached_property
    def hash(self) -> str:
        """SHA-256 over all files, first 16 hex digits: it stands in each decision."""
        import hashlib

        digest = hashlib.sha256()
        for name in FILES:
            digest.update(name.encode() + b"\0" + self.read(name))
        return digest.hexdigest()[:16]

    @cached_property
    def _bucket_file(self) -> schema.BucketFile:
        return schema.parse("buckets.toml", self.read("buckets.toml"), schema.BucketFile)

    @cached_property
    def buckets(self) -> Mapping[str, schema.Bucket]:
        """Resolution buckets by name."""
        return {row.name: row for row in self._bucket_file.bucket}

    @cached_property
    def sources(self) -> Mapping[str, schema.Source]:
        """Sources by id."""
        return {row.id: row for row in self._bucket_file.source}

    @cached_property
    def xids(self) -> Mapping[int, schema.XidEntry]:
        """Xid entries by code."""
        table = schema.parse("xid.toml", self.read("xid.toml"), schema.XidFile)
        for row in table.xid:
            where = f"xid.toml: code {row.code}"
            self._known_buckets(where, {"bucket_now": row.bucket_now, "bucket_after": row.bucket_after})
            self._known_sources(where, row.sources)
        return _by_code("xid.toml", (_dated(row, table.checked) for row in table.xid))

    @cached_property
    def sxids(self) -> Mapping[int, schema.SxidEntry]:
        """SXid entries by code."""
        table = schema.parse("sxid.toml", self.read("sxid.toml"), schema.SxidFile)
        for row in table.sxid:
            where = f"sxid.toml: code {row.code}"
            self._known_buckets(where, {"bucket_now": row.bucket_now})
            self._known_sources(where, row.sources)
        return _by_code("sxid.toml", (_dated(row, table.checked) for row in table.sxid))

    @cached_property
    def link_units(self) -> tuple[schema.LinkUnit, ...]:
        """NVLink 5 units (Xid 144 to 150)."""
        table = schema.parse("nvlink5.toml", self.read("nvlink5.toml"), schema.LinkFile)
        for unit in table.unit:
            for row in unit.rows:
                buckets = {"bucket_now": row.bucket_now, "bucket_after": row.bucket_after}
                self._known_buckets(f"nvlink5.toml: unit {unit.names[0]}", buckets)
        self._known_sources("nvlink5.toml", table.sources)
        return table.unit

    @cached_property
    def registers(self) -> tuple[schema.RegisterBits, ...]:
        """Register bits of Xid 74."""
        table = schema.parse("xid74.toml", self.read("xid74.toml"), schema.RegisterFile)
        for row in table.bit:
            self._known_buckets(f"xid74.toml: word {row.word}", {"bucket": row.bucket})
        return table.bit

    @cached_property
    def kinds(self) -> Mapping[str, tuple[schema.KindRule, ...]]:
        """Rules by kind, in the file's order."""
        table = schema.parse("kinds.toml", self.read("kinds.toml"), schema.KindFile)
        by_kind: dict[str, tuple[schema.KindRule, ...]] = {}
        ids: set[str] = set()
        for rule in table.kind:
            if rule.id in ids:
                raise CatalogError(f"kinds.toml: id {rule.id!r} stands twice: give one of them another")
            ids.add(rule.id)
            self._known_buckets(
                f"kinds.toml: id {rule.id}", {"action": rule.action, "after": rule.after or rule.action}
            )
            by_kind[rule.kind] = (*by_kind.get(rule.kind, ()), rule)
        return by_kind

    def check(self) -> None:
        """Read every table; `CatalogError` where one is wrong."""
        _ = (self.xids, self.sxids, self.link_units, self.registers, self.kinds, self.hash)

    def _known_buckets(self, where: str, named: Mapping[str, str]) -> None:
        for key, name in named.items():
            if name not in self.buckets:
                raise CatalogError(f"{where}: {key}: no bucket {name!r} in buckets.toml: add it or use one of those")

    def _known_sources(self, where: str, named: Iterable[str]) -> None:
        for name in named:
            if name not in self.sources:
                raise CatalogError(f"{where}: sources: no source {name!r} in buckets.toml: add it or use one of those")


def _dated(row: EntryT, checked: str) -> EntryT:
    return row if row.checked else msgspec.structs.replace(row, checked=checked)


def _by_code(name: str, rows: Iterable[EntryT]) -> Mapping[int, EntryT]:
    table: dict[int, EntryT] = {}
    for row in rows:
        if row.code in table:
            raise CatalogError(f"{name}: code {row.code} stands twice: merge the entries")
        table[row.code] = row
    return table


@cache
def load_catalog() -> Catalog:
    """The catalog that comes with Medevac; read once per process."""
    folder = Path(__file__).parent
    return Catalog(lambda name: (folder / name).read_bytes())
