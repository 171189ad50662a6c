"""slurmrestd on a Unix socket, for reading only: all jobs, all nodes."""

from __future__ import annotations

import asyncio
import http.client
import re
import socket

from medevac.adapters.schedulers.slurm import restparse
from medevac.adapters.schedulers.slurm.values import SlurmJob, SlurmNode
from medevac.ports.errors import BadReply, Unavailable

_VERSIONS = re.compile(rb"/slurm/v0\.0\.(\d+)/jobs")


class Restd:
    """`path` of its socket. It says which versions of its interface it has: the newest is used. Raises `Unavailable`
    and `BadReply`.
    """

    def __init__(self, path: str, deadline_s: float) -> None:
        self._path = path
        self._deadline_s = deadline_s
        self._version = ""

    async def jobs(self) -> tuple[SlurmJob, ...]:
        return restparse.jobs(await self._get("jobs"))

    async def nodes(self) -> tuple[SlurmNode, ...]:
        return restparse.nodes(await self._get("nodes"))

    async def _get(self, what: str) -> bytes:
        if not self._version:
            found = _VERSIONS.findall((await self._ask("/openapi/v3")).replace(b"\\/", b"/"))
            if not found:
                raise BadReply(f"{self._path}: slurmrestd names no version of its interface")
            self._version = f"v0.0.{max(map(int, found))}"
        return await self._ask(f"/slurm/{self._version}/{what}")

    async def _ask(self, target: str) -> bytes:
        try:
            async with asyncio.timeout(self._deadline_s):
                return await asyncio.to_thread(self._fetch, target)
        except (OSError, http.client.HTTPException) as problem:
            self._version = ""
            raise Unavailable(f"{self._path}: slurmrestd: {target}: {str(problem) or 'no answer in time'}") from problem

    def _fetch(self, target: str) -> bytes:
        connection = _Local(self._path, self._deadline_s)
        try:
            connection.request("GET", target, headers={"Accept": "application/json"})
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if answer.status != http.client.OK:
            text = " ".join(body[:400].decode(errors="replace").split())
            raise http.client.HTTPException(f"{answer.status} {text}")
        return body


class _Local(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._socket_path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._socket_path)
