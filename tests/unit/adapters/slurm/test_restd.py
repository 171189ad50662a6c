"""What slurmrestd says, by version, and what it says when it cannot. Values are of real answers, names changed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from medevac.adapters.schedulers.slurm import parse, restparse
from medevac.adapters.schedulers.slurm.restd import Restd
from medevac.ports.errors import BadReply, Unavailable


def of(number: int | None) -> dict[str, Any]:
    """A number as it is from 23.02 on."""
    return {"set": number is not None, "infinite": False, "number": number or 0}


# 22.05.8, v0.0.38: a task of an array.
OLD_JOB = {
    "job_id": 3, "array_job_id": 2, "array_task_id": 1, "array_task_string": "", "het_job_id": 0,
    "job_state": "RUNNING", "restart_cnt": 1, "nodes": "node[0-1]", "node_count": 2, "tasks": 2, "exit_code": 0,
    "start_time": 1796095567, "end_time": 1827631567, "submit_time": 1796095500, "requeue": True, "batch_flag": True,
    "priority": 4294901758, "state_reason": "None", "partition": "train", "account": "", "qos": "", "user_name": "kim",
    "admin_comment": "", "comment": '{"medevac": {"max_restarts": 3}}', "standard_output": "",
    "standard_error": "/w/x.err", "current_working_directory": "/w", "name": "wrap",
}  # fmt: skip

# 25.05, v0.0.43: one that ended by a signal.
NEW_JOB = {
    **OLD_JOB, "job_id": 1, "array_job_id": of(0), "array_task_id": of(None), "het_job_id": of(0),
    "job_state": ["TIMEOUT"], "restart_cnt": 0, "node_count": of(1), "tasks": of(1),
    "exit_code": {
        "status": ["SIGNALED"], "return_code": of(None), "signal": {"id": of(15), "name": "TERM"},
    },
    "start_time": of(1747754581), "end_time": of(1747754647), "submit_time": of(1747754578), "priority": of(0),
    "hold": False,
}  # fmt: skip

# 22.05.8 and 25.11.
OLD_NODE = {
    "name": "node0", "state": "idle", "state_flags": ["DRAIN"], "gres": "gpu:2", "partitions": ["train", "low"],
    "weight": 1, "features": "a,b", "active_features": "a", "reason": "medevac[hard=node0] I7: x",
    "reason_set_by_user": None, "boot_time": 1796092351, "comment": "",
}  # fmt: skip
NEW_NODE = {
    **OLD_NODE, "state": ["IDLE", "DRAIN"], "features": ["a", "b"], "active_features": ["a"],
    "reason_set_by_user": "slurm", "boot_time": of(1796092351),
}  # fmt: skip


def said(key: str, *values: object, errors: tuple[object, ...] = ()) -> bytes:
    return json.dumps({"meta": {"plugin": {"type": "openapi"}}, "errors": errors, key: values}).encode()


def test_jobs_of_all_versions() -> None:
    old, new = restparse.jobs(said("jobs", OLD_JOB, NEW_JOB))
    assert (old.id, old.number, old.state, old.restarts, old.held) == ("2_1", "3", "RUNNING", 1, False)
    assert (old.start, old.nodes, old.node_count) == ("2026-12-01T03:26:07", "node[0-1]", 2)
    assert parse.seconds(old.start) == 1796095567.0
    assert (new.id, new.state, new.held, new.nodes) == ("1", "TIMEOUT", True, "node[0-1]")
    assert parse.exit_status(new.exit_code) == (0, 15)


def test_what_waits_of_an_array_and_what_is_ending() -> None:
    waits = {**NEW_JOB, "array_job_id": of(2), "array_task_string": "4-9%2", "job_state": ["PENDING"], "nodes": ""}
    ending = {**NEW_JOB, "job_state": ["COMPLETED", "COMPLETING"], "start_time": of(0)}
    first, second = restparse.jobs(said("jobs", waits, ending))
    assert (first.id, first.nodes) == ("2_4-9%2", "")
    assert (second.state, second.start) == ("COMPLETING", "")


def test_nodes_of_all_versions() -> None:
    old, new = restparse.nodes(said("nodes", OLD_NODE, NEW_NODE))
    assert old.states == new.states == {"IDLE", "DRAIN"}
    assert (old.features, old.active, old.boot) == (new.features, new.active, new.boot)
    assert (old.features, old.boot, old.complete) == (("a", "b"), "2026-12-01T02:32:31", True)
    assert (old.partitions, old.gres, old.weight, new.reason_by) == (("train", "low"), "gpu:2", 1, "slurm")


def test_a_name_that_is_no_text_hides_no_job() -> None:
    raw = said("jobs", OLD_JOB).replace(b'"wrap"', b'"wr\xffap"')
    assert [job.id for job in restparse.jobs(raw)] == ["2_1"]


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (said("jobs", errors=({"error": "Unable to contact slurm controller", "errno": 1800},)), Unavailable),
        (said("nodes"), BadReply),
        (said("jobs", {"job_id": 7}), BadReply),
        (said("jobs", OLD_JOB)[:-20], BadReply),
        (b"", BadReply),
        (b"[]", BadReply),
    ],
)
def test_no_answer_is_never_no_jobs(raw: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        restparse.jobs(raw)


async def answered(folder: Path, *answers: bytes) -> asyncio.Server:
    """A server that gives these answers, one a connection."""
    waiting = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(waiting.pop(0))
        await writer.drain()
        writer.close()

    return await asyncio.start_unix_server(serve, folder / "socket")


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


async def test_the_newest_interface_is_asked_and_errors_are_no_answers(tmp_path: Path) -> None:
    versions = ok(rb'{"paths": {"\/slurm\/v0.0.9\/jobs\/": {}, "\/slurm\/v0.0.38\/jobs": {}}}')
    refused = b"HTTP/1.1 500 Internal Error\r\nContent-Length: 2\r\n\r\n{}"
    server = await answered(tmp_path, versions, ok(said("jobs", OLD_JOB)), refused, versions, ok(b"{}")[:-1])
    restd = Restd(str(tmp_path / "socket"), 2.0)
    async with server:
        assert [job.id for job in await restd.jobs()] == ["2_1"]
        with pytest.raises(Unavailable, match=r"v0\.0\.38/jobs: 500"):
            await restd.jobs()
        with pytest.raises(Unavailable):
            await restd.nodes()
    with pytest.raises(Unavailable):
        await Restd(str(tmp_path / "none"), 2.0).jobs()
