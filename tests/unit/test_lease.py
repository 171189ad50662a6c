"""The controller's lease: one acts, a dead one is followed at once, a stalled one in time, and it notices."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import msgspec
import pytest

from medevac.adapters.lease import VALID_S, Lease, Process, is_gone, read, this_process
from medevac.ports.errors import FencedOff, Unavailable


class Hands:
    """A clock that a test turns; it stops the one who sleeps too long."""

    def __init__(self, at: float = 1_000_000.0) -> None:
        self.at = at

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "controller.lease"


def test_one_at_a_time(path: Path, hands: Hands) -> None:
    first, second = Lease(path, now=hands.now), Lease(path, now=hands.now)
    assert first.take() == first.token > 0
    with pytest.raises(FencedOff, match=r"controller\.lease: .*:\d+ holds the lease for 30 s more"):
        second.take()
    assert second.token == 0
    first.check()


def test_taking_again_keeps_the_token(path: Path, hands: Hands) -> None:
    lease = Lease(path, now=hands.now)
    assert lease.take() == lease.take()


def test_a_released_lease_is_free(path: Path, hands: Hands) -> None:
    first, second = Lease(path, now=hands.now), Lease(path, now=hands.now)
    token = first.take()
    first.release()
    first.release()
    assert second.take() > token
    with pytest.raises(FencedOff):
        first.check()
    second.check()


def test_a_stalled_controller_is_followed_and_notices(path: Path, hands: Hands) -> None:
    first, second = Lease(path, now=hands.now), Lease(path, now=hands.now)
    token = first.take()
    hands.at += VALID_S
    assert second.take() > token
    with pytest.raises(FencedOff, match="stop acting"):
        first.check()
    with pytest.raises(FencedOff):
        first.renew()
    first.release()
    second.check()


def test_a_stalled_controller_that_nobody_followed_goes_on(path: Path, hands: Hands) -> None:
    lease = Lease(path, now=hands.now)
    lease.take()
    hands.at += 10 * VALID_S
    lease.check()
    held = read(path)
    assert held
    assert held.expires == hands.at + VALID_S


async def test_keeping_it_holds_it(path: Path, hands: Hands) -> None:
    lease, other = Lease(path, now=hands.now), Lease(path, now=hands.now)
    lease.take()

    class Watched(Hands):
        rounds = 0

        async def sleep(self, seconds: float) -> None:
            hands.at += seconds
            self.rounds += 1
            if self.rounds < 100:
                with pytest.raises(FencedOff):
                    other.take()
            else:
                path.unlink()

    watched = Watched()
    with pytest.raises(FencedOff, match="nobody holds"):
        await lease.keep(watched)
    assert watched.rounds == 100


async def test_a_full_disk_is_outlived_until_the_lease_runs_out(
    path: Path, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease(path, now=hands.now)
    lease.take()
    start = hands.at

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FencedOff, match="No space left"):
        await lease.keep(hands)
    assert hands.at - start == VALID_S
    with pytest.raises(Unavailable, match="No space left"):
        lease.check()
    monkeypatch.undo()
    lease.check()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"owner": "x"}', b"\xff"])
def test_an_unreadable_lease_counts_as_gone(path: Path, hands: Hands, content: bytes) -> None:
    path.write_bytes(content)
    assert read(path) is None
    assert Lease(path, now=hands.now).take() > 0


def test_a_removed_file_does_not_start_the_tokens_again(path: Path, hands: Hands) -> None:
    token = Lease(path, now=hands.now).take()
    path.unlink()
    hands.at += 2
    assert Lease(path, now=hands.now).take() > token


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be locked: No such file"):
        Lease(tmp_path / "no" / "controller.lease").take()


TAKE = "import sys; from medevac.adapters.lease import Lease; Lease(sys.argv[1]).take(); print('taken', flush=True)"


def test_a_dead_process_is_followed_at_once(path: Path) -> None:
    subprocess.run([sys.executable, "-c", TAKE, str(path)], check=True, capture_output=True)
    held = read(path)
    assert held
    assert held.process
    assert is_gone(held.process)
    assert Lease(path).take() > held.token


def test_a_killed_process_is_followed_at_once_though_nobody_has_reaped_it(path: Path) -> None:
    argv = [sys.executable, "-c", TAKE + "; sys.stdin.read()", str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stdout.readline() == b"taken\n"
        with pytest.raises(FencedOff):
            Lease(path).take()
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert Lease(path).take() > 0


def test_a_process_elsewhere_is_never_called_gone() -> None:
    here = this_process()
    assert not is_gone(here)
    for other in ({"boot": "b"}, {"namespace": "pid:[1]"}):
        assert not is_gone(msgspec.structs.replace(here, pid=2**22 + 1, **other))
    assert is_gone(msgspec.structs.replace(here, started="1"))
    assert is_gone(Process(host=here.host, boot=here.boot, namespace=here.namespace, pid=2**22 + 1, started="1"))


def _race(path: str, rounds: int) -> list[int]:
    """Tokens under which this process alone held the lease."""
    held = []
    lease = Lease(path)
    for _ in range(rounds):
        try:
            held.append(lease.take())
        except FencedOff:
            continue
        lease.check()
        lease.release()
    return held


def test_processes_that_race_never_share_a_token(path: Path) -> None:
    with get_context("spawn").Pool(3) as pool:
        results = pool.starmap(_race, [(str(path), 60)] * 3)
    tokens = [token for held in results for token in held]
    assert len(tokens) == len(set(tokens)) > 0
    assert not list(path.parent.glob(".*"))
