"""The training loop's companion: see `medevac.torch`."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Protocol, get_args

import msgspec
import torch
import torch.distributed as dist

from medevac.client import Client
from medevac.core.events import Phase
from medevac.torch.bridge import BAD, CHECKPOINT, DUE, SPIKE, STOP, Bridge, Told
from medevac.torch.checkpoints import CheckpointManager
from medevac.torch.checks import Check, Finding, Want
from medevac.torch.ecc import CHILD, EccWatch
from medevac.torch.history import History, Resumed
from medevac.torch.links import Chain, Link, Reduce
from medevac.torch.place import here
from medevac.torch.readings import Readings, begin
from medevac.torch.spikes import SpikeWatch
from medevac.torch.state import Stateful
from medevac.torch.stop import DRAINED, HARDWARE, ROLL_BACK, TERMINATED, Stop

log = logging.getLogger("medevac.torch")

OnBad = Literal["roll-back", "skip", "replay", "stop"]
Replay = Callable[[Finding], "Finding | None"]
DRAIN_SECONDS = 600.0
SCALER_FLOOR = 1.0
"""A scale that has to go below this has found something else than an overflow of its own making."""


class Scaler(Protocol):
    """What is asked of a GradScaler."""

    def is_enabled(self) -> bool: ...

    def get_scale(self) -> float: ...


class Guard:
    """Watches one training; `resume`, `steps`, `backward_done`, `end_step` in that order.

    `on_bad`: what follows a gradient that is not finite: go "roll-back" to the newest clean checkpoint, "skip" the
    step, "replay" it or "stop" with exit code 85. `on_spike`: "replay" a step whose loss or gradient norm is far from
    the usual, where nothing else explains it. `hook`: your own communication hook, `hook(bucket) -> Future`.
    `links`: more that looks at gradients on their way; `checks`: more that looks at the state, see `checks.Check`.
    `replay`: called on all ranks with what was found where a replay is wanted; says what it is after that, None if
    nothing. `extra`: what else must come back with the state (a scheduler, a loader).
    `seed`: have torch's generators begin each step from this, the step and the rank, so that a step that is done
    again draws the same. `checkpoint_dir`: by default what Medevac says; without any nothing is saved. Other keywords
    are `CheckpointManager`'s.
    """

    def __init__(  # noqa: PLR0913 - each has a default
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        scaler: Scaler | None = None,
        extra: Mapping[str, Stateful] | None = None,
        on_bad: OnBad = "roll-back",
        on_spike: Literal["warn", "replay"] = "warn",
        max_roll_backs: int = 3,
        hook: Reduce | None = None,
        links: tuple[Link, ...] = (),
        checks: tuple[Check, ...] = (),
        replay: Replay | None = None,
        ecc_every: int = 100,
        ecc_command: tuple[str, ...] = CHILD,
        seed: int | None = None,
        save_last: bool = True,
        client: Client | None = None,
        **saving: Any,
    ) -> None:
        if on_bad not in get_args(OnBad):
            raise ValueError(f"on_bad is {on_bad!r}: give one of {', '.join(map(repr, get_args(OnBad)))}")
        self.client = client or Client.from_env()
        self.place = here()
        self.model, self.optimizer, self._scaler = model, optimizer, scaler
        self._on_bad, self._checks, self._replay, self._seed, self._save_last = on_bad, checks, replay, seed, save_last
        folder = checkpoint_dir or os.environ.get("MEDEVAC_CHECKPOINT_DIR")
        self.checkpoints = self._manager(folder, extra or {}, saving) if folder else None
        self.history = History(self.checkpoints, self.place, self.client, max_roll_backs)
        self._bridge = Bridge(self.place.rank, self.place.world, _device(model))
        self._bridge.follows = hook is None
        self._chain = Chain((self._bridge, *links, *(check for check in checks if isinstance(check, Link))))
        self._ecc, self._ecc_every = EccWatch(self.place.gpu if ecc_every else "", ecc_command), max(ecc_every, 1)
        self._readings, self._spikes = Readings(), SpikeWatch(replay=on_spike == "replay")
        self._step, self._next, self._best = 0, 0, -1
        self._kept: int | None = None
        """The step that was loaded or saved last, on all ranks alike, whether or not the save went well."""
        self._began, self._told = 0.0, Told(words=())
        self._restore: Finding | None = None
        self._caught = self._again = False
        if scaler is not None:
            optimizer.register_step_pre_hook(self._before_the_optimizer)
        begin(self.client, self.place)
        if self.place.world > 1:
            self._chain.attach(model, hook)
        for check in checks:
            check.attach(self)

    def _manager(
        self, folder: str | os.PathLike[str], extra: Mapping[str, Stateful], saving: Mapping[str, Any]
    ) -> CheckpointManager:
        scaler = self._scaler
        kept = {**extra, **({"scaler": scaler} if isinstance(scaler, torch.amp.GradScaler) else {})}
        attempt = self.client.attempt or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        saving = {**saving, "extra": kept, "job": self.client.job, "attempt": attempt, "place": self.place}
        return CheckpointManager(folder, self.model, self.optimizer, **saving)

    # --- beginning --------------------------------------------------------------------------------------------------

    def resume(self) -> Resumed:
        """Load the checkpoint that Medevac names; without Medevac the newest clean one. Its files are verified first.

        On all ranks together. Raises `Stop` (86) when what Medevac named is not what was sealed.
        """
        self._say("load", 0)
        resumed = self.history.resume()
        self._step = self._next = resumed.step
        self._kept = resumed.step if resumed.path else None
        self._restored()
        self.client.resumed(None if resumed.path is None else resumed.step)
        return resumed

    def _restored(self) -> None:
        for check in self._checks:
            check.restored(self._next)

    # --- the loop ---------------------------------------------------------------------------------------------------

    def steps(self, start: int, total: int) -> Iterator[int]:
        """The steps to do, from `start` (0-based) up to `total`; after a roll-back it goes on from there."""
        self._step = self._next = start
        while self._next < total:
            self._step = self._next
            self._next = self._step + 1
            self._begin()
            yield self._step
            if self._next == total and not self._caught:
                self._before_save(total)
            if self._restore:
                self._roll_back()
            elif self._again:
                self._next = self._step
        self._finish(total)

    def _roll_back(self) -> None:
        assert self._restore
        finding, self._restore = self._restore, None
        self._say("load", self._step)
        try:
            self._next = self.history.roll_back(self._step, finding.why)
        except Stop:
            self.client.heartbeat(self._step + 1, loss=math.nan)
            raise
        self._kept = self._next
        self._handled(finding, f"rolled back to step {self._next}")
        for parameter in self.model.parameters():
            parameter.grad = None
        self._restored()

    def _begin(self) -> None:
        if self._seed is not None:
            torch.manual_seed(((self._seed * 1_000_003 + self._step) * 65_537 + self.place.rank) % (1 << 63))
        self._caught = self._again = False
        if self._step % self._ecc_every == 0:
            self._ecc.ask()
        if self._ecc.look():
            self._stop_for_ecc()
        match self.client.request():
            case "checkpoint":
                self._bridge.say(CHECKPOINT)
            case "stop":
                self._bridge.say(STOP)
            case "ecc-changed":
                self._ecc.ask()
        if self.place.rank == 0 and self.checkpoints and self.checkpoints.due(self._next):
            self._bridge.say(DUE)
        self._began = time.perf_counter()

    def _stop_for_ecc(self) -> None:
        """Before anything of this step can reach the others. What was saved since the last good reading is in doubt."""
        why = f"{self.place}: {self._ecc.rose} uncorrected memory errors since the start"
        if self.checkpoints:
            since = self._ecc.sound_at
            sealed = {known.step for known in self.history.known() if known.seal.at >= since}
            doubtful = sealed.union(self.checkpoints.captured_since(since))
            self.history.doubt(sorted(doubtful), "suspect", why, anyone=True)
        log.error("%s; leaving, this GPU should be isolated", why)
        raise Stop(HARDWARE, why)

    def backward_done(self, *, grad_norm: float | torch.Tensor | None = None, want_norm: bool = True) -> bool:
        """Between the backward pass and the optimizer step, on all ranks. True if the step may be taken as it is.

        If not, there are no gradients left, and `optimizer.step()` changes nothing. `grad_norm`: the total norm where
        the loop has it already (`clip_grad_norm_`), else it is read here, unless `want_norm` is False.
        """
        compute_s = None if self._bridge.ready_at is None else self._bridge.ready_at - self._began
        given = grad_norm is not None
        told = self._bridge.settle(
            self.model.parameters(), want_norm=want_norm and not given, agree=self.place.world > 1
        )
        if given:
            told = msgspec.structs.replace(told, norm=float(grad_norm), agreed=False)  # type: ignore[arg-type]
        self._told = told
        self._readings.compute_s = compute_s
        self._readings.norm = told.norm if self._scaler is None or given else None
        finding = self._not_finite(told) or self._ask(lambda check: check.backward_done(self._step))
        finding = finding or self._spikes.finding(self._step, told.ranks(SPIKE))
        if finding is None or not self._act(finding):
            return True
        self._drop_gradients()
        return False

    def _of_the_scaler(self) -> bool:
        """A GradScaler looks for the largest scale that does not overflow: it skips such a step by itself."""
        scaler = self._scaler
        return scaler is not None and scaler.is_enabled() and scaler.get_scale() > SCALER_FLOOR

    def _not_finite(self, told: Told) -> Finding | None:
        bad = told.ranks(BAD)
        if (not bad and (told.norm is None or math.isfinite(told.norm))) or self._of_the_scaler():
            return None
        if not bad and self.place.world == 1:
            bad = (0,)
        who = f"rank {', '.join(map(str, bad))}" if bad else "no rank by itself (the sum overflowed, or was spoilt)"
        why = f"gradients of step {self._step} are not finite: {who}"
        # Seen after the reduction it is maybe seen by this rank only.
        return Finding(why=why, want=self._on_bad, ranks=bad, code=ROLL_BACK, alone=not bad and not told.agreed)

    def _ask(self, look: Callable[[Check], Finding | None]) -> Finding | None:
        """All checks look, since they may communicate; of what they found the gravest counts, the others are said."""
        found = sorted(filter(None, [look(check) for check in self._checks]), key=_gravity, reverse=True)
        for lesser in found[1:]:
            if self.place.rank in (lesser.ranks or (0,)):
                log.warning("%s", lesser.why)
        return found[0] if found else None

    def _act(self, found: Finding) -> bool:
        """Do what is wanted, on all ranks alike. True if the step is not to be taken, or its state is not kept."""
        finding = self._replay(found) if self._replay and found.want == "replay" else found
        if finding is None:
            return False
        mine = self.place.rank in finding.ranks
        if mine or (not finding.ranks and (finding.alone or self.place.rank == 0)):
            level = logging.WARNING if finding.want == "warn" else logging.ERROR
            log.log(level, "%s%s", finding.why, f"; {self.place}" if mine or finding.alone else "")
        if finding.want == "warn":
            return False
        if finding.since is not None and not finding.alone:
            self.history.doubt_after(finding.since, finding.state, finding.why)
        self._caught = True
        goes_back = finding.want in {"roll-back", "replay"}
        if finding.want == "stop" or finding.alone or (goes_back and not self.history.may_roll_back):
            if finding.code == ROLL_BACK and (mine or not finding.ranks):
                self.client.heartbeat(self._next, loss=math.nan)
            raise Stop(finding.code if mine else ROLL_BACK, finding.why)
        self._restore = finding if goes_back else None
        self._again = finding.want == "again"
        if not goes_back:
            self._handled(finding, "done again" if self._again else "skipped")
        return True

    def _handled(self, finding: Finding, how: str) -> None:
        """Tell what has been done here, so that nobody else does anything about it: by who is to blame, or rank 0."""
        if self.place.rank in (finding.ranks or (0,)):
            self.client.heartbeat(self._step + 1, loss=math.nan, handled=how)

    def _drop_gradients(self) -> None:
        """None, so that the optimizer does nothing. A GradScaler insists on gradients: it gets ones that it skips."""
        for parameter in self.model.parameters():
            if self._scaler is None or not self._scaler.is_enabled():
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.fill_(math.inf)

    def _before_the_optimizer(self, *_: object) -> None:
        """A GradScaler that has unscaled the gradients by then looks no more, and would let infinite ones pass."""
        if self._caught:
            for parameter in self.model.parameters():
                parameter.grad = None

    def end_step(self, *, loss: float | torch.Tensor | None = None) -> None:
        """After the optimizer step, on all ranks: the heartbeat, and the checkpoint if one is due or asked for."""
        done = self._next
        self._readings.put_loss(loss)
        if not self._caught:
            self._tell(done)
            self._warn(done)
            if finding := self._ask(lambda check: check.end_step(done)):
                self._act(self._in_time(finding))
        if self._told.ranks(STOP):
            raise Stop(TERMINATED, "asked to stop")
        asked = bool(self._told.ranks(CHECKPOINT))
        if self._restore or not (asked or (self._told.ranks(DUE) and not self._caught)):
            self._ask_again(asked)
            return
        if self._caught:
            raise Stop(DRAINED, "asked to leave; the last step was not taken, and nothing new is to be saved")
        if not self._before_save(done):
            self._ask_again(asked)
            return
        self._save(done, wait=asked)
        if asked:
            raise Stop(DRAINED, f"asked for a checkpoint and to leave: step {done}")

    def _ask_again(self, asked: bool) -> None:  # noqa: FBT001
        """Whoever asked for a checkpoint does so once: after a roll-back it is still wanted."""
        if asked:
            self._bridge.say(CHECKPOINT)

    def _before_save(self, done: int) -> bool:
        """A last look at the state. True if it may be kept."""
        finding = self._ask(lambda check: check.before_save(done))
        return finding is None or not self._act(self._in_time(finding))

    def _in_time(self, finding: Finding) -> Finding:
        """The optimizer has used the gradients by now: what would drop them is a roll-back."""
        if finding.want not in {"skip", "again"}:
            return finding
        if self.place.rank in (finding.ranks or (0,)):
            log.warning("a check wants %r, but the step is taken: rolling back instead", finding.want)
        return msgspec.structs.replace(finding, want="roll-back")

    def _tell(self, done: int) -> None:
        """A step that is done again after a roll-back is loading: no progress is expected of it."""
        readings = self._readings
        phase: Phase = "step" if done > self._best else "load"
        self._best = max(self._best, done)
        self.client.heartbeat(done, phase, loss=readings.loss, grad_norm=readings.norm, compute_s=readings.compute_s)

    def _warn(self, done: int) -> None:
        if told := self._spikes.look(self._readings.loss, self._readings.norm):
            log.warning("step %d: %s, 3 times the usual or far outside of it (%s)", done, told, self.place)
            self._bridge.say(SPIKE)

    def _save(self, step: int, *, wait: bool) -> None:
        if self.checkpoints is None:
            return
        self._say("save", step)
        self._kept = step
        self.checkpoints.save(step, ecc=self._counts())
        if wait and not self.checkpoints.wait(DRAIN_SECONDS):
            log.error("checkpoint of step %d is not on disk: %s", step, self.checkpoints.failed.get(step, "too slow"))
        self._say("step", step)  # or the next step would be given a save's time
        if wait and self.place.world > 1:
            dist.barrier()  # a launcher ends all ranks with the first that leaves

    def _counts(self) -> list[int | None]:
        """Each rank's count of uncorrected errors, for the seal. Where no GPU is watched nothing is sent."""
        if not self.place.gpu or self.place.world == 1 or not torch.cuda.is_available():
            return [self._ecc.count] if self.place.world == 1 else []
        counts: list[Any] = [None] * self.place.world
        dist.all_gather_object(counts, self._ecc.count)
        return counts

    # --- ending -----------------------------------------------------------------------------------------------------

    def _finish(self, total: int) -> None:
        if self._save_last and self.checkpoints and self._kept != total and not self._caught:
            self._save(total, wait=False)
        self.close()
        self.client.heartbeat(total, "end")

    def close(self) -> None:
        """Finish what is being saved and end the processes of this guard. `steps` does it at its end."""
        if self.checkpoints:
            self.checkpoints.close()
        self._ecc.close()

    def _say(self, phase: Phase, step: int) -> None:
        self.client.heartbeat(step, phase)


def _gravity(finding: Finding) -> int:
    return get_args(Want).index("roll-back" if finding.want == "replay" else finding.want)


def _device(model: torch.nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
