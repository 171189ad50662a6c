"""What a torchrun command line asks for, and what it can have on the GPUs that are left.

`medevac run -- torchrun --nnodes=1:2 --nproc-per-node=4 train.py` starts up to two agents, one for each node; an agent
says by `fitted` how many nodes, and how many ranks here, there are this time. Needs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

_ALONE = {"-h", "--help", "--standalone", "-m", "--module", "--no-python", "--run-path", "--virtual-local-rank"}
"""torchrun's options without a value (torch 2.13, torch/distributed/run.py); the others take one."""
_BY_COUNT = {"gpu", "auto"}
"""Words for one rank a GPU."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Agents at least and at most, ranks of each (a number or one of torchrun's words), and where the script begins."""

    least: int = 1
    most: int = 1
    nproc: str = "1"
    script: int
    standalone: bool = False


def asked(words: Sequence[str], environ: Mapping[str, str] | None = None) -> Asked:
    """Read what follows `torchrun`. Raises ValueError, in one line, for sizes that torchrun would refuse."""
    options, script = _options(words)
    environ = environ or {}
    nodes = options.get("--nnodes", environ.get("PET_NNODES", "1"))
    nproc = options.get("--nproc-per-node", environ.get("PET_NPROC_PER_NODE", "1"))
    found = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", nodes)
    if not found:
        raise ValueError(f"--nnodes {nodes}: give a number of agents, or MIN:MAX of them")
    least, most = int(found[1]), int(found[2] or found[1])
    if not 1 <= least <= most:
        raise ValueError(f"--nnodes {nodes}: MIN must be at least 1 and at most MAX")
    if re.fullmatch(r"[-+]?\d+", nproc) and int(nproc) < 1:
        raise ValueError(f"--nproc-per-node {nproc}: give at least 1")
    standalone = "--standalone" in options
    if standalone and most > 1:
        raise ValueError(f"--standalone and --nnodes {nodes}: one node, or several; leave one of them out")
    return Asked(least=least, most=most, nproc=nproc, script=script, standalone=standalone)


def fitted(words: Sequence[str], environ: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The same command line for what this attempt has, and what was changed, for a person.

    By the environment that Medevac's own scheduler gives: so many MEDEVAC_AGENTS, RANK counts them, MEDEVAC_GPUS are
    this node's GPUs that are left. Where there is none (Slurm, Kubernetes, by hand) nothing is changed. Raises
    ValueError as `asked` does.
    """
    if "MEDEVAC_AGENTS" not in environ:
        return list(words), []
    want = asked(words, environ)
    node, gpus = environ.get("MEDEVAC_NODE", "this node"), _gpus(environ)
    agents, number = int(environ["MEDEVAC_AGENTS"]), int(environ.get("RANK") or 0)
    own, said = [], []
    if agents != want.most and not want.standalone:
        said.append(f"--nnodes {want.least}:{want.most} -> {agents}: so many nodes are left for it")
    if want.most > 1:
        own += [f"--nnodes={agents}", f"--node-rank={number}", "--rdzv-backend=static", "--rdzv-endpoint="]
        own += [f"--master-addr={environ['MASTER_ADDR']}", f"--master-port={environ['MASTER_PORT']}"]
    ranks = gpus if want.nproc in _BY_COUNT else min(int(want.nproc), gpus) if want.nproc.isdecimal() else 0
    if gpus and ranks and str(ranks) != want.nproc:
        own.append(f"--nproc-per-node={ranks}")
        said.append(f"--nproc-per-node {want.nproc} -> {ranks}: {gpus} GPU{'s' * (gpus > 1)} of {node} left")
    return [*words[: want.script], *own, *words[want.script :]], said


def _gpus(environ: Mapping[str, str]) -> int:
    return len([uuid for uuid in (environ.get("MEDEVAC_GPUS") or environ.get("MEDEVAC_GPU", "")).split(",") if uuid])


def _options(words: Sequence[str]) -> tuple[dict[str, str], int]:
    """Options before the script, by their long names; the place of the script, or of its module's name."""
    found, at = {}, 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, given, value = words[at].partition("=")
        name = name.replace("_", "-")
        if not given and name not in _ALONE:
            at += 1
            value = words[at] if at < len(words) else ""
        found[name] = value
        at += 1
    return found, at
