"""The process that talks to NVML, so that a driver that hangs takes only this one with it.

Answers each line on stdin with one line of JSON: a list of GPUs, each with what could be read of it. A counter that the
GPU does not have is null, never 0. Where there is no NVML the list is empty.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pynvml as nvml


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU now: aggregate ECC counts over its life, rows remapped, degrees Celsius, percent of the last second or so
    in which a kernel ran, Watts.
    """

    index: int
    uuid: str
    pci: str
    sbe: int | None = None
    dbe: int | None = None
    remapped_rows: int | None = None
    temperature: float | None = None
    utilization: float | None = None
    power_w: float | None = None


def read() -> list[Reading]:
    """All GPUs of this machine, in NVML's order (by PCI address)."""
    return [_reading(index, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(nvml.nvmlDeviceGetCount())]


def _reading(index: int, gpu: Any) -> Reading:
    rows = _try(lambda: nvml.nvmlDeviceGetRemappedRows(gpu))
    return Reading(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(gpu)),
        pci=_address(_text(nvml.nvmlDeviceGetPciInfo(gpu).busId)),
        sbe=_errors(gpu, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        dbe=_errors(gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        remapped_rows=rows[0] + rows[1] if rows else None,
        temperature=_try(lambda: float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))),
        utilization=_try(lambda: float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)),
        power_w=_try(lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000),
    )


def _errors(gpu: Any, kind: int) -> int | None:
    count = _try(lambda: nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, nvml.NVML_AGGREGATE_ECC))
    return None if count is None else int(count)


def _try(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except nvml.NVMLError:
        return None


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _address(bus_id: str) -> str:
    """00000000:3B:00.0 as 0000:3b:00.0."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def main() -> None:
    """Serve until stdin ends."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        available = False
    else:
        available = True
    for _ in sys.stdin:
        try:
            found = read() if available else []
        except nvml.NVMLError as problem:
            sys.exit(f"NVML: {problem}")
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
