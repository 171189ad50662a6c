"""A story as one HTML page that needs nothing else: no scripts, no other files, dark and light."""

from __future__ import annotations

from itertools import groupby

from jinja2 import Environment, PackageLoader, StrictUndefined

from medevac.core.node_lifecycle import OUT
from medevac.report.chart import draw
from medevac.report.model import DeviceTold, Story
from medevac.report.words import clock, count, date, listed, span

TONE = {
    "undisturbed": "good",
    "recovered": "good",
    "unproven": "warn",
    "gave-up": "bad",
    "held": "warn",
    "watched": "warn",
    "stopped": "warn",
    "running": "info",
}


def render_html(story: Story) -> str:
    """The page."""
    environment = Environment(
        loader=PackageLoader("medevac.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(clock=clock, span=span, date=date, listed=listed)
    environment.globals.update(count=count, look=_look)
    template = environment.get_template("story.html")
    page: str = template.render(story=story, chart=draw(story), racks=_racks(story), tone=TONE[story.outcome])
    return page


def _racks(story: Story) -> list[tuple[str, list[tuple[str, list[DeviceTold]]]]]:
    """Racks of nodes of GPUs, in the cluster's order."""
    return [
        (rack, [(node, list(gpus)) for node, gpus in groupby(devices, key=lambda d: d.node)])
        for rack, devices in groupby(story.devices, key=lambda d: d.rack)
    ]


def _look(device: DeviceTold) -> str:
    """A GPU's colour: out hard, out soft, watched, in use, free."""
    if device.state in OUT:
        return "soft" if device.state.startswith("soft") else "hard"
    return "busy" if device.last_rank is not None else "free"
