"""One process: what is saved is what was there, what is not whole is not loaded, and a bad step changes nothing."""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import filesystem, state_dict_loader

from medevac.client import Client
from medevac.client.link import NoLink
from medevac.core.seal import SEAL, Seal, decode_seal, encode_seal
from medevac.torch import Check, CheckpointManager, Finding, Guard, Stop, host_copy, lineage
from medevac.torch.bridge import square
from medevac.torch.checkpoints import optimal_interval
from medevac.torch.ecc import EccWatch
from medevac.torch.history import History
from medevac.torch.lineage import Keep
from medevac.torch.place import here
from medevac.torch.saver import is_finite
from medevac.torch.spikes import Spikes

pytestmark = pytest.mark.e2e
LIMIT_S = 60.0


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def train(
    guard: Guard, model: nn.Module, optimizer: torch.optim.Optimizer, start: int, total: int, **bad: int
) -> list[int]:
    """The steps that were done; `nan_at` spoils the gradient of a step: `times` times (default 1)."""
    done: list[int] = []
    for step in guard.steps(start, total):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8, generator=torch.Generator().manual_seed(step))).square().mean()
        loss.backward()
        if step == bad.get("nan_at") and done.count(step) < bad.get("times", 1):
            gradient = next(model.parameters()).grad
            assert gradient is not None
            gradient[0, 0] = math.nan
        done.append(step)
        guard.backward_done()
        optimizer.step()
        guard.end_step(loss=loss)
    return done


def run(folder: Path, total: int, **given: object) -> tuple[list[torch.Tensor], list[int]]:
    """A training from the newest clean checkpoint; its parameters and the steps done."""
    bad = {name: given.pop(name) for name in ("nan_at", "times") if name in given}
    model, optimizer = made()
    guard = Guard(model, optimizer, checkpoint_dir=folder, every_steps=5, overlap="wait", **given)  # type: ignore[arg-type]
    try:
        steps = train(guard, model, optimizer, guard.resume().step, total, **bad)  # type: ignore[arg-type]
    finally:
        guard.close()
    return [p.detach().clone() for p in model.parameters()], steps


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[torch.Tensor]:
    return run(tmp_path_factory.mktemp("undisturbed"), 20)[0]


def test_resumed_is_bit_equal(tmp_path: Path, undisturbed: list[torch.Tensor]) -> None:
    run(tmp_path, 12)
    parameters, steps = run(tmp_path, 20)
    assert steps == list(range(12, 20))
    assert equal(parameters, undisturbed)


def test_rolled_back_is_bit_equal(tmp_path: Path, undisturbed: list[torch.Tensor]) -> None:
    parameters, steps = run(tmp_path, 20, nan_at=13)
    assert steps == [*range(14), *range(10, 20)]
    assert equal(parameters, undisturbed)


def test_a_step_that_is_bad_again_puts_its_checkpoint_in_doubt(tmp_path: Path, undisturbed: list[torch.Tensor]) -> None:
    parameters, steps = run(tmp_path, 20, nan_at=13, times=2)
    assert steps == [*range(14), *range(10, 14), *range(5, 20)]
    assert equal(parameters, undisturbed)


def test_a_step_that_is_always_bad_ends_the_training(tmp_path: Path) -> None:
    with pytest.raises(Stop) as stop:
        run(tmp_path, 20, nan_at=13, times=99)
    assert stop.value.code == 85
    assert "step 13" in stop.value.why


def test_skip_goes_on_and_leaves_the_parameters(tmp_path: Path) -> None:
    parameters, steps = run(tmp_path, 20, nan_at=13, on_bad="skip")
    assert steps == list(range(20))
    assert all(bool(torch.isfinite(one).all()) for one in parameters)


def test_stop_ends_with_85(tmp_path: Path) -> None:
    with pytest.raises(Stop) as stop:
        run(tmp_path, 20, nan_at=13, on_bad="stop")
    assert stop.value.code == 85


def test_overflows_of_a_scaler_are_its_own_affair(tmp_path: Path) -> None:
    """A scaler in search of its scale: infinities, and no word of ours."""
    model, optimizer = made()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
    guard = Guard(model, optimizer, checkpoint_dir=tmp_path, scaler=scaler, every_steps=100, save_last=False)
    for step in guard.steps(guard.resume().step, 12):
        optimizer.zero_grad()
        loss = 1e3 * model(torch.randn(4, 8, generator=torch.Generator().manual_seed(step))).square().mean()
        scaler.scale(loss).backward()
        assert guard.backward_done()
        scaler.step(optimizer)
        scaler.update()
        guard.end_step(loss=loss)
    assert scaler.get_scale() < 2.0**127
    assert all(bool(torch.isfinite(one).all()) for one in model.parameters())


@pytest.mark.parametrize("unscaled_first", [False, True])
def test_dropped_gradients_reach_no_weight_whenever_a_scaler_unscales(*, unscaled_first: bool) -> None:
    """A loop that clips unscales before the Guard is asked: then the scaler looks no more."""

    class Once(Check):
        def backward_done(self, step: int) -> Finding | None:
            return Finding(why="a test", want="skip") if step == 2 else None

    model, optimizer = made()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    guard = Guard(model, optimizer, scaler=scaler, checks=(Once(),))
    for step in guard.steps(0, 4):
        before = [one.detach().clone() for one in model.parameters()]
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(4, 8)).square().mean()).backward()
        if unscaled_first:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert guard.backward_done() == (step != 2)
        scaler.step(optimizer)
        scaler.update()
        guard.end_step()
        same = [torch.equal(one, was) for one, was in zip(model.parameters(), before, strict=True)]
        assert all(same) == (step == 2)
    assert all(bool(torch.isfinite(one).all()) for one in model.parameters())


def test_of_several_findings_the_gravest_counts_and_the_others_are_said(caplog: pytest.LogCaptureFixture) -> None:
    class Finds(Check):
        def __init__(self, want: Literal["warn", "skip"]) -> None:
            self.want = want

        def backward_done(self, step: int) -> Finding | None:
            return Finding(why=f"found, {self.want}", want=self.want) if step == 1 else None

    model, optimizer = made()
    guard = Guard(model, optimizer, checks=(Finds("warn"), Finds("skip")))
    taken = []
    for _ in guard.steps(0, 3):
        model(torch.ones(4, 8)).sum().backward()
        taken.append(guard.backward_done())
        guard.end_step()
    assert taken == [True, False, True]
    assert [record.getMessage() for record in caplog.records if "found" in record.getMessage()] == [
        "found, warn",
        "found, skip",
    ]


@pytest.mark.parametrize("moment", ["end_step", "before_save"])
@pytest.mark.parametrize("want", ["skip", "again"])
def test_gradients_that_are_used_are_not_dropped_but_rolled_back(
    tmp_path: Path,
    undisturbed: list[torch.Tensor],
    caplog: pytest.LogCaptureFixture,
    want: Literal["skip", "again"],
    moment: str,
) -> None:
    left = [Finding(why="a test", want=want)]
    check = Check()
    setattr(check, moment, lambda done: left.pop() if done == 15 and left else None)
    parameters, steps = run(tmp_path, 20, checks=(check,))
    assert steps == [*range(15), *range(10, 20)]
    assert equal(parameters, undisturbed)
    lines = [record.getMessage() for record in caplog.records if "rolling back instead" in record.getMessage()]
    assert lines == [f"a check wants {want!r}, but the step is taken: rolling back instead"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_shows_in_the_sum_of_squares(dtype: torch.dtype, bad: float) -> None:
    gradients = torch.randn(1000, 3, dtype=dtype).T
    assert float(square(gradients)) == pytest.approx(float(gradients.double().square().sum()), rel=0.02)
    gradients[1, 777] = bad
    assert not math.isfinite(square(gradients))


def test_a_sum_of_squares_that_overflows_is_no_alarm() -> None:
    gradients = torch.full((1000,), 1e30)
    assert math.isfinite(sum(square(gradients) for _ in range(1000)))
    gradients[5], gradients[6] = math.inf, -math.inf
    assert not math.isfinite(square(gradients))


class Heard(NoLink):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[dict[str, object]] = []

    def send(self, packet: bytes) -> None:
        self.said.append(json.loads(packet))

    def bad(self) -> list[tuple[object, object]]:
        return [(one["step"], one.get("handled", "")) for one in self.said if one.get("finite") is False]


@pytest.mark.parametrize(("on_bad", "how"), [("roll-back", "rolled back to step 10"), ("skip", "skipped")])
def test_what_was_handled_in_place_is_told_as_handled(tmp_path: Path, on_bad: str, how: str) -> None:
    link = Heard()
    run(tmp_path, 20, nan_at=13, on_bad=on_bad, client=Client(link))
    assert link.bad() == [(14, how)]


def test_what_could_not_be_handled_is_told_as_bad(tmp_path: Path) -> None:
    link = Heard()
    with pytest.raises(Stop):
        run(tmp_path, 20, nan_at=13, times=99, client=Client(link))
    assert link.bad()[-1] == (14, "")


@pytest.mark.parametrize(("times", "told"), [(1, "gone when done again"), (99, "the data or the software")])
def test_a_spike_that_nothing_explains_is_done_again_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, times: int, told: str
) -> None:
    model, optimizer = made()
    guard = Guard(model, optimizer, checkpoint_dir=tmp_path, every_steps=5, overlap="wait", on_spike="replay")
    done: list[int] = []
    for step in guard.steps(guard.resume().step, 30):
        model(torch.randn(4, 8, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        guard.backward_done()
        optimizer.step()
        optimizer.zero_grad()
        spikes = step == 24 and done.count(24) < times
        done.append(step)
        guard.end_step(loss=100.0 if spikes else 1.0)
    assert done == [*range(26), *range(20, 30)]
    assert told in caplog.text
    assert [one.state for one in lineage.survey(tmp_path) if one.step >= 20] == ["clean"] * 3


# --- checkpoints ------------------------------------------------------------------------------------------------------


def checkpoint(folder: Path, steps: int = 12) -> Path:
    run(folder, steps)
    found = lineage.newest_clean(folder)
    assert found
    return found


def test_dcp_reads_it(tmp_path: Path) -> None:
    model, optimizer = made()
    manager = CheckpointManager(tmp_path, model, optimizer)
    assert manager.save(3, wait=True)
    manager.close()
    read = {"model": {name: torch.zeros_like(value) for name, value in model.state_dict().items()}}
    reader = filesystem.FileSystemReader(tmp_path / "step_00000003")
    with pytest.warns(UserWarning, match="torch.distributed"):
        state_dict_loader.load(read, storage_reader=reader, no_dist=True)
    assert all(torch.equal(read["model"][name], value) for name, value in model.state_dict().items())


def test_a_save_begun_during_another_tears_neither(tmp_path: Path) -> None:
    """All ones, then at once all twos: where a kept buffer is shared, the first comes out as a mixture."""
    model = nn.Linear(512, 512)
    manager = CheckpointManager(tmp_path, model, slots=2, overlap="wait")
    for step in (1, 2, 3):
        for parameter in model.parameters():
            nn.init.constant_(parameter, float(step))
        manager.save(step)
    assert manager.wait()
    assert manager.failed == {}
    for step in (1, 2, 3):
        manager.load(tmp_path / f"step_{step:08d}")
        assert all(bool((one == step).all()) for one in model.parameters())
    manager.close()


def test_memory_that_changes_meanwhile_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tear itself: the saver finds that it did not write what was captured."""
    model = nn.Linear(512, 512)
    manager = CheckpointManager(tmp_path, model)
    manager.save(1, wait=True)
    original = host_copy.capture

    def torn(tensors: list[torch.Tensor], places: list[int], slot: object, then: Callable[[list[str]], None]) -> None:
        def later(hashes: list[str]) -> None:
            slot.bytes[100] += 1  # type: ignore[attr-defined]
            then(hashes)

        original(tensors, places, slot, later)  # type: ignore[arg-type]

    monkeypatch.setattr("medevac.torch.checkpoints.capture", torn)
    assert not manager.save(2, wait=True)
    assert "not what was captured" in manager.failed[2]
    assert manager.newest_clean() == tmp_path / "step_00000001"
    assert manager.parent == 1
    manager.close()


def test_a_state_that_is_not_finite_is_no_checkpoint(tmp_path: Path) -> None:
    model, optimizer = made()
    manager = CheckpointManager(tmp_path, model, optimizer)
    with torch.no_grad():
        next(model.parameters())[0, 0] = math.inf
    assert not manager.save(1, wait=True)
    assert "NaN or infinity" in manager.failed[1]
    assert not (tmp_path / "step_00000001").exists()
    manager.close()


def test_a_flipped_bit_is_refused_and_the_one_before_is_taken(tmp_path: Path) -> None:
    newest = checkpoint(tmp_path)
    data = newest / "__0_0.distcp"
    flipped = bytearray(data.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    data.write_bytes(flipped)
    model, optimizer = made()
    guard = Guard(model, optimizer, checkpoint_dir=tmp_path)
    state = guard.resume()
    guard.close()
    assert newest.name == "step_00000012"
    assert state.step == 10
    assert lineage.survey(tmp_path)[-1].state == "condemned"


def test_under_medevac_a_checkpoint_that_is_not_as_sealed_ends_with_86(tmp_path: Path) -> None:
    newest = checkpoint(tmp_path)
    (newest / "__0_0.distcp").write_bytes(b"short")
    model, optimizer = made()
    client = Client(NoLink(), job="j", attempt=2)
    client.resume_from = newest
    guard = Guard(model, optimizer, checkpoint_dir=tmp_path, client=client)
    with pytest.raises(Stop) as stop:
        guard.resume()
    assert stop.value.code == 86
    assert "12 bytes" not in stop.value.why
    assert "__0_0.distcp: 5 bytes" in stop.value.why


def test_under_medevac_nothing_is_loaded_that_was_not_named(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    model, optimizer = made()
    guard = Guard(model, optimizer, checkpoint_dir=tmp_path, client=Client(NoLink(), job="j", attempt=2))
    assert guard.resume().path is None


def test_a_checkpoint_without_a_seal_does_not_exist(tmp_path: Path) -> None:
    newest = checkpoint(tmp_path)
    (newest / SEAL).unlink()
    assert lineage.newest_clean(tmp_path) == tmp_path / "step_00000010"


def test_doubt_is_inherited_and_kept_until_a_newer_clean_one_is_there(tmp_path: Path) -> None:
    checkpoint(tmp_path, 20)
    lineage.judge(tmp_path, [15], "suspect", "a test")
    states = {known.step: known.state for known in lineage.survey(tmp_path)}
    assert states == {10: "clean", 15: "suspect", 20: "suspect"}
    assert lineage.newest_clean(tmp_path) == tmp_path / "step_00000010"
    assert lineage.prune(tmp_path, Keep(count=1)) == []
    seal = decode_seal((tmp_path / "step_00000020" / SEAL).read_bytes())
    later = tmp_path / "step_00000030"
    later.mkdir()
    (later / SEAL).write_bytes(encode_seal(type(seal)(job="", attempt=0, step=30, at=time.time())))
    assert lineage.prune(tmp_path, Keep(count=1)) == [10, 15, 20]


def saved_every(folder: Path, seconds: float, count: int, **verdicts: str) -> None:
    """Checkpoints of steps 1, 2, ..., the newest sealed now; `s3="suspect"` doubts that of step 3."""
    now = time.time()
    for step in range(1, count + 1):
        made = folder / f"step_{step:08d}"
        made.mkdir(parents=True)
        at = now - (count - step) * seconds
        (made / SEAL).write_bytes(encode_seal(Seal(job="j", attempt=1, step=step, at=at)))
        if f"s{step}" in verdicts:
            lineage.judge(folder, [step], verdicts[f"s{step}"], "a test")  # type: ignore[arg-type]


def left(folder: Path) -> list[int]:
    return [one.step for one in lineage.survey(folder)]


@pytest.mark.parametrize(
    ("keep", "stay"),
    [
        (Keep(count=3), [8, 9, 10]),
        (Keep(count=0), [*range(1, 11)]),
        (Keep(count=0, age_s=250.0), [8, 9, 10]),
        (Keep(count=5, age_s=150.0), [9, 10]),
        (Keep(count=5, age_s=0.001), [10]),
        (Keep(count=2, spacing_s=1e9), [1, 9, 10]),
        (Keep(count=2, spacing_s=1e9, age_s=500.0), [9, 10]),
    ],
)
def test_retention_by_count_age_and_spacing(tmp_path: Path, keep: Keep, stay: list[int]) -> None:
    saved_every(tmp_path, 100.0, 10)
    lineage.prune(tmp_path, keep)
    assert left(tmp_path) == stay


def test_spacing_leaves_one_a_stretch(tmp_path: Path) -> None:
    saved_every(tmp_path, 100.0, 40)
    lineage.prune(tmp_path, Keep(count=2, spacing_s=1000.0))
    old = left(tmp_path)[:-2]
    assert 4 <= len(old) <= 5
    assert all(after - before == 10 for before, after in itertools.pairwise(old[1:]))


def test_a_suspect_one_stays_while_no_newer_one_is_clean(tmp_path: Path) -> None:
    saved_every(tmp_path, 100.0, 6, s5="suspect", s6="condemned")
    lineage.prune(tmp_path, Keep(count=1, age_s=1.0))
    assert left(tmp_path) == [4, 5, 6]
    lineage.judge(tmp_path, [4], "suspect", "a test")
    assert lineage.prune(tmp_path, Keep(count=1, age_s=1.0)) == []


def test_doubt_outlives_the_checkpoint_that_it_came_from(tmp_path: Path) -> None:
    """20 is suspect and 30 continues it; after a roll-back 25 and 35 follow from 10, and 20 is one too many."""
    for step, parent in ((10, None), (20, 10), (30, 20), (25, 10), (35, 25)):
        made = tmp_path / f"step_{step:08d}"
        made.mkdir()
        (made / SEAL).write_bytes(encode_seal(Seal(job="j", attempt=1, step=step, parent=parent, at=1000.0 + step)))
    lineage.judge(tmp_path, [20], "suspect", "a test")
    assert lineage.prune(tmp_path, Keep(count=2)) == [10, 20]
    assert {one.step: one.state for one in lineage.survey(tmp_path)} == {25: "clean", 30: "suspect", 35: "clean"}
    found = lineage.newest_clean(tmp_path, before_step=33)
    assert found is not None
    assert found.name == "step_00000025"


def test_a_suspect_one_becomes_clean_by_a_proof_only(tmp_path: Path) -> None:
    saved_every(tmp_path, 100.0, 3, s2="suspect", s3="condemned")
    model, optimizer = made()
    manager = CheckpointManager(tmp_path, model, optimizer)
    history = History(manager, here(), Client(NoLink()), 3)
    history.prove(2, "the replicas agree")
    history.prove(3, "the replicas agree")
    assert [(one.state, one.why) for one in lineage.survey(tmp_path)][1] == ("clean", "the replicas agree")
    assert [one.state for one in lineage.survey(tmp_path)] == ["clean", "clean", "condemned"]


def test_the_interval_is_the_root_and_never_under_a_save() -> None:
    assert optimal_interval(2.0, 1.0, 3600.0) == pytest.approx(120.0)
    assert optimal_interval(0.001, 100.0, 3600.0) == 150.0


# --- what is watched --------------------------------------------------------------------------------------------------

FAKE = """
import json, sys
for number, line in enumerate(sys.stdin):
    print(json.dumps([{"index": 0, "uuid": "GPU-x", "pci": "", "dbe": max(number - 1, 0)}]), flush=True)
"""


def test_a_new_uncorrected_error_is_noticed_without_waiting() -> None:
    watch = EccWatch("GPU-x", (sys.executable, "-c", FAKE))
    deadline = time.monotonic() + LIMIT_S
    while watch.rose == 0 and time.monotonic() < deadline:
        watch.ask()
        watch.look()
        time.sleep(0.01)
    assert watch.rose == 1
    watch.close()


@pytest.mark.parametrize(
    ("totals", "rose"), [((5, 5, 5), 0), ((5, 5, 7), 2), ((5, 0, 0), 0), ((5, 0, 2), 2), ((5, 3), 3), ((0, 0), 0)]
)
def test_counts_over_a_reset(totals: tuple[int, ...], rose: int) -> None:
    """What stood there before this process is not its own; what a counter that went back to 0 has, is."""
    watch = EccWatch("GPU-x", ())
    for total in totals:
        watch._take(json.dumps([{"uuid": "GPU-x", "dbe": total}]).encode(), 0.0)
    assert watch.rose == rose


def test_a_child_that_says_nothing_is_unknown() -> None:
    watch = EccWatch("GPU-x", (sys.executable, "-c", "import time; time.sleep(600)"))
    watch.ask()
    assert watch.look() == 0
    assert watch.count is None
    watch.close()


def test_a_spike_is_told_and_the_usual_is_not() -> None:
    spikes = Spikes("loss")
    assert [spikes.look(1.0 + 0.01 * (step % 7)) for step in range(40)] == [""] * 40
    assert "loss 9" in spikes.look(9.0)


def test_finite_looks_at_floats_of_all_widths() -> None:
    assert is_finite(torch.ones(4).numpy().tobytes(), "float32")
    assert not is_finite(torch.tensor([1.0, math.inf]).numpy().tobytes(), "float32")
    bad = torch.tensor([1.0, math.nan], dtype=torch.bfloat16).view(torch.int16).numpy().tobytes()
    assert not is_finite(bad, "bfloat16")
    assert is_finite(b"\xff" * 8, "int64")


def test_final_seal_names_place_and_parent(tmp_path: Path) -> None:
    newest = checkpoint(tmp_path)
    seal = json.loads((newest / SEAL).read_text())
    assert seal["parent"] == 10
    assert [rank["rank"] for rank in seal["ranks"]] == [0]
    assert {"__0_0.distcp", ".metadata"} == set(seal["files"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a rank with a GPU asks the GPU")
def test_a_launchers_ranks_share_its_gpus_in_order() -> None:
    shared = {"TORCHELASTIC_RUN_ID": "x", "MEDEVAC_GPU": "GPU-a", "MEDEVAC_PCI": "0"}
    both = shared | {"MEDEVAC_GPUS": "GPU-a,GPU-b", "MEDEVAC_PCIS": "0,1"}
    assert here(both | {"RANK": "1", "LOCAL_RANK": "1"}).gpu == "GPU-b"
    assert here(shared | {"LOCAL_RANK": "0"}).gpu == "GPU-a"
    assert here(shared | {"LOCAL_RANK": "1"}).gpu == ""
    assert here({"MEDEVAC_GPU": "GPU-c", "LOCAL_RANK": "3"}).gpu == "GPU-c"


class Says(Check):
    """Finds what it is told to, once, and remembers where it was put back to."""

    def __init__(self, at: int, finding: Finding, *, before: bool = False) -> None:
        self.at, self.finding, self.before = at, finding, before
        self.found = False
        self.went_back: list[int] = []

    def backward_done(self, step: int) -> Finding | None:
        return self._say() if self.before and step == self.at else None

    def end_step(self, done: int) -> Finding | None:
        return self._say() if not self.before and done == self.at else None

    def restored(self, step: int) -> None:
        self.went_back.append(step)

    def _say(self) -> Finding | None:
        say, self.found = not self.found, True
        return self.finding if say else None


@pytest.mark.parametrize("before", [True, False])
def test_a_check_that_doubts_the_state_takes_it_back_to_before(
    tmp_path: Path, undisturbed: list[torch.Tensor], *, before: bool
) -> None:
    check = Says(13, Finding(why="replicas differ", ranks=(0,), since=7), before=before)
    parameters, steps = run(tmp_path, 20, checks=(check,), keep=0)
    assert steps == [*range(14 if before else 13), *range(5, 20)]
    assert check.went_back == [0, 5]
    assert equal(parameters, undisturbed)
    assert [one.state for one in lineage.survey(tmp_path)] == ["clean"] * 4  # what was doubted has been saved anew
    doubted = [json.loads(line) for line in (tmp_path / "medevac-lineage.jsonl").read_text().splitlines()]
    assert [(one["step"], one["state"]) for one in doubted] == [(10, "suspect")]


def test_a_check_that_blames_hardware_ends_the_rank_with_84(tmp_path: Path) -> None:
    check = Says(13, Finding(why="wrong again on replay", ranks=(0,), want="stop", since=5, state="condemned"))
    with pytest.raises(Stop) as stop:
        run(tmp_path, 20, checks=(check,))
    assert stop.value.code == 84
    assert [(one.step, one.state) for one in lineage.survey(tmp_path)] == [(5, "clean"), (10, "condemned")]


def test_a_replay_says_what_becomes_of_a_finding(tmp_path: Path, undisturbed: list[torch.Tensor]) -> None:
    asked: list[str] = []
    check = Says(13, Finding(why="odd", want="replay", since=0))
    parameters, steps = run(tmp_path, 20, checks=(check,), replay=lambda found: asked.append(found.why))
    assert (steps, asked) == (list(range(20)), ["odd"])
    assert equal(parameters, undisturbed)
