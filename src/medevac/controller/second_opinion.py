"""Asks an external attribution service about each failed attempt, beside the loop, which never waits for it."""

from __future__ import annotations

import asyncio

from medevac.adapters.attribution import Service, ask
from medevac.controller.intake import Intake
from medevac.controller.loop import Loop
from medevac.core.decision import Diagnosed
from medevac.core.events import AttributionPhase, RankPlace
from medevac.ports.clock import Clock

LOOK_S = 0.5
PHASES: tuple[AttributionPhase, ...] = ("fast", "slow")


async def second_opinions(service: Service, loop: Loop, intake: Intake, clock: Clock) -> None:
    """For ever; what is heard goes into the log. Without a service there is nothing to do."""
    if not service.url:
        return
    asked: dict[str, int] = {}
    async with asyncio.TaskGroup() as tasks:
        while True:
            for name, job in loop.view.jobs.items():
                told = job.verdict
                if told is None or asked.get(name) == told.attempt:
                    continue
                asked[name] = told.attempt
                if job.ended and clock.now() - job.ended.at > service.slow_s:
                    continue  # history: another controller asked then
                for phase in PHASES:
                    tasks.create_task(_ask(service, phase, told, job.ranks, intake, clock))
            await clock.sleep(LOOK_S)


async def _ask(
    service: Service,
    phase: AttributionPhase,
    told: Diagnosed,
    places: tuple[RankPlace, ...],
    intake: Intake,
    clock: Clock,
) -> None:
    await intake.take((await ask(service, phase, told, places, clock.now),))
