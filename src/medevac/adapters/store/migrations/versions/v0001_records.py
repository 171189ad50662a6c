"""Records, cursors, and the store's own name."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

APPLICATION_ID = 0x4D445643


def upgrade() -> None:
    op.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    op.create_table(
        "record",
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("id", sa.Text),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("record_once", "record", ["kind", "id"], unique=True, sqlite_where=sa.text("id IS NOT NULL"))
    op.create_table(
        "cursor",
        sa.Column("source", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    store = op.create_table("store", sa.Column("identity", sa.Text, primary_key=True))
    op.bulk_insert(store, [{"identity": secrets.token_hex(8)}])
