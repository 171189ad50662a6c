"""`topology.toml`: the nodes of a cluster, their GPUs and what they share.

[node.node1]
rack = "r1"
feed = "feed-a"
nvlink_domain = "node1"
kernel_log = "node1/kmsg"            # relative to this file's folder
gpus = [{ index = 0, pci = "0000:3b:00.0", uuid = "GPU-..." }]
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from medevac.core.events import Gpu, Node
from medevac.ports.errors import ConfigError

_PCI = re.compile(r"(?:([0-9a-f]{4}|[0-9a-f]{8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes in the file's order, and the kernel log of each that has one."""

    nodes: tuple[Node, ...]
    kernel_logs: dict[str, Path] = {}


class _Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    index: int
    uuid: str
    pci: str = ""


class _Node(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rack: str = ""
    feed: str = ""
    nvlink_domain: str = ""
    kernel_log: str = ""
    gpus: tuple[_Gpu, ...] = ()


def load_topology(path: Path) -> Topology:
    """Read a topology file. Raises `ConfigError` naming the file and the key."""
    try:
        return _parsed(path, path.read_bytes())
    except OSError as problem:
        raise ConfigError(str(path), f"cannot be read ({problem.strerror}); give a folder that has one") from problem


@functools.lru_cache(maxsize=2)
def _parsed(path: Path, content: bytes) -> Topology:
    """By its content, which seldom changes: it is read again and again, to see whether it has."""
    tables = _tables(path, content)
    read = {name: _read_node(path, name, table) for name, table in tables.items()}
    nodes = tuple(_node(path, name, node) for name, node in read.items())
    _check_unique(path, nodes)
    logs = {name: path.parent / node.kernel_log for name, node in read.items() if node.kernel_log}
    return Topology(nodes=nodes, kernel_logs=logs)


def _tables(path: Path, raw: bytes) -> dict[str, object]:
    try:
        content = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ConfigError(str(path), f"is not TOML: {problem}") from problem
    if unknown := sorted(content.keys() - {"node"}):
        raise ConfigError(f"{path}: {unknown[0]}", "is no key of a topology; only [node.NAME] tables are")
    tables = content.get("node")
    if not isinstance(tables, dict) or not tables:
        raise ConfigError(f"{path}: node", "there must be at least one [node.NAME] table")
    return tables


def _read_node(path: Path, name: str, table: object) -> _Node:
    try:
        return msgspec.convert(table, _Node)
    except msgspec.ValidationError as problem:
        text, _, where = str(problem).partition(" - at `$")
        raise ConfigError(f"{path}: node.{name}{where.rstrip('`')}", text) from problem


def _node(path: Path, name: str, node: _Node) -> Node:
    where = f"{path}: node.{name}"
    gpus = tuple(
        Gpu(index=gpu.index, uuid=gpu.uuid, pci=_pci(f"{where}.gpus[{position}].pci", gpu.pci))
        for position, gpu in enumerate(node.gpus)
    )
    for position, gpu in enumerate(gpus):
        if gpu.index < 0:
            raise ConfigError(f"{where}.gpus[{position}].index", "counts from 0")
        if not gpu.uuid:
            raise ConfigError(f"{where}.gpus[{position}].uuid", "must not be empty")
    for key in ("index", "pci"):
        values = [value for gpu in gpus if (value := getattr(gpu, key)) != ""]
        if twice := _repeated(values):
            raise ConfigError(f"{where}.gpus", f"{key} {twice[0]} stands there twice")
    return Node(name=name, rack=node.rack, feed=node.feed, nvlink_domain=node.nvlink_domain, gpus=gpus)


def _pci(where: str, text: str) -> str:
    if not text:
        return ""
    match = _PCI.fullmatch(text)
    if match is None:
        raise ConfigError(where, f"{text!r} is no PCI address; write it as 0000:3b:00.0")
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or 0}".lower()


def _check_unique(path: Path, nodes: tuple[Node, ...]) -> None:
    if twice := _repeated([gpu.uuid for node in nodes for gpu in node.gpus]):
        raise ConfigError(f"{path}: node", f"GPU {twice[0]} stands there twice")
    names = {node.name for node in nodes}
    if both := next((gpu.uuid for node in nodes for gpu in node.gpus if gpu.uuid in names), None):
        raise ConfigError(f"{path}: node.{both}", "a node has the name of a GPU")


def _repeated(values: Sequence[object]) -> list[object]:
    return [value for position, value in enumerate(values) if value in values[:position]]
