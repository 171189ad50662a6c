"""A cluster as files: `topology.toml`, and per node the folder that a real node's kernel and sensors would fill.

<cluster>/topology.toml
<cluster>/<node>/kmsg         kernel lines
<cluster>/<node>/env.jsonl    power supplies, fans, inlets
<cluster>/<node>/gpu<i>.json  counters of GPU i
"""

from __future__ import annotations

import json
from pathlib import Path

from medevac.core.events import Node
from medevac.sim.lines import stamped
from medevac.sim.storm import Corruption, Counters, Environment, KernelMessage, Storm

TOPOLOGY = "topology.toml"


def make(folder: Path, storm: Storm) -> None:
    """Write the cluster of a plan as it stands before anything happens. Raises OSError (FileExistsError: `folder`
    has a cluster already).
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / TOPOLOGY).exists():
        raise FileExistsError(f"{folder / TOPOLOGY} exists: choose an empty folder for the cluster")
    for node in storm.nodes:
        (folder / node.name).mkdir(exist_ok=True)
        (folder / node.name / "kmsg").touch()
        (folder / node.name / "env.jsonl").touch()
    shown = ClusterFolder(folder, storm.nodes)
    for counters in storm.baseline:
        shown.counters(counters)
    (folder / TOPOLOGY).write_text(_topology(storm.nodes), encoding="utf-8")


class ClusterFolder:
    """Shows things on the nodes of a cluster folder, each as the real one would. All methods raise OSError."""

    def __init__(self, folder: Path, nodes: tuple[Node, ...]) -> None:
        self._folder = folder
        self._index = {gpu.uuid: gpu.index for node in nodes for gpu in node.gpus}

    def show(self, one: KernelMessage | Environment | Counters | Corruption, at: float) -> None:
        """Write what the node shows, as of unix second `at`. Corruption is nothing that a node shows."""
        match one:
            case KernelMessage():
                self._append(one.node, "kmsg", stamped(one.message, one.node, at))
            case Environment():
                line = {"at": at, "rack": one.rack, "component": one.component, "state": one.state, "text": one.text}
                self._append(one.node, "env.jsonl", json.dumps(line) + "\n")
            case Counters():
                self.counters(one)
            case Corruption():
                pass

    def counters(self, one: Counters) -> None:
        """Replace a GPU's counters: a reader finds the old or the new ones, never half of them."""
        path = self._folder / one.node / f"gpu{self._index[one.gpu]}.json"
        values = {
            "uuid": one.gpu,
            "pci": one.pci,
            "sbe": one.sbe,
            "dbe": one.dbe,
            "remapped_rows": one.remapped_rows,
            "temperature": one.temperature,
        }
        staged = path.with_name(f".{path.name}")
        staged.write_text(json.dumps(values) + "\n", encoding="utf-8")
        staged.replace(path)

    def _append(self, node: str, name: str, line: str) -> None:
        with (self._folder / node / name).open("a", encoding="utf-8") as out:
            out.write(line)


def _topology(nodes: tuple[Node, ...]) -> str:
    return "\n".join(_node(node) for node in nodes)


def _node(node: Node) -> str:
    gpus = "\n".join(f'  {{ index = {gpu.index}, pci = "{gpu.pci}", uuid = "{gpu.uuid}" }},' for gpu in node.gpus)
    return (
        f"[node.{node.name}]\n"
        f'rack = "{node.rack}"\n'
        f'feed = "{node.feed}"\n'
        f'kernel_log = "{node.name}/kmsg"\n'
        f"gpus = [\n{gpus}\n]\n"
    )
