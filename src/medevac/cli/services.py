"""What the commands of the services share: the log on stderr, the configuration."""

from __future__ import annotations

import sys

import structlog


def log_to_stderr() -> None:
    """One JSON object a line, as the journal takes it."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
