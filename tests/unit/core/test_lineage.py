"""Which checkpoints are clean: by their seals, their parents, their GPUs, and what was seen in their attempt."""

from __future__ import annotations

from msgspec.structs import replace

from medevac.catalog.policy import load_policy
from medevac.core import events as ev
from medevac.core.decide import decide
from medevac.core.jobs import Checkpoint, Job
from medevac.core.lineage import Doubt, newest_clean, verdicts
from medevac.core.progress import Pace
from medevac.core.view import View

SPEC = ev.JobSubmitted(at=0.0, job="job")


def job(*checkpoints: Checkpoint, **more: object) -> Job:
    known = {one.step: one for one in checkpoints}
    made = Job(spec=SPEC, pace=Pace())
    return replace(made, checkpoints=made.checkpoints.update(known), **more)


def seal(step: int, at: float, *gpus: str, parent: int | None = None, attempt: int = 1) -> Checkpoint:
    ranks = tuple(ev.SealRank(rank=rank, gpu_uuid=gpu) for rank, gpu in enumerate(gpus))
    return Checkpoint(step=step, sealed_at=at, attempt=attempt, parent=parent, ranks=ranks)


def states(one: Job, **doubts: Doubt) -> dict[int, str]:
    found = verdicts(one, {gpu: (doubt,) for gpu, doubt in doubts.items()})
    return {step: verdict.state for step, verdict in found.items()}


def test_by_when_its_gpu_was_in_doubt() -> None:
    steps = job(*(seal(step, float(step), "a", "b") for step in (10, 20, 30, 40)))
    doubt = Doubt(since=15.0, fault_at=30.0, why="fault")
    assert states(steps, b=doubt) == {10: "clean", 20: "suspect", 30: "condemned", 40: "condemned"}
    assert states(steps, elsewhere=doubt) == dict.fromkeys((10, 20, 30, 40), "clean")


def test_doubt_ends_with_the_repair() -> None:
    steps = job(seal(10, 10.0, "a"), seal(20, 20.0, "a"), seal(30, 30.0, "a"))
    assert states(steps, a=Doubt(since=15.0, fault_at=16.0, why="fault", until=25.0)) == {
        10: "clean",
        20: "condemned",
        30: "clean",
    }


def test_a_child_of_a_doubtful_one_is_doubtful() -> None:
    chain = job(
        seal(10, 10.0, "a"),
        seal(20, 20.0, "bad", parent=10),
        seal(30, 30.0, "a", parent=20),
        seal(40, 40.0, "a", parent=30),
        seal(50, 50.0, "a", parent=10),
    )
    doubt = Doubt(since=15.0, fault_at=15.0, why="fault")
    found = verdicts(chain, {"bad": (doubt,)})
    assert {step: v.state for step, v in found.items()} == {
        10: "clean",
        20: "condemned",
        30: "suspect",
        40: "suspect",
        50: "clean",
    }
    assert found[30].why == "it continues step 20"
    assert newest_clean(chain, {"bad": (doubt,)}) == 50


def test_nan_spoils_its_own_attempt_from_the_step_before() -> None:
    steps = job(seal(10, 10.0), seal(19, 19.0), seal(20, 20.0), seal(30, 30.0, attempt=2, parent=10), bad=((1, 20),))
    assert states(steps) == {10: "clean", 19: "suspect", 20: "condemned", 30: "clean"}


def test_without_a_seal_lineage_is_unknown() -> None:
    steps = job(seal(10, 10.0), Checkpoint(step=20, problem="medevac.json: is torn"))
    assert states(steps) == {10: "clean", 20: "suspect"}
    assert newest_clean(steps, {}) == 10


def test_files_that_differ_are_condemned_though_a_person_named_them() -> None:
    steps = job(seal(10, 10.0), replace(seal(20, 20.0), problem="model.bin differs"), trusted=20)
    assert states(steps) == {10: "clean", 20: "condemned"}
    assert newest_clean(steps, {}) == 10


def test_a_person_may_name_a_suspect_one() -> None:
    steps = job(seal(10, 10.0, "a"), seal(20, 20.0, "a"), trusted=10)
    doubt = Doubt(since=0.0, fault_at=30.0, why="fault")
    assert states(steps, a=doubt) == {10: "clean", 20: "suspect"}
    assert newest_clean(steps, {"a": (doubt,)}) == 10


def test_a_person_may_name_one_without_a_seal() -> None:
    steps = job(seal(10, 10.0), Checkpoint(step=20, problem="it has no seal"), trusted=20, ordered=20)
    assert states(steps) == {10: "clean", 20: "clean"}
    assert newest_clean(steps, {}) == 20


def test_an_order_to_go_back_holds_for_one_start() -> None:
    steps = job(seal(10, 10.0), seal(20, 20.0), trusted=10, ordered=10)
    assert newest_clean(steps, {}) == 10
    assert newest_clean(replace(steps, ordered=None), {}) == 20


def test_a_named_step_that_is_not_there_is_not_chosen() -> None:
    assert newest_clean(job(seal(10, 10.0), trusted=99), {}) == 10


def test_a_verdict_in_the_lineage_file_counts_until_the_step_is_sealed_anew() -> None:
    told = replace(seal(20, 20.0), written="condemned", written_at=21.0, written_why="by hand")
    assert states(job(told)) == {20: "condemned"}
    assert states(job(replace(told, sealed_at=30.0))) == {20: "clean"}


def test_sealed_anew_forgets_the_problem_of_the_old_files() -> None:
    first = job(replace(seal(20, 20.0), problem="model.bin differs"))
    again = first.apply(ev.CheckpointSealed(at=40.0, job="job", attempt=2, step=20))
    assert states(again) == {20: "clean"}


def test_nothing_saved_is_nothing_clean() -> None:
    assert newest_clean(job(), {}) is None


def on_node(step: int, at: float, node: str, gpu: str = "") -> Checkpoint:
    return Checkpoint(step=step, sealed_at=at, attempt=1, ranks=(ev.SealRank(rank=0, node=node, gpu_uuid=gpu),))


def told(*events: ev.AnyEvent) -> View:
    """The view after the cluster and these events, each decided on."""
    view, policy = View(), load_policy("standard")
    cluster = ev.ClusterSeen(at=0.0, nodes=(ev.Node(name="n1", gpus=(ev.Gpu(index=0, uuid="a", pci="0000:01:00.0"),)),))
    for seq, event in enumerate((cluster, *events), 1):
        view = view.apply(event, seq)
        view = view.after(decide(view, event, policy))
    return view


def test_a_seal_that_knows_only_its_node_is_doubted_with_any_gpu_of_it() -> None:
    doubts = told(ev.FaultSeen(at=1000.0, kind="xid", code=48, node="n1", gpu="a")).doubts
    steps = job(on_node(10, 1001.0, "n1"), on_node(20, 1002.0, "n1", "other"), on_node(30, 1003.0, "n2"))
    assert {step: v.state for step, v in verdicts(steps, doubts).items()} == {10: "condemned", 20: "clean", 30: "clean"}


def test_a_fault_that_names_no_gpu_casts_doubt_on_all_of_its_node() -> None:
    doubts = told(ev.FaultSeen(at=1000.0, kind="xid", code=48, node="n1")).doubts
    steps = job(on_node(10, 1001.0, "n1", "a"), on_node(20, 1002.0, "n1"), on_node(30, 1003.0, "n2", "b"))
    found = {step: v.state for step, v in verdicts(steps, doubts).items()}
    assert found == {10: "condemned", 20: "condemned", 30: "clean"}
