"""The all-reduce of `train.py`: gradients go to rank 0 over TCP, which adds them up in the order of the shards.

Adding in a fixed order is what makes the sum the same at any number of ranks: in floating point (a + b) + c is not
a + (b + c). A peer whose connection breaks is noticed at once; one that only hangs is waited for, for ever.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

SHARDS = 8
JOIN_SECONDS = 120.0
_REPORT = struct.Struct("<qB")  # the rank's error counter (-1: not known), what its client was asked for
_REPLY = struct.Struct("<Bd")  # the command to all, the sum of the losses
_LENGTH = struct.Struct("<I")


class Lost(Exception):
    """A peer is gone, or never came: the training cannot go on."""


class Command(IntEnum):
    """What all ranks do after a step."""

    GO_ON = 0
    SAVE = 1
    STOP = 2


_REQUESTED = {"checkpoint": Command.SAVE, "stop": Command.STOP}


@dataclass(frozen=True)
class Member:
    """Who a rank is: its node, its GPU's UUID and PCI address, "" where nobody said."""

    node: str = ""
    gpu: str = ""
    pci: str = ""


@dataclass(frozen=True)
class Total:
    """What a step came to: sums over all shards; `ecc` each rank's error counter."""

    loss: float
    gradient: NDArray[np.float32]
    command: Command
    ecc: tuple[int | None, ...] = ()


class Group:
    """The ranks of one attempt. Rank r has the shards r, r + world, r + 2 world ..."""

    def __init__(
        self, rank: int, me: Member, peers: Sequence[socket.socket], members: Sequence[Member], size: int
    ) -> None:
        self.rank, self.me, self.members = rank, me, tuple(members)
        self.world = len(members)
        self.shards = range(rank, SHARDS, self.world)
        self._peers = tuple(peers)
        """Rank 0: a connection to each other rank, in their order; another rank: the one to rank 0."""
        self._size = size

    def all_reduce(
        self, parts: Sequence[tuple[float, NDArray[np.float32]]], ecc: int | None, request: str | None
    ) -> Total:
        """Loss and gradient of the own shards in, the sums over all shards out. Raises Lost."""
        asked = _REQUESTED.get(request or "", Command.GO_ON)
        if self.rank != 0:
            self._send(0, _REPORT.pack(-1 if ecc is None else ecc, asked) + _pack(parts))
            return self._reply()
        by_shard = dict(zip(self.shards, parts, strict=True))
        counters = [ecc]
        for rank in range(1, self.world):
            counter, wanted = _REPORT.unpack(self._receive(rank, _REPORT.size))
            counters.append(None if counter < 0 else counter)
            asked = max(asked, Command(wanted))
            for shard in range(rank, SHARDS, self.world):
                by_shard[shard] = self._part(rank)
        loss, gradient = _sum([by_shard[shard] for shard in range(SHARDS)])
        packet = _REPLY.pack(asked, loss) + gradient.tobytes()
        for rank in range(1, self.world):
            self._send(rank, packet)
        return Total(loss=loss, gradient=gradient, command=asked, ecc=tuple(counters))

    def leave(self) -> None:
        """Leave together: the others wait until rank 0 has saved what it had to save. Raises Lost."""
        for rank in range(1, self.world) if self.rank == 0 else ():
            self._send(rank, b".")
        if self.rank != 0:
            self._receive(0, 1)
        for peer in self._peers:
            peer.close()

    def _reply(self) -> Total:
        command, loss = _REPLY.unpack(self._receive(0, _REPLY.size))
        gradient = np.frombuffer(self._receive(0, 4 * self._size), dtype=np.float32)
        return Total(loss=loss, gradient=gradient, command=Command(command))

    def _part(self, rank: int) -> tuple[float, NDArray[np.float32]]:
        data = self._receive(rank, 8 + 4 * self._size)
        return float(np.frombuffer(data[:8])[0]), np.frombuffer(data[8:], dtype=np.float32)

    def _peer(self, rank: int) -> socket.socket:
        return self._peers[rank - 1 if self.rank == 0 else 0]

    def _send(self, rank: int, data: bytes) -> None:
        try:
            self._peer(rank).sendall(data)
        except OSError as error:
            raise Lost(f"lost the connection to rank {rank}: {error}") from error

    def _receive(self, rank: int, size: int) -> bytes:
        try:
            return _exactly(self._peer(rank), size)
        except OSError as error:
            raise Lost(f"lost the connection to rank {rank}: {error}") from error


def join(environ: Mapping[str, str], size: int) -> Group:
    """Meet the other ranks, as RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say (none of them: a group of one).

    `size` is the number of parameters. Raises Lost, and ValueError for variables that make no sense.
    """
    rank, world = int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
    if not 0 <= rank < world <= SHARDS:
        raise ValueError(f"RANK={rank} WORLD_SIZE={world}: this training takes 1 to {SHARDS} ranks, counted from 0")
    me = Member(*(environ.get(f"MEDEVAC_{name}", "") for name in ("NODE", "GPU", "PCI")))
    if world == 1:
        return Group(0, me, (), (me,), size)
    address = environ.get("MASTER_ADDR", "127.0.0.1"), int(environ["MASTER_PORT"])
    try:
        peers = _gather(address, world) if rank == 0 else [(_reach(address, rank, me), Member())]
    except TimeoutError as error:
        raise Lost(f"not all of {world} ranks came within {JOIN_SECONDS:.0f} s") from error
    members = [me, *(member for _, member in peers)] if rank == 0 else [Member()] * world
    return Group(rank, me, [peer for peer, _ in peers], members, size)


def _gather(address: tuple[str, int], world: int) -> list[tuple[socket.socket, Member]]:
    came: dict[int, tuple[socket.socket, Member]] = {}
    deadline = time.monotonic() + JOIN_SECONDS
    with socket.create_server(address, backlog=world) as door:
        while len(came) < world - 1:
            door.settimeout(max(0.01, deadline - time.monotonic()))
            peer, _ = door.accept()
            peer.settimeout(max(0.01, deadline - time.monotonic()))
            rank, *member = json.loads(_exactly(peer, *_LENGTH.unpack(_exactly(peer, _LENGTH.size))))
            came[rank] = _tuned(peer), Member(*member)
    return [came[rank] for rank in range(1, world)]


def _reach(address: tuple[str, int], rank: int, me: Member) -> socket.socket:
    deadline = time.monotonic() + JOIN_SECONDS
    hello = json.dumps([rank, me.node, me.gpu, me.pci]).encode()
    while True:
        try:
            peer = socket.create_connection(address, timeout=JOIN_SECONDS)
        except ConnectionError:  # rank 0 is not there yet
            if time.monotonic() > deadline:
                raise TimeoutError from None
            time.sleep(0.05)
            continue
        peer.sendall(_LENGTH.pack(len(hello)) + hello)
        return _tuned(peer)


def _tuned(peer: socket.socket) -> socket.socket:
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def _exactly(peer: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = peer.recv_into(view)
        if not got:
            raise ConnectionResetError("closed by the other side")
        view = view[got:]
    return bytes(data)


def _pack(parts: Sequence[tuple[float, NDArray[np.float32]]]) -> bytes:
    return b"".join(struct.pack("<d", loss) + gradient.tobytes() for loss, gradient in parts)


def _sum(parts: Sequence[tuple[float, NDArray[np.float32]]]) -> tuple[float, NDArray[np.float32]]:
    loss, gradient = parts[0][0], parts[0][1].copy()
    for more, part in parts[1:]:
        loss += more
        gradient += part
    return loss, gradient
