"""topology.toml, right and wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from medevac.adapters.topology import load_topology
from medevac.core.events import Gpu, Node
from medevac.ports.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    path = folder / "topology.toml"
    path.write_text(text)
    return path


def test_nodes_come_with_what_they_share(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        [node.a]
        rack = "r1"
        feed = "f1"
        nvlink_domain = "a"
        kernel_log = "a/kmsg"
        gpus = [{ index = 0, pci = "3B:00", uuid = "GPU-1" }, { index = 1, uuid = "GPU-2" }]
        [node.b]
        """,
    )
    topology = load_topology(path)
    gpus = (Gpu(index=0, uuid="GPU-1", pci="0000:3b:00.0"), Gpu(index=1, uuid="GPU-2"))
    assert topology.nodes == (Node(name="a", rack="r1", feed="f1", nvlink_domain="a", gpus=gpus), Node(name="b"))
    assert topology.kernel_logs == {"a": tmp_path / "a" / "kmsg"}


@pytest.mark.parametrize(
    ("text", "where", "problem"),
    [
        ("", "node", "at least one"),
        ("node = 3", "node", "at least one"),
        ("[nodes.a]", "nodes", "is no key"),
        ("[node.a]\nrak = 'r'", "node.a", "unknown field `rak`"),
        ("[node.a]\nrack = 3", "node.a.rack", "Expected `str`"),
        ("[node.a]\ngpus = [{ index = 'x', uuid = 'G' }]", "node.a.gpus[0].index", "Expected `int`"),
        ("[node.a]\ngpus = [{ index = 0 }]", "node.a.gpus[0]", "missing required field `uuid`"),
        ("[node.a]\ngpus = [{ index = 0, uuid = '' }]", "node.a.gpus[0].uuid", "must not be empty"),
        ("[node.a]\ngpus = [{ index = -1, uuid = 'G' }]", "node.a.gpus[0].index", "counts from 0"),
        ("[node.a]\ngpus = [{ index = 0, uuid = 'G', pci = 'zz' }]", "node.a.gpus[0].pci", "no PCI address"),
        ("[node.a]\ngpus = [{ index = 0, uuid = 'G' }, { index = 0, uuid = 'H' }]", "node.a.gpus", "index 0 stands"),
        (
            "[node.a]\ngpus = [{ index = 0, uuid = 'G', pci = '3b:00' }, { index = 1, uuid = 'H', pci = '3B:00.0' }]",
            "node.a.gpus",
            "pci 0000:3b:00.0 stands there twice",
        ),
        ("[node.a]\ngpus = [{ index = 0, uuid = 'G' }]\n[node.b]\ngpus = [{ index = 0, uuid = 'G' }]", "node", "GPU G"),
        ("[node.a]\ngpus = [{ index = 0, uuid = 'b' }]\n[node.b]", "node.b", "the name of a GPU"),
        ("[node", "topology.toml", "is not TOML"),
    ],
)
def test_a_mistake_is_told_with_file_and_key(tmp_path: Path, text: str, where: str, problem: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_topology(path)
    assert caught.value.where == (str(path) if where == "topology.toml" else f"{path}: {where}")
    assert problem in caught.value.problem
    assert len(str(caught.value).splitlines()) == 1 or "TOML" in problem


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"topology\.toml: cannot be read \(No such file"):
        load_topology(tmp_path / "topology.toml")
