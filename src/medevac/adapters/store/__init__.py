"""The event log and the audit log: on SQLite, in memory, and as JSON lines. See docs/store.md."""
