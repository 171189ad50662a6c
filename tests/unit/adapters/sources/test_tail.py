"""Lines of a file, each once, whatever rotation and restarts do."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medevac.adapters.sources.tail import Tail


def texts(tail: Tail) -> list[str]:
    """All that can be read now; a rotated file is left after a few reads without news."""
    found = []
    for _ in range(8):
        found += [line.text.decode() for line in tail.read()]
    return found


def append(path: Path, text: str) -> None:
    with path.open("a") as out:
        out.write(text)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "kern.log"


def test_a_line_counts_when_its_newline_is_there(log: Path) -> None:
    log.write_text("one\ntw")
    tail = Tail(log)
    assert texts(tail) == ["one"]
    append(log, "o\n")
    assert texts(tail) == ["two"]
    assert texts(tail) == []


def test_it_goes_on_from_a_cursor(log: Path) -> None:
    log.write_text("one\ntwo\nthree\n")
    first = Tail(log).read()[0]
    assert texts(Tail(log, first.cursor)) == ["two", "three"]
    assert Tail(log).read()[0] == first


def test_a_file_that_comes_later_is_read_from_its_beginning(log: Path) -> None:
    tail = Tail(log)
    assert tail.read() == []
    log.write_text("one\n")
    assert texts(tail) == ["one"]


def test_rotation_loses_nothing_written_to_either_file(log: Path) -> None:
    log.write_text("one\n")
    tail = Tail(log)
    assert texts(tail) == ["one"]
    append(log, "two\n")
    rotated = log.rename(log.with_name("kern.log.1"))
    append(rotated, "three\n")
    log.write_text("four\n")
    assert texts(tail) == ["two", "three", "four"]


def test_the_last_line_of_a_rotated_file_needs_no_newline(log: Path) -> None:
    log.write_text("one\ntwo")
    tail = Tail(log)
    assert texts(tail) == ["one"]
    log.rename(log.with_name("kern.log.1"))
    log.write_text("three\n")
    assert texts(tail) == ["two", "three"]


def test_rotations_while_nobody_read_are_caught_up_with(log: Path) -> None:
    log.write_text("one\ntwo\n")
    cursor = Tail(log).read()[0].cursor
    second = log.rename(log.with_name("kern.log.2"))
    first = log.with_name("kern.log.1")
    first.write_text("three\n")
    log.write_text("four\n")
    os.utime(second, (100, 100))
    os.utime(first, (200, 200))
    assert texts(Tail(log, cursor)) == ["two", "three", "four"]


def test_truncation_in_place_begins_anew_with_other_keys(log: Path) -> None:
    log.write_text("one\ntwo\n")
    tail = Tail(log)
    before = tail.read()
    log.write_text("")
    assert texts(tail) == []
    append(log, "six\nten\n")
    after = tail.read()
    assert [line.text for line in after] == [b"six", b"ten"]
    assert not {line.key for line in before} & {line.key for line in after}


def test_truncation_between_two_runs_is_noticed(log: Path) -> None:
    log.write_text("one\n")
    cursor = Tail(log).read()[0].cursor
    log.write_text("other\nlonger than before\n")
    assert texts(Tail(log, cursor)) == ["other", "longer than before"]


def test_a_foreign_cursor_means_the_beginning(log: Path) -> None:
    log.write_text("one\n")
    assert texts(Tail(log, "nonsense")) == ["one"]


def test_an_endless_line_is_let_pass(log: Path) -> None:
    with log.open("wb") as out:
        out.write(b"one\n" + b"x" * 3_000_000 + b"\ntwo\n")
    assert texts(Tail(log)) == ["one", "two"]


def test_the_end_can_be_the_beginning(log: Path) -> None:
    log.write_text("old\n")
    tail = Tail(log)
    tail.skip_to_end()
    append(log, "new\n")
    assert texts(tail) == ["new"]


def test_what_stands_before_the_cursor_can_be_read_again(log: Path) -> None:
    log.write_text("one\ntwo\nthree\n")
    cursor = Tail(log).read()[1].cursor
    assert Tail(log, cursor).before(100) == [b"one", b"two"]
    assert Tail(log, cursor).before(5) == [b"two"]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.text("ab\n", max_size=6)),
        st.sampled_from([("read", ""), ("restart", ""), ("rotate", "")]),
    ),
    max_size=25,
)


@given(steps=STEPS)
@settings(deadline=None, max_examples=50)
def test_no_line_is_lost_or_doubled(steps: list[tuple[str, str]]) -> None:
    """A log whose lines are numbered, written in pieces, rotated at line ends, with readers killed at any time."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "kern.log")
        log.write_text("first\n")
        written, generation = "first\n", 0
        tail = Tail(log)
        (first,) = tail.read()
        got, cursor = {first.key: "first"}, first.cursor
        for what, text in steps:
            if what == "write":
                append(log, text)
                written += text
            elif what == "rotate" and written.endswith("\n"):
                generation += 1
                log.rename(log.with_name(f"kern.log-{generation:04}"))
                os.utime(log.with_name(f"kern.log-{generation:04}"), (generation, generation))
                log.write_text(f"file {generation}\n")
                written += f"file {generation}\n"
            elif what == "restart":
                tail.close()
                tail = Tail(log, cursor)
            for line in tail.read() if what != "write" else []:
                assert line.key not in got
                got[line.key] = line.text.decode()
                cursor = line.cursor
        for _ in range(3 * generation + 6):
            for line in tail.read():
                assert line.key not in got
                got[line.key] = line.text.decode()
        tail.close()
        assert list(got.values()) == written.split("\n")[:-1]
