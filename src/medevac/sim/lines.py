"""Kernel messages as the NVIDIA driver words them, and the prefix that a node's log gives them."""

from __future__ import annotations

from datetime import UTC, datetime


def row_remapped(pci: str, row: int) -> str:
    """Xid 63: a row of the GPU's memory was retired; the spare row takes over with the next reset."""
    return f"{_xid(pci, 63)}Row Remapper: New row (0x{row:016x}) marked for remapping, reset gpu to activate."


def double_bit_error(pci: str, address: int, partition: int, subpartition: int) -> str:
    """Xid 48: an error that the memory's code could see and not correct."""
    return (
        f"{_xid(pci, 48)}An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer "
        f"at physAddr 0x{address:x} partition {partition}, subpartition {subpartition}."
    )


def stamped(message: str, node: str, at: float) -> str:
    """A line as `journalctl -o short-iso-precise` prints it; `at` in unix seconds."""
    return f"{datetime.fromtimestamp(at, UTC).isoformat(timespec='microseconds')} {node} kernel: {message}\n"


def _xid(pci: str, code: int) -> str:
    # The driver names domain, bus and device; the function (".0") is not in its lines.
    return f"NVRM: Xid (PCI:{pci.split('.', maxsplit=1)[0]}): {code}, pid='<unknown>', name=<unknown>, "
