"""Where in a block of bytes a line may be a fault: a few anchor literals that cover all kinds, found in one pass.

Only lines that an anchor hits are parsed. The ahocorasick_rs package finds them by vector instructions (Teddy); without
it `bytes.find` does, once for each literal. What decides the speed is in ADR 0010.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Protocol

NUMPY_PAYS = 150_000_000
"""Bytes of a log in which it counts line ends faster by more than its import takes."""

# Each is a piece of a fault's words that begins with four bytes rare in logs. The matcher looks for the beginnings in
# sixteen groups, anchor n in group n % 16, so their order was searched for, for groups that let little else through. At
# most 64: with more it goes a byte at a time. A new one goes to the end.
ANCHORS: tuple[bytes, ...] = (
    b"ERT: E",  # BERT: Error records
    b"PCIe ",  # PCIe Bus Error, available PCIe bandwidth
    b"r, dev ",  # I/O error, dev
    b"amdgpu",
    b"vswitch",  # nvidia-nvswitch
    b"ck inj",  # Machine check injector initialized
    b"me nvme",  # nvme nvme0
    b"eyond end",  # attempt to access beyond end of device
    b"carrier",  # Lost carrier
    b"k is Down",  # NIC Link is Down
    b"mlx5",
    b"ux version ",  # Linux version: a boot
    b"no usable path",
    b"nfs: serve",
    b"[tid ",  # the Fabric Manager's own log
    b"oom-kill",  # and invoked oom-killer
    b"Killed pr",  # Killed process
    b"k failure on",  # Disk failure on
    b"AER: ",
    b"NVRM",
    b'AGE":[',  # a journal's MESSAGE as numbers
    b"WATCHDOG: ",  # NETDEV WATCHDOG: eth0: transmit queue 3 timed out
    b"EXT4-fs",
    b"eermem",  # nvidia-peermem
    b"cieport 0",  # pcieport 0000:
    b"m clock to",  # setting system clock to
    b"BTRFS ",
    b"XFS (",
    b"e Error]",  # [Hardware Error]
    b"oft lockup",  # soft lockup
    b"nvrm",
    b"(sct 0x",  # the status of an NVMe command
    b"EINJ",  # errors can be injected
    b"Kill proc",  # Kill process
    b"VSwitch",  # detected NVSwitch fatal error
    b"k is Up",  # NIC Link is Up
    b"te=initialized",  # audit(...): state=initialized
    b"panic - not",  # Kernel panic - not syncing
    b"/O e",  # I/O error
    b"efa 0",
    b"niband ",  # infiniband
    b"r limit",  # power limit
    b"mce: ",
    b"LustreError",
    b"no available path",
    b"emperature",  # temperature above threshold
    b"bnccl",  # libnccl
    b"Slot(",  # pciehp: Slot(4): Link Down
    b"EDAC ",
    b"y failure: ",  # Memory failure: 0x1234
    b"r more than",  # blocked for more than
    b"cmanager",  # nv-fabricmanager
)


GOING_ON = frozenset(map(ANCHORS.index, (b"AER: ", b"PCIe ", b"cieport 0", b"panic - not")))
"""Anchors of facts that may go on in lines without an anchor."""

Hit = tuple[int, int, int]
"""Which anchor, where it begins and where it ends."""


class Scanner(Protocol):
    """Finds anchors."""

    def scan(self, data: bytes | bytearray, size: int) -> list[Hit]:
        """All in `data[:size]`, in order; of two that overlap one will do."""


class PackedScanner:
    """All anchors at once."""

    def __init__(self, anchors: tuple[bytes, ...]) -> None:
        import ahocorasick_rs as ac

        self._find: Callable[[Any], list[Hit]] = ac.BytesAhoCorasick(
            anchors, matchkind=ac.MatchKind.LeftmostFirst
        ).find_matches_as_indexes

    def scan(self, data: bytes | bytearray, size: int) -> list[Hit]:
        return self._find(data if size == len(data) else memoryview(data)[:size])


class PlainScanner:
    """One search of the standard library for each anchor."""

    def __init__(self, anchors: tuple[bytes, ...]) -> None:
        self._anchors = anchors

    def scan(self, data: bytes | bytearray, size: int) -> list[Hit]:
        block = bytes(data[:size])
        found: list[Hit] = []
        for which, word in enumerate(self._anchors):
            at = block.find(word)
            while at >= 0:
                found.append((which, at, at + len(word)))
                at = block.find(word, at + len(word))
        return sorted(found, key=itemgetter(1))


@functools.cache
def make_scanner() -> Scanner:
    """The fastest scanner that this machine has."""
    try:
        return PackedScanner(ANCHORS)
    except ImportError:
        return PlainScanner(ANCHORS)


def line_counter(size: int) -> Callable[[bytes | bytearray, int, int], int]:
    """How line ends in `data[start:stop]` are counted, for an input of about `size` bytes (0: not known).

    Python counts single bytes one by one; numpy, where it is there, in vectors, once its import pays.
    """
    if 0 < size < NUMPY_PAYS:
        return _count
    try:
        import numpy as np
    except ImportError:
        return _count
    newline = np.uint8(10)

    def count(data: bytes | bytearray, start: int, stop: int) -> int:
        if stop - start < 4096:
            return data.count(b"\n", start, stop)
        return int(np.count_nonzero(np.frombuffer(data, np.uint8, stop - start, start) == newline))

    return count


def _count(data: bytes | bytearray, start: int, stop: int) -> int:
    return data.count(b"\n", start, stop)
