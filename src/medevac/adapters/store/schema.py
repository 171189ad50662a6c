"""The tables of `medevac.db` (docs/store.md). A change here is a migration in `migrations/versions`."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, MetaData, Table, Text

APPLICATION_ID = 0x4D445643
"""In the file's header ("MDVC"): tells a store of ours from any other SQLite file."""

REVISIONS = ("0001",)
"""All schemas this version can read, oldest first. A test compares them with the migrations."""

metadata = MetaData()

records = Table(
    "record",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("id", Text),
    Column("body", Text, nullable=False),
)
Index("record_once", records.c.kind, records.c.id, unique=True, sqlite_where=records.c.id.is_not(None))

cursors = Table(
    "cursor",
    metadata,
    Column("source", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

stores = Table(
    "store",
    metadata,
    Column("identity", Text, primary_key=True),
)
