"""Our mark on a node, in its Comment: what of it is restricted or taken off its counts, and how it was before.

Slurm keeps a node's Comment when slurmctld restarts or reads slurm.conf again, and forgets what else was changed of the
node (tried on 22.05): the mark says what is to be put back.
"""

from __future__ import annotations

import json
from typing import Literal

import msgspec

from medevac.adapters.schedulers.slurm.marks import KEY, json_object
from medevac.adapters.schedulers.slurm.values import Value


class NodeMark(Value, frozen=True, kw_only=True):
    """`low`: GPU UUID or node name -> incident, restricted; `weight`: the node's own; `left`: partitions that it was
    taken out of. `fewer`: GPU UUID -> mode, taken off the count; `gres`: the node's own. `was`: text that stood there.
    """

    low: dict[str, str] = {}
    weight: int = 1
    left: tuple[str, ...] = ()
    fewer: dict[str, Literal["soft", "hard"]] = {}
    gres: str = ""
    was: str = ""


def node_mark(comment: str) -> NodeMark:
    """The mark that stands there; an empty one for none, or one that nobody can read."""
    try:
        return msgspec.convert(json_object(comment).get(KEY, {}), NodeMark)
    except msgspec.ValidationError:
        return NodeMark()


def with_node_mark(comment: str, mark: NodeMark) -> str:
    """The comment with the mark, and without one that says nothing; what others wrote stays."""
    found = json_object(comment)
    was = node_mark(comment).was if KEY in found else ("" if found else comment)
    others = {key: value for key, value in found.items() if key != KEY}
    if mark.low or mark.fewer:
        others[KEY] = msgspec.to_builtins(msgspec.structs.replace(mark, was=was))
    return json.dumps(others, separators=(",", ":")) if others else was
