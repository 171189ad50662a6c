"""What trainer and saver say to each other, over a socket pair that only they have. Needs no torch.

A message is 8 bytes of length and a msgpack struct; a segment's file descriptor comes along with the length.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from medevac.core.seal import Seal
from medevac.torch.lineage import Keep

_LENGTH = struct.Struct("<Q")
_AT_ONCE = 1 << 16


class Segment(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Host memory of slot `slot`, shared by its descriptor."""

    slot: int
    size: int


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor: `size` bytes at `at` of the slot, written between `head` and `tail`."""

    name: str
    dtype: str
    at: int
    size: int
    head: bytes
    tail: bytes


class Layout(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What each slot holds from now on; `file` is this rank's file."""

    rank: int
    file: str
    pieces: tuple[Piece, ...]


class Save(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Write slot `slot` as the checkpoint of `step`. `hashes`: of the live state, by piece.

    `tag` names the attempt's own staging folder; `writers` are the ranks that write a file. `seal` and `metadata` come
    with rank 0, whose saver finishes the checkpoint. `keep`: which ones to leave, None for all.
    """

    step: int
    slot: int
    folder: str
    tag: str
    hashes: tuple[str, ...]
    others: bytes = b""
    metadata: bytes = b""
    seal: Seal | None = None
    writers: tuple[int, ...] = (0,)
    keep: Keep | None = None
    point: bool = False


class Saved(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer: this rank's part (rank 0: the whole checkpoint) is on disk, or why not."""

    step: int
    slot: int
    problem: str = ""
    seconds: float = 0.0


class Bye(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The trainer ends in order: nobody will load from this saver's memory."""


Message: TypeAlias = Segment | Layout | Save | Saved | Bye
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def readable(link: socket.socket, wait_s: float = 0.0) -> bool:
    """Whether something is there to read, or the other side has ended. `select` knows no descriptor over 1023, of
    which a trainer with many loaders has some.
    """
    poll = select.poll()
    poll.register(link, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


def send(link: socket.socket, message: Message, descriptor: int | None = None) -> None:
    """Raises OSError when the other side is gone."""
    body = msgspec.msgpack.encode(message)
    length = _LENGTH.pack(len(body))
    if descriptor is None:
        link.sendall(length + body)
    else:
        socket.send_fds(link, [length], [descriptor])
        link.sendall(body)


class Reader:
    """Messages as they come. With `wait` false a call takes what is there."""

    def __init__(self, link: socket.socket, *, wait: bool = True) -> None:
        self._link = link
        self._wait = wait
        self._data = bytearray()
        self.descriptors: list[int] = []
        """Those that came with the messages, in order."""
        self.ended = False

    def read(self) -> Iterator[Message]:
        """Whole messages, until the other side has ended or (without `wait`) nothing more is there."""
        while not self.ended:
            # Python 3.11's recv_fds passes no flags on: MSG_DONTWAIT would wait.
            if not self._wait and not readable(self._link):
                return
            try:
                data, descriptors, _, _ = socket.recv_fds(self._link, _AT_ONCE, 4)
            except OSError:
                data, descriptors = b"", []
            self.descriptors += descriptors
            self.ended = not data
            self._data += data
            yield from self._whole()

    def _whole(self) -> Iterator[Message]:
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            end = _LENGTH.size + length
            if len(self._data) < end:
                return
            body = bytes(self._data[_LENGTH.size : end])
            del self._data[:end]
            yield _decoder.decode(body)
