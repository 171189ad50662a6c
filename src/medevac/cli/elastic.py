"""torchrun under `medevac run`: one agent for each node, between as many as `--nnodes=MIN:MAX` says."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from medevac.adapters.schedulers.spec import JobSpec
from medevac.cli.output import CommandError
from medevac.cli.torchrun import OURS
from medevac.client.agents import asked


def by_agents(spec: JobSpec) -> JobSpec:
    """The job with one rank for each agent of torchrun, each with all GPUs of its node that are left; any other job as
    it is. What the agents then start is for `medevac.torch.run` to say.
    """
    words = _words(spec.command)
    if words is None:
        return spec
    if spec.ranks:
        raise CommandError("--nproc: torchrun starts the ranks; leave --nproc out, or torchrun")
    try:
        want = asked(words, os.environ)
    except ValueError as problem:
        raise CommandError(f"torchrun {problem}") from problem
    policy = msgspec.structs.replace(spec.policy, min_ranks=spec.policy.min_ranks or want.least)
    return msgspec.structs.replace(spec, ranks=want.most, gpus_per_rank=0, policy=policy)


def _words(command: Sequence[str]) -> Sequence[str] | None:
    return command[3:] if tuple(command[1:3]) == ("-m", OURS) else None
