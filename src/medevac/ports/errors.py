"""Errors of the ports, named for what the caller must do."""

from __future__ import annotations


class PortError(Exception):
    """What an adapter raises; anything else that comes out of one is a bug."""


class Unavailable(PortError):
    """The other side cannot be reached now: nothing was done, retry later."""


class Refused(PortError):
    """The other side understood and said no: do not retry the same."""


class NoRoomError(Refused):
    """Refused as things stand: too little is in service. It may be asked again later."""


class Unsupported(PortError):
    """This backend cannot do it, now or ever."""


class OutcomeUnknown(PortError):
    """Sent, and no answer: read back before any retry."""


class BadReply(PortError):
    """The answer cannot be read; treat the outcome as unknown."""


class FencedOff(PortError):
    """Another controller holds the lease: stop acting."""


class ConfigError(Exception):
    """A file the user wrote is wrong: names file and key, and says what to do."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


class UnreadableError(ConfigError):
    """A file that is there cannot be read, or is damaged."""
