"""Which commands can be warm, and what is imported for them."""

from __future__ import annotations

import contextlib
import os
import socket

import pytest

from medevac.client import warm
from medevac.client.forks import interpreter
from medevac.client.warm import Watched, is_own, top_level_imports


@pytest.mark.parametrize(
    ("command", "options", "argv"),
    [
        ("python train.py --steps 3", "python", "train.py --steps 3"),
        ("/usr/bin/python3.11 -u -W error -Xdev train.py", "/usr/bin/python3.11 -u -W error -Xdev", "train.py"),
        ("python3 -m package.train -m x", "python3", "-m package.train -m x"),
        ("python -OO -m medevac.torch.run --nnodes 2 t.py", "python -OO", "-m medevac.torch.run --nnodes 2 t.py"),
    ],
)
def test_python_with_a_script_or_a_module(command: str, options: str, argv: str) -> None:
    found = interpreter(command.split())
    assert found is not None
    assert (" ".join(found.options), " ".join(found.argv)) == (options, argv)


@pytest.mark.parametrize(
    "command",
    ["sh -c python", "python", "python -c pass", "python -m", "python - x.py", "train.py", "numactl python x.py"],
)
def test_what_cannot_be_warm(command: str) -> None:
    assert interpreter(command.split()) is None


def test_what_stands_at_the_top_is_imported_and_nothing_else() -> None:
    source = """
from __future__ import annotations
import os, torch.nn as nn
from a.b import c as d, e
from . import beside
from star import *
if True:
    import conditional
def later():
    import inside
import os
"""
    assert top_level_imports(source) == [("os", ""), ("torch.nn", ""), ("a.b", "c"), ("a.b", "e"), ("star", "")]


@pytest.mark.parametrize("asks", ["os.environ['RANK']", "os.getenv('LOCAL_RANK')", "'MEDEVAC_ATTEMPT' in os.environ"])
def test_a_question_for_a_variable_of_a_rank_is_noticed(asks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("MEDEVAC_JOB_ID", "of all ranks")
    before = os.environ.__class__
    Watched.asked.clear()
    os.environ.__class__ = Watched
    try:
        with contextlib.suppress(KeyError):
            eval(asks, {"os": os})
        os.environ.copy()
    finally:
        os.environ.__class__ = before
    assert len(Watched.asked) == 1
    assert all(is_own(name) for name in Watched.asked)
    Watched.asked.clear()


def test_a_rank_that_nobody_waits_for_has_no_leave() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    assert not warm.leave_to_go_on(ours)
    ours.close()


def test_a_refused_order_that_nobody_waits_for_ends_nothing() -> None:
    link, keeper = (socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    made = warm.Warm({"argv": ["a.py"], "cwd": ".", "imports": (), "leave": ()})
    made.refused = "a thread runs"
    socket.send_fds(link[0], [b"{}"], [keeper[1].fileno()])
    for end in (*keeper, link[0]):
        end.close()
    assert made.serve(link[1]) is None
    link[1].close()
