"""`medevac xid CODE` and `medevac sxid CODE`: the catalog's page of one code."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from medevac.catalog.load import load_catalog
from medevac.catalog.pages import sxid_page, xid_page
from medevac.catalog.schema import UNKNOWN_CODE
from medevac.cli.exits import Exit
from medevac.cli.output import CommandError, print_json


def xid(
    code: int,
    /,
    *,
    gpu: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> Exit:
    """Explain an Xid code: what it means, usual causes, evidence, what to do, what other systems do, sources.

    Parameters
    ----------
    code
        The number after "Xid (PCI:...):" in a kernel log.
    gpu
        Say whether this model can print it (A100, H100, H200, B200, GB200 ...).
    json
        Print the entry as one JSON object.
    """
    catalog = load_catalog()
    entry = catalog.xid(code)
    if entry is None:
        raise CommandError(
            f"Xid {code} is {UNKNOWN_CODE} (the catalog has 1 to {max(catalog.xids)}); "
            "medevac decode reads a line of it with severity unknown and no action"
        )
    if json:
        print_json(entry)
    else:
        print(xid_page(catalog, entry, gpu), end="")
    return Exit.DONE


def sxid(code: int, /, *, json: Annotated[bool, Parameter(negative="")] = False) -> Exit:
    """Explain an NVSwitch SXid code.

    Parameters
    ----------
    code
        The five digits after "SXid (PCI:...):" in a kernel log.
    json
        Print the entry as one JSON object.
    """
    catalog = load_catalog()
    entry = catalog.sxid(code)
    if entry is None:
        raise CommandError(f"SXid {code} is not in the catalog: treat it as unknown")
    if json:
        print_json(entry)
    else:
        print(sxid_page(catalog, entry), end="")
    return Exit.DONE
