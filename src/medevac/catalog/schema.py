"""Shapes of the catalog's tables. A table that does not fit raises `CatalogError`, which names file and key."""

from __future__ import annotations

from typing import Literal, TypeAlias, TypeVar

import msgspec

Severity: TypeAlias = Literal["info", "warning", "critical", "unknown"]
Audience: TypeAlias = Literal["tenant", "operator"]
Blame: TypeAlias = Literal["gpu", "link", "node", "job", "none", "unknown"]

NOT_PUBLISHED = "not published"
"""Stands where a vendor publishes no action: said in words, never guessed."""
UNKNOWN_CODE = "not in the catalog: its meaning is not published, so unknown"
"""Said of an Xid without an entry, by `medevac xid` and `medevac decode` alike."""


class CatalogError(ValueError):
    """A catalog file is wrong: the message names the file and the key, and says what to write there."""


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all rows have in common: frozen, and a key that we do not know is an error."""


class Bucket(_Row, frozen=True, kw_only=True):
    """What a resolution bucket asks for. `rank`: how much it disturbs, 0 nothing to 7 vendor; ours, not NVIDIA's."""

    name: str
    meaning: str
    drain: Literal["yes", "no", "later", "manual", "conditional"]
    source: str
    rank: int | None = None


class Source(_Row, frozen=True, kw_only=True):
    """Where a fact was read."""

    id: str
    title: str
    url: str = ""


class XidEntry(_Row, frozen=True, kw_only=True):
    """One Xid code. `kills_job`: does the job on the GPU die of it; None where that depends."""

    code: int
    name: str
    meaning: str
    category: str
    bucket_now: str
    bucket_after: str
    severity: Severity
    audience: Audience
    sources: tuple[str, ...]
    gpus: tuple[str, ...] | None = None
    """Models that can print it; None where no table says."""
    kills_job: bool | None = None
    cause: int = 5
    """Order of causes in an incident: the lowest is the root (0 lost GPU .. 9 never a cause)."""
    causes: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    recovery_action: str = ""
    """First driver branch that ties it to an Xid 154."""
    seen: str = ""
    others: dict[str, str] = {}
    """How other systems act on it."""
    disagreements: tuple[str, ...] = ()
    checked: str = ""


class SxidEntry(_Row, frozen=True, kw_only=True):
    """One NVSwitch code. `class_` is the Fabric Manager guide's, `driver` the open driver's word per switch."""

    code: int
    name: str
    meaning: str
    category: str
    class_: str = msgspec.field(name="class")
    bucket_now: str
    severity: Severity
    sources: tuple[str, ...]
    bucket_after: str = NOT_PUBLISHED
    audience: Audience = "operator"
    cause: int = 4
    steps: str = ""
    driver: dict[str, str] = {}
    others: dict[str, str] = {}
    disagreements: tuple[str, ...] = ()
    checked: str = ""


class LinkRow(_Row, frozen=True, kw_only=True):
    """What one errorStatus of an NVLink 5 unit means; `here` and `peer` are its effects on this and the far GPU."""

    status: tuple[int, ...]
    severity: Literal["Non-fatal", "Fatal", "Link Fatal"]
    bucket_now: str
    bucket_after: str
    reason: int = 0
    where: str = ""
    here: str = ""
    peer: str = ""
    promoted: dict[Literal["v1", "v2"], int] = {}


class LinkUnit(_Row, frozen=True, kw_only=True):
    """One NVLink 5 unit: the low ten bits of intrInfo before driver R575 (`v1`), the low seven since (`v2`)."""

    xid: int
    names: tuple[str, ...]
    v1: int
    v2: int
    rows: tuple[LinkRow, ...]


class RegisterBits(_Row, frozen=True, kw_only=True):
    """Bits of one register word of Xid 74 (words count from 1)."""

    word: int
    bits: tuple[int, ...]
    meaning: str
    bucket: str


class KindRule(_Row, frozen=True, kw_only=True):
    """How a line of one kind is read when all of `when` holds; the first rule of a kind that fits is taken.

    `when` names details and what they must be: a value or one of a list, `true` for any value; a text that ends in
    `*` is a beginning. A rule with `codes` refines the table of Xids or SXids; one with `as_xid` takes over what that
    table says of this code.
    """

    id: str
    kind: str
    meaning: str
    severity: Severity
    action: str
    after: str = ""
    codes: tuple[int, ...] = ()
    when: dict[str, str | int | bool | tuple[str, ...]] = {}
    as_xid: int | None = None
    blame: Blame = "none"
    kills_job: bool | None = None
    audience: Audience = "operator"
    cause: int = 9
    """Order of causes in an incident: the lowest is the root (0 lost GPU .. 9 never a cause)."""


class XidFile(_Row, frozen=True, kw_only=True):
    """xid.toml."""

    checked: str
    xid: tuple[XidEntry, ...]


class SxidFile(_Row, frozen=True, kw_only=True):
    """sxid.toml."""

    checked: str
    sxid: tuple[SxidEntry, ...]


class LinkFile(_Row, frozen=True, kw_only=True):
    """nvlink5.toml."""

    checked: str
    sources: tuple[str, ...]
    unit: tuple[LinkUnit, ...]


class RegisterFile(_Row, frozen=True, kw_only=True):
    """xid74.toml."""

    checked: str
    sources: tuple[str, ...]
    bit: tuple[RegisterBits, ...]


class BucketFile(_Row, frozen=True, kw_only=True):
    """buckets.toml."""

    bucket: tuple[Bucket, ...]
    source: tuple[Source, ...]


class KindFile(_Row, frozen=True, kw_only=True):
    """kinds.toml."""

    kind: tuple[KindRule, ...]


FileT = TypeVar("FileT", bound=msgspec.Struct)


def parse(name: str, data: bytes, shape: type[FileT]) -> FileT:
    """Read one catalog file of the given shape; `CatalogError` names file and key."""
    try:
        return msgspec.toml.decode(data, type=shape)
    except msgspec.ValidationError as error:
        raise CatalogError(f"{name}: {error}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise CatalogError(f"{name}: not TOML: {error}") from error
