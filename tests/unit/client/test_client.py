"""The in-job client: what it says arrives, and nothing that Medevac's side does can stop or crash the training."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medevac.client import Client
from medevac.client.link import MAX_PACKET, FileLink, SocketLink, read_request
from medevac.core.events import AnyEvent, ResumedFrom, StepReported

JOB = {"MEDEVAC_JOB_ID": "j1", "MEDEVAC_ATTEMPT": "3", "RANK": "2"}


class Recorder:
    """A link that keeps what it is given."""

    def __init__(self) -> None:
        self.dropped = 0
        self.sent: list[AnyEvent] = []

    def send(self, packet: bytes) -> None:
        self.sent.append(msgspec.json.decode(packet, type=AnyEvent))

    introduce = send

    def receive(self) -> None:
        return None

    def close(self) -> None:
        return


def listen(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.settimeout(30)
    server.bind(str(path))
    server.listen(8)
    return server


def eventually(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < until, "it did not come about in 30 s"
        time.sleep(0.02)


def next_request(client: Client, asked: list[str | None]) -> str | None:
    asked.append(client.request())
    return asked[-1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sock"


@pytest.fixture
def server(path: Path) -> Iterator[socket.socket]:
    with listen(path) as made:
        yield made


def client_of(path: Path) -> Client:
    return Client.from_env({**JOB, "MEDEVAC_SOCKET": str(path)})


def test_a_heartbeat_arrives_as_an_event(server: socket.socket, path: Path) -> None:
    client = client_of(path)
    client.heartbeat(7, loss=1.5, grad_norm=0.5, compute_s=0.01)
    peer, _ = server.accept()
    with peer:
        event = msgspec.json.decode(peer.recv(MAX_PACKET), type=AnyEvent)
    assert isinstance(event, StepReported)
    assert (event.job, event.attempt, event.rank, event.step) == ("j1", 3, 2, 7)
    assert (event.loss, event.grad_norm, event.compute_s, event.finite) == (1.5, 0.5, 0.01, True)
    assert abs(event.at - time.time()) < 60
    client.close()


def test_a_rank_says_where_it_runs_but_not_with_each_step() -> None:
    link = Recorder()
    client = Client(link, job="j1", attempt=1, rank=9)
    client.stands(node="n2", gpu="GPU-7", pci="0000:3b:00.0", local_rank=1, gpu_memory=lambda: 1 << 30)
    client.heartbeat(0, "start")
    client.heartbeat(1, loss=1.0)
    client.heartbeat(2, loss=math.nan)
    client.heartbeat(3, handled="skipped")
    client.resumed(40)
    where = [(event.node, event.gpu, event.pci, event.local_rank) for event in link.sent]  # type: ignore[union-attr]
    there = ("n2", "GPU-7", "0000:3b:00.0", 1)
    assert where == [there, ("", "", "", None), there, there, there]
    first, second = link.sent[:2]
    assert isinstance(first, StepReported)
    assert isinstance(second, StepReported)
    assert first.gpu_memory == 1 << 30
    assert first.memory is not None
    assert 1 << 20 < first.memory < 1 << 40
    assert (second.memory, second.gpu_memory) == (None, None)  # not again within the second


def test_memory_that_cannot_be_known_costs_nothing_else() -> None:
    def lost() -> int:
        raise RuntimeError("CUDA error: unspecified launch failure")

    link = Recorder()
    client = Client(link)
    client.stands(node="n2", gpu_memory=lost)
    client.heartbeat(1)
    assert isinstance(link.sent[0], StepReported)
    assert link.sent[0].gpu_memory is None


@pytest.mark.parametrize(("environ", "gpu"), [({}, "GPU-1"), ({"TORCHELASTIC_RUN_ID": "r", "LOCAL_RANK": "1"}, "")])
def test_the_environment_says_where_a_rank_runs(
    server: socket.socket, path: Path, environ: dict[str, str], gpu: str
) -> None:
    client = Client.from_env(
        {**JOB, "MEDEVAC_SOCKET": str(path), "MEDEVAC_NODE": "n2", "MEDEVAC_GPU": "GPU-1", **environ}
    )
    client.heartbeat(0, "start")
    peer, _ = server.accept()
    with peer:
        event = msgspec.json.decode(peer.recv(MAX_PACKET), type=AnyEvent)
    client.close()
    assert isinstance(event, StepReported)
    assert (event.node, event.gpu, event.local_rank) == ("n2", gpu, 1 if environ else None)


@pytest.mark.parametrize(
    ("packet", "request_"),
    [(b"checkpoint", "checkpoint"), (b'"stop"', "stop"), (b"ecc-changed\n", "ecc-changed"), (b"format-disk", None)],
)
def test_a_request_is_read_once(server: socket.socket, path: Path, packet: bytes, request_: str | None) -> None:
    client = client_of(path)
    assert client.request() is None
    peer, _ = server.accept()
    with peer:
        peer.send(packet)
        assert client.request() == request_
        assert client.request() is None
    client.close()


def test_without_a_listener_events_are_dropped_and_counted(path: Path) -> None:
    client = client_of(path)
    client.resumed(40)
    for step in range(1000):
        client.heartbeat(step)
        assert client.request() is None
    assert client.dropped == 1000
    client.close()


def test_a_path_too_long_for_a_socket_is_like_none(tmp_path: Path) -> None:
    client = client_of(tmp_path / ("x" * 200))
    client.heartbeat(1)
    assert client.dropped == 1


def test_a_listener_that_does_not_read_is_not_waited_for(server: socket.socket, path: Path) -> None:
    client = client_of(path)
    for step in range(20_000):  # far more than any socket's buffer; a blocking send would never return
        client.heartbeat(step, loss=0.1)
    assert client.dropped > 0
    client.close()


def test_a_full_backlog_is_not_waited_for(path: Path) -> None:
    with listen(path) as server:
        server.listen(0)
        clients = [client_of(path) for _ in range(8)]
        for client in clients:
            client.heartbeat(1)
        assert sum(client.dropped for client in clients) > 0
        for client in clients:
            client.close()


def test_a_listener_that_comes_back_hears_first_where_the_job_resumed(path: Path) -> None:
    client = client_of(path)
    first = listen(path)
    client.resumed(40)
    peer, _ = first.accept()
    said = peer.recv(MAX_PACKET)
    peer.close()
    first.close()
    path.unlink()
    client.heartbeat(41)
    with listen(path) as second:
        until = time.monotonic() + 30
        second.settimeout(0.05)
        again = after = b""
        while not again:
            assert time.monotonic() < until
            client.heartbeat(42)
            try:
                peer, _ = second.accept()
            except TimeoutError:
                continue
            peer.settimeout(30)
            again = peer.recv(MAX_PACKET)
            after = peer.recv(MAX_PACKET)
            peer.close()
    assert again == said
    resumed = msgspec.json.decode(again, type=AnyEvent)
    assert isinstance(resumed, ResumedFrom)
    assert resumed.step == 40
    assert resumed.id  # the store takes it once, however often it is said
    assert isinstance(msgspec.json.decode(after, type=AnyEvent), StepReported)
    client.close()


@given(
    loss=st.none() | st.floats() | st.integers(),
    norm=st.none() | st.floats(),
    seconds=st.none() | st.floats(),
)
def test_what_is_not_finite_is_said_so(loss: float | None, norm: float | None, seconds: float | None) -> None:
    link = Recorder()
    Client(link, job="j", attempt=1).heartbeat(5, loss=loss, grad_norm=norm, compute_s=seconds)
    (event,) = link.sent
    assert isinstance(event, StepReported)
    assert event.finite == all(value is None or math.isfinite(value) for value in (loss, norm))
    if loss is not None and math.isfinite(loss):
        assert event.loss == float(loss)


@pytest.mark.parametrize("loss", [object(), "much", 10**400, [1.0]])
def test_a_value_that_is_no_number_does_no_harm(loss: object) -> None:
    link = Recorder()
    Client(link, job="j").heartbeat(5, loss=loss)  # type: ignore[arg-type]
    (event,) = link.sent
    assert isinstance(event, StepReported)
    assert event.loss is None


@given(st.binary(max_size=100))
def test_any_packet_is_a_request_or_none(packet: bytes) -> None:
    assert read_request(packet) in {None, "checkpoint", "stop", "ecc-changed"}


def test_without_medevac_it_does_nothing(tmp_path: Path) -> None:
    client = Client.from_env({"RANK": "1", "MEDEVAC_CHECKPOINT_DIR": str(tmp_path)})
    client.heartbeat(1)
    client.resumed(None)
    assert client.request() is None
    client.close()
    assert list(tmp_path.iterdir()) == []


def test_nonsense_in_the_environment_is_zero() -> None:
    client = Client.from_env({"MEDEVAC_JOB_ID": "j", "MEDEVAC_ATTEMPT": "many", "RANK": "-1"})
    assert (client.attempt, client.rank) == (0, 0)


def test_without_a_socket_events_and_requests_are_files(tmp_path: Path) -> None:
    client = Client.from_env({**JOB, "MEDEVAC_CHECKPOINT_DIR": str(tmp_path), "MEDEVAC_NODE": "node1"})
    requests = tmp_path / ".medevac" / "requests"
    requests.mkdir(parents=True)
    (requests / "2.stop").touch()  # an earlier attempt's
    (requests / "3.checkpoint").touch()
    client.resumed(20)
    client.heartbeat(21)
    asked: list[str | None] = [None]
    eventually(lambda: next_request(client, asked) is not None)
    client.close()
    lines = (tmp_path / ".medevac" / "node1.2.jsonl").read_bytes().splitlines()
    events = [msgspec.json.decode(line, type=AnyEvent) for line in lines]
    assert [type(event) for event in events] == [ResumedFrom, StepReported]
    assert asked[-1] == "checkpoint"
    assert client.request() is None


def test_the_files_of_a_rank_are_bounded(tmp_path: Path) -> None:
    link = FileLink(tmp_path, "n.0", 1, limit=10_000)
    for _ in range(200):
        link.send(b"x" * 400)
        if len(link._lines) > 20:
            eventually(lambda: not link._lines)
    link.close()
    eventually(lambda: not link._thread.is_alive())
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"n.0.jsonl", "n.0.jsonl.1"}
    assert max(sizes.values()) <= 10_000


def test_a_folder_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    link = FileLink(tmp_path / "file" / "sub", "n.0", 1)
    link.send(b"x")
    eventually(lambda: link.dropped == 1)
    assert link.receive() is None
    link.close()


def test_a_file_system_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = tmp_path / "let-go"
    monkeypatch.setattr(FileLink, "_append", lambda self, data: eventually(let_go.exists))
    link = FileLink(tmp_path, "n.0", 1)
    for _ in range(5000):
        link.send(b"x")
    assert link.dropped > 0
    link.close()
    let_go.touch()
    eventually(lambda: not link._thread.is_alive())


def test_a_packet_over_the_limit_is_dropped(server: socket.socket, path: Path) -> None:
    link = SocketLink(str(path))
    link.send(b"x" * (MAX_PACKET + 1))
    assert link.dropped == 1
    link.close()


def test_it_needs_msgspec_and_nothing_heavier() -> None:
    code = (
        "import sys, medevac.client, medevac.client.seal;"
        "print(*sorted({name.split('.')[0] for name, module in sys.modules.items()"
        " if 'site-packages' in (getattr(module, '__file__', None) or '')}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert set(found.split()) <= {"medevac", "msgspec", "typing_extensions", "xxhash", "_distutils_hack"}
