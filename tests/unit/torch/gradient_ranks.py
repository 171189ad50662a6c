"""Real ranks on gloo with DDP: what looks at gradients on their way, and what each says, as a line of JSON.

gradient_ranks.py STORY ...
"""

from __future__ import annotations

import json
import logging
import math
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from medevac.torch import Guard
from medevac.torch.aggregate import METHODS, Aggregate, Median, MultiKrum
from medevac.torch.gradient_crc import GradientCrc
from medevac.torch.links import Link
from medevac.torch.robust import RobustHook
from medevac.torch.sketch import SketchWatch
from medevac.torch.stop import Stop

WRONG = 2


class Flip(Link):
    """One bit of a bucket flips on one rank, when it is told to."""

    watches_after = True

    def __init__(self, where: str) -> None:
        self.where, self.left = where, 0

    def before(self, gradients: Tensor, index: int) -> None:
        self._flip("ready", gradients, index)

    def after(self, gradients: Tensor, index: int) -> None:
        self._flip("reduced", gradients, index)

    def _flip(self, where: str, gradients: Tensor, index: int) -> None:
        if self.left and where == self.where and index == 1 and dist.get_rank() == WRONG:
            self.left -= 1
            gradients.view(torch.int32)[3] ^= 1 << 4


def network(width: int = 40, group: dist.ProcessGroup | None = None) -> DistributedDataParallel:
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 5))
    layers = layers.to(memory_format=torch.channels_last)
    return DistributedDataParallel(layers, bucket_cap_mb=0.001, process_group=group)


def trained(guard: Guard, total: int, *, clip: bool = False, before: Any = None) -> list[int]:
    """The steps that were begun. `before(step)` is called between backward pass and guard."""
    begun = []
    for step in guard.steps(0, total):
        begun.append(step)
        guard.optimizer.zero_grad()
        guard.model(torch.randn(4, 2, 6, 6)).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(guard.model.parameters(), 0.01) if clip else None
        if before:
            before(step)
        guard.backward_done(grad_norm=norm)
        guard.optimizer.step()
        guard.end_step()
    return begun


class Told(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def guarded(model: nn.Module, **more: Any) -> tuple[Guard, Told]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    told = Told()
    log = logging.getLogger("medevac.torch")
    log.handlers, log.propagate = [told], False
    return Guard(model, optimizer, seed=1, **more), told


def parameters(model: nn.Module) -> list[float]:
    return [float(one.detach().double().sum()) for one in model.parameters()]


def crc(where: str, *, times: int = 1, clip: bool = False) -> Any:
    """Ten steps with a look at each; in step 4 a bit flips so many times. Then the same without."""
    crc, flip = GradientCrc(every=1), Flip(where)
    model = network()
    guard, told = guarded(model, checks=(crc,), links=(flip,))
    guard._chain.links = (guard._chain.links[0], crc, flip)
    guard._chain._after = (crc, flip)

    def spoil(step: int) -> None:
        if step == 4 and where == "optimizer" and flip.left and dist.get_rank() == WRONG:
            flip.left -= 1
            grad = next(model.parameters()).grad
            assert grad is not None
            grad.untyped_storage()[1] ^= 16

    def begin(step: int) -> None:
        flip.left = times if step == 3 and flip.left == 0 else flip.left
        spoil(step)

    try:
        begun, code = trained(guard, 10, clip=clip, before=begin), 0
    except Stop as stop:
        begun, code = [], int(str(stop.code))
    same = network()
    trained(guarded(same, checks=(GradientCrc(every=3),))[0], 10, clip=clip)
    return {"begun": begun, "code": code, "told": told.lines, "equal": parameters(model) == parameters(same)}


def crc_ready() -> Any:
    return crc("ready")


def crc_optimizer() -> Any:
    return crc("optimizer")


def crc_clipped() -> Any:
    return crc("optimizer", clip=True)


def crc_lasting() -> Any:
    return crc("ready", times=2)


def crc_result() -> Any:
    """A reduction that gives one rank something else than the others."""

    def hook(bucket: GradBucket) -> torch.futures.Future[Tensor]:
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        assert work is not None
        work.wait()
        if dist.get_rank() == 0 and wrong[0] and bucket.index() == 0:
            wrong[0] = 0
            bucket.buffer()[0] += 1e-3
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    wrong = [0]
    guard, told = guarded(network(), checks=(GradientCrc(every=1),), hook=hook)

    def begin(step: int) -> None:
        wrong[0] = int(step == 3 and not told.lines)

    begun = trained(guard, 8, before=begin)
    lines: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(lines, told.lines)
    return {"begun": begun, "told": [line for each in lines for line in each]}


def sketches() -> Any:
    """A rank whose gradients are a thousand times too large for one step, after 60 clean ones."""

    class Scale(Link):
        factor = 1.0

        def before(self, gradients: Tensor, index: int) -> None:
            if dist.get_rank() == WRONG:
                gradients.mul_(self.factor)

    scale, watch = Scale(), SketchWatch(every=1, want="again")
    guard, told = guarded(network(), checks=(watch,), links=(scale,))
    guard._chain.links = (guard._chain.links[0], scale, watch)

    def begin(step: int) -> None:
        scale.factor = 1000.0 if step == 60 and scale.factor == 1.0 and not told.lines else 1.0

    begun = trained(guard, 70, before=begin)
    return {"begun": begun[58:66], "told": told.lines}


def sketches_lasting() -> Any:
    """A rank whose gradients are a million times too large each time, from step 5 on."""

    class Scale(Link):
        def before(self, gradients: Tensor, index: int) -> None:
            if dist.get_rank() == WRONG and guard._step >= 5:
                gradients.mul_(2.0**24)

    watch = SketchWatch(every=4, want="again")
    guard, told = guarded(network(), checks=(watch,), links=(Scale(),))
    guard._chain.links = (guard._chain.links[0], guard._chain.links[1], watch)
    try:
        return {"begun": trained(guard, 20), "code": 0}
    except Stop as stop:
        return {"step": guard._step, "code": int(str(stop.code)), "told": told.lines}


def sub_groups() -> Any:
    """Two models, each on ranks of its own: what is found in one group is acted upon by both."""
    first, other = dist.new_group([0, 1, 2]), dist.new_group([3, 4])
    here = dist.get_rank() < 3
    flip = Flip("ready")
    checks = (SketchWatch(every=1), GradientCrc(every=1))
    group = first if here else other
    assert isinstance(group, dist.ProcessGroup)
    model = network(40 if here else 90, group)
    guard, told = guarded(model, checks=checks, links=(flip,))
    guard._chain.links = (guard._chain.links[0], *checks, flip)
    guard._chain._after = (checks[1],)

    def begin(step: int) -> None:
        flip.left = int(step == 3 and not told.lines and not done)
        done.extend([1] * (step == 3))

    done: list[int] = []
    return {"begun": trained(guard, 8, before=begin), "told": told.lines}


def robust() -> Any:
    """Each method on buckets of all ranks: the same bits everywhere, and what it gives on stacked rows."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    own = torch.randn(1003) if rank != WRONG else torch.full((1003,), torch.nan)
    rows = [torch.empty(1003) for _ in range(world)]
    dist.all_gather(rows, own)
    found = {}
    for name, kind in METHODS.items():
        f = 1 if kind(1).needs() <= world else 0
        hook = RobustHook(kind(f))
        got = hook.reduce(own)
        alike: list[Any] = [None] * world
        dist.all_gather_object(alike, got.tolist())
        expected = kind(f)(torch.stack(rows)) if f else got
        close = torch.allclose(got, expected, rtol=1e-5, atol=1e-6)
        found[name] = [f, bool(all(one == alike[0] for one in alike)), close, hook.left_out]
    return found


def robust_training() -> Any:
    """A rank that sends the opposite, ten times as large: with the mean the loss grows, with multi-Krum it falls."""

    class Opposite(Link):
        def before(self, gradients: Tensor, index: int) -> None:
            if dist.get_rank() == WRONG:
                gradients.mul_(-10)

    losses: dict[str, list[float]] = {}
    for method in (Aggregate(), MultiKrum(1)):
        model = network()
        guard, _ = guarded(model, hook=RobustHook(method), links=(Opposite(),))
        guard.optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses[method.name] = []
        for step in guard.steps(0, 12):
            torch.manual_seed(step)
            guard.optimizer.zero_grad()
            loss = (model(torch.randn(8, 2, 6, 6)) - 1).square().mean()
            loss.backward()
            guard.backward_done()
            guard.optimizer.step()
            guard.end_step(loss=loss)
            losses[method.name].append(loss.item())
    return {name: [each[0], each[-1]] for name, each in losses.items()}


def nan_withstood() -> Any:
    """One rank's gradients are never finite, and the Guard lets that be."""

    class Spoilt(Link):
        def before(self, gradients: Tensor, index: int) -> None:
            if dist.get_rank() == WRONG:
                gradients.fill_(torch.nan)

    hook = RobustHook(Median(1))
    guard, told = guarded(network(), hook=hook, links=(Spoilt(),), on_bad="replay", replay=lambda found: None)
    guard._chain.links = guard._chain.links[::-1]
    begun = trained(guard, 6)
    return {"begun": begun, "told": told.lines, "finite": all(map(math.isfinite, parameters(guard.model)))}


STORIES = (
    crc_ready,
    crc_optimizer,
    crc_clipped,
    crc_lasting,
    crc_result,
    sketches,
    sketches_lasting,
    sub_groups,
    robust,
    robust_training,
    nan_withstood,
)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    stories = {one.__name__: one for one in STORIES}
    said = json.dumps({name: stories[name]() for name in sys.argv[1:] or stories})
    sys.stdout.write(said + "\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
