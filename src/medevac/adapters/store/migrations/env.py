"""Run by alembic; the connection, with its transaction, comes from `medevac.adapters.store.database`."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
