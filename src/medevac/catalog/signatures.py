"""The signatures of job logs: log_signatures.toml, and a site's own file that extends or overrides it by id.

Raises `CatalogError` where a file is wrong; the message names the file and the signature.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, cached_property
from importlib.resources import files
from typing import Annotated

import msgspec

from medevac.catalog.schema import CatalogError, parse
from medevac.core.diagnose_case import Cause, Named, Role, Symptom

FILE = "log_signatures.toml"


Text = Annotated[str, msgspec.Meta(min_length=3)]


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """One shape of a line; the head of log_signatures.toml says what each field means."""

    id: str
    contains: Text | tuple[Text, ...]
    role: Role
    symptom: Symptom
    names: Named
    source: str
    example: str
    pattern: str = ""
    cause: Cause | None = msgspec.field(name="class", default=None)
    weight: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The texts of which the line must hold one."""
        return (self.contains,) if isinstance(self.contains, str) else self.contains

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The compiled pattern; without one, the text itself."""
        return re.compile(self.pattern or "|".join(map(re.escape, self.texts)))


class SignatureFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of signatures, whole."""

    signature: tuple[Signature, ...]


def read_signatures(name: str, data: bytes) -> tuple[Signature, ...]:
    """The signatures of one file. `name` stands in errors."""
    table = parse(name, data, SignatureFile)
    known: set[str] = set()
    for one in table.signature:
        if one.id in known:
            raise CatalogError(f"{name}: signature {one.id} stands there twice: rename one of them")
        known.add(one.id)
        _check(name, one)
    return table.signature


def merge(ours: Iterable[Signature], site: Iterable[Signature]) -> tuple[Signature, ...]:
    """Ours and the site's; of two with one id the site's counts."""
    return tuple(({one.id: one for one in ours} | {one.id: one for one in site}).values())


@cache
def signatures() -> tuple[Signature, ...]:
    """The signatures of this package, read once."""
    return read_signatures(FILE, files("medevac.catalog").joinpath(FILE).read_bytes())


def _check(name: str, one: Signature) -> None:
    """A signature that cannot match its own example, or that claims what its role does not, is an error."""
    try:
        found = one.regex.search(one.example)
    except re.error as error:
        raise CatalogError(f"{name}: signature {one.id}: pattern: {error}") from error
    if not found or not any(text in one.example for text in one.texts):
        raise CatalogError(f"{name}: signature {one.id} does not match its own example: correct one of the two")
    if (one.role in ("root", "confirmation")) != (one.cause is not None and one.weight > 0):
        raise CatalogError(f"{name}: signature {one.id}: a root or confirmation has class and weight, others neither")
