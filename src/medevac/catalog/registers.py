"""Register words looked up in the catalog: Xid 144 to 150 by unit and status, Xid 74 by its bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from medevac.catalog.schema import LinkRow, LinkUnit, RegisterBits

V1_BITS = 0x3FF
V2_BITS = 0x7F
REASON_SHIFT = 20
REASON_BITS = 0x3F


def word(text: object) -> int | None:
    """A hex word as a number, None where it is none."""
    try:
        return int(str(text), 16)
    except ValueError:
        return None


def link_row(units: Iterable[LinkUnit], xid: int, name: str, info: int | None, status: int | None) -> LinkRow | None:
    """What unit `name`, intrInfo and errorStatus of an NVLink 5 line mean.

    None where no row fits, or where two fit that ask for different things. The unit's name in the line counts first;
    without a known one, the unit field of intrInfo does, in the place of either driver generation.
    """
    if status is None:
        return None
    mine = [unit for unit in units if unit.xid == xid]
    chosen = [unit for unit in mine if set(name.split("/")) & set(unit.names)]
    if not chosen and info is not None:
        chosen = [unit for unit in mine if unit.v1 == info & V1_BITS or unit.v2 == info & V2_BITS]
    reason = None if info is None else info >> REASON_SHIFT & REASON_BITS
    found = [
        _promoted(unit, row, info)
        for unit in chosen
        for row in unit.rows
        if status in row.status and reason in {None, row.reason}
    ]
    return found[0] if len({row.bucket_now for row in found}) == 1 else None


def _promoted(unit: LinkUnit, row: LinkRow, info: int | None) -> LinkRow:
    """The row, or the fatal form of it where intrInfo says that it was promoted."""
    if not row.promoted or info is None:
        return row
    bit = row.promoted["v1" if info & V1_BITS == unit.v1 else "v2"]
    return msgspec.structs.replace(row, severity="Fatal", bucket_now="RESET_GPU") if info >> bit & 1 else row


def register_bits(table: Iterable[RegisterBits], words: Sequence[str]) -> list[RegisterBits]:
    """The rows of xid74.toml whose bits are set in the register words of a line (the first is word 1)."""
    values = [word(text) or 0 for text in words]
    return [
        row for row in table if row.word <= len(values) and any(values[row.word - 1] >> bit & 1 for bit in row.bits)
    ]
