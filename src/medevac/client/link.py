"""How events leave the job and requests come in: a Unix socket, or files of a shared file system.

Both links drop what they cannot pass on at once, and count it: a heartbeat that is late is worth nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, get_args

Request: TypeAlias = Literal["checkpoint", "stop", "ecc-changed"]

REQUESTS: tuple[Request, ...] = get_args(Request)
MAX_PACKET = 64 * 1024
RETRY_SECONDS = 0.25
FILE_BYTES = 16 * 1024 * 1024
FILE_POLL_SECONDS = 0.5
ALIVE_SECONDS = 1.0
"""A file that was not written to for so long is touched: its process lives, whatever its training waits for."""
_WORDS = {request.encode(): request for request in REQUESTS}


class Link(Protocol):
    """Passes bytes on or drops them; no method blocks or raises."""

    dropped: int

    def send(self, packet: bytes) -> None: ...

    def introduce(self, packet: bytes) -> None:
        """Send now, and again as the first packet of each later connection."""
        ...

    def receive(self) -> Request | None: ...

    def close(self) -> None: ...


def read_request(packet: bytes) -> Request | None:
    """The request in a packet, a bare word or a JSON string; None for anything else."""
    return _WORDS.get(packet.strip().strip(b'"'))


class SocketLink:
    """A SOCK_SEQPACKET connection that is made again when the other side comes back."""

    def __init__(self, path: str) -> None:
        self.dropped = 0
        self._path = path
        self._connection: socket.socket | None = None
        self._retry_at = 0.0
        self._introduction = b""

    def send(self, packet: bytes) -> None:
        if len(packet) > MAX_PACKET or not self._connected() or not self._pass_on(packet):
            self.dropped += 1

    def introduce(self, packet: bytes) -> None:
        self._introduction = packet
        if self._connection is None:
            self._connected()
        else:
            self.send(packet)

    def receive(self) -> Request | None:
        if not self._connected() or self._connection is None:
            return None
        try:
            packet = self._connection.recv(MAX_PACKET)
        except BlockingIOError:
            return None
        except OSError:
            packet = b""
        if not packet:
            self.close()
        return read_request(packet)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._retry_at = time.monotonic() + RETRY_SECONDS

    def _connected(self) -> bool:
        if self._connection is None and time.monotonic() >= self._retry_at:
            self._connect()
        return self._connection is not None

    def _connect(self) -> None:
        self._retry_at = time.monotonic() + RETRY_SECONDS
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        except OSError:
            return
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            return
        self._connection = connection
        if self._introduction:
            self._pass_on(self._introduction)

    def _pass_on(self, packet: bytes) -> bool:
        assert self._connection is not None
        try:
            self._connection.send(packet, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError:
            self.close()
            return False
        return True


class FileLink:
    """Lines appended to one file of this rank, requests read as files named `<attempt>.<request>`.

    A thread of its own touches the file system, which may hang; the job only ever touches a bounded queue. A file
    that has grown to `limit` bytes is renamed to `<name>.1`, over the one before it.
    """

    def __init__(self, folder: Path, name: str, attempt: int, *, limit: int = FILE_BYTES) -> None:
        self.dropped = 0
        self._file = folder / f"{name}.jsonl"
        self._asked = {folder / "requests" / f"{attempt}.{request}": request for request in REQUESTS}
        self._limit = limit
        self._lines: deque[bytes] = deque()
        self._requests: deque[Request] = deque()
        self._torn = False
        self._alive_at = 0.0
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="medevac-client", daemon=True)
        # An interpreter without room for one more thread still trains.
        with contextlib.suppress(RuntimeError):
            self._thread.start()

    def send(self, packet: bytes) -> None:
        if len(packet) > MAX_PACKET or len(self._lines) >= 1024:
            self.dropped += 1
            return
        self._lines.append(packet + b"\n")
        self._wake.set()

    introduce = send

    def receive(self) -> Request | None:
        return self._requests.popleft() if self._requests else None

    def close(self) -> None:
        """Give the last lines half a second to reach the disk."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(0.5)

    def _run(self) -> None:
        polled_at = 0.0
        while not self._closing or self._lines:
            self._wake.wait(FILE_POLL_SECONDS)
            self._wake.clear()
            self._write()
            if time.monotonic() - polled_at >= FILE_POLL_SECONDS:
                polled_at = time.monotonic()
                self._poll()
                self._touch()

    def _write(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        if not lines:
            return
        self._alive_at = time.monotonic()
        try:
            self._append(b"".join(lines))
        except OSError:
            self.dropped += len(lines)
            self._torn = True  # part of a line may stand there: the next one starts on a line of its own

    def _append(self, data: bytes) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        if self._file.exists() and self._file.stat().st_size + len(data) > self._limit:
            self._file.replace(self._file.with_name(self._file.name + ".1"))
        with self._file.open("ab", buffering=0) as out:
            out.write(b"\n" + data if self._torn else data)
        self._torn = False

    def _touch(self) -> None:
        if time.monotonic() - self._alive_at >= ALIVE_SECONDS:
            self._alive_at = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self._file)

    def _poll(self) -> None:
        for path, request in list(self._asked.items()):
            try:
                asked = path.exists()
            except OSError:
                continue
            if asked:
                del self._asked[path]
                self._requests.append(request)


class NoLink:
    """Where no Medevac listens."""

    dropped = 0

    def send(self, packet: bytes) -> None:
        return

    introduce = send

    def receive(self) -> Request | None:
        return None

    def close(self) -> None:
        return
