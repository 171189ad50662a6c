"""The life of a device (a GPU, or a whole node where nodes are what is drained)."""

from __future__ import annotations

from medevac.core.machine import Machine, rows

IN_SERVICE = ("healthy", "restricted", "lifting")
SOFT = ("soft-draining", "soft-drained")
HARD = ("hard-draining", "isolated")

TRANSITIONS = (
    *rows(("healthy",), "low-score", "restricted", "restrict", "its health score fell under the policy's floor"),
    *rows(("restricted",), "order-return", "lifting", "give-back", "a person lifted the restriction"),
    *rows(("lifting",), "settled", "healthy", says="the scheduler shows it"),
    *rows(("lifting",), "refused", "restricted", "page", "the scheduler said no"),
    *rows(IN_SERVICE, "pre-failure", "soft-draining", "isolate-soft", "likely to fail: no new work"),
    *rows((*IN_SERVICE, *SOFT), "critical", "hard-draining", "isolate-hard", "failed: no work at all"),
    *rows(("soft-draining",), "settled", "soft-drained", says="the scheduler shows it"),
    *rows(("hard-draining",), "settled", "isolated", says="the scheduler shows it"),
    *rows(("soft-draining", "hard-draining"), "refused", "healthy", "page", "the scheduler said no"),
    *rows(("isolated",), "mendable", "isolated", "repair", "a reset or a reboot may mend it"),
    *rows(("isolated",), "mended", "healthy", says="it was repaired and is in service again"),
    *rows(("isolated",), "repaired", "isolated", "page", "it was repaired and must be looked at before it is back"),
    *rows(("isolated",), "not-mended", "isolated", "page", "the repair failed"),
    *rows((*SOFT, *HARD), "order-return", "returning", "give-back", "a person gave it back"),
    *rows(("returning",), "settled", "healthy", says="the scheduler shows it"),
    *rows(("returning",), "refused", "isolated", "page", "the scheduler said no"),
    *rows(("returning",), "critical", "hard-draining", "isolate-hard", "failed again"),
    *rows(("returning",), "pre-failure", "soft-draining", "isolate-soft", "likely to fail again"),
)

DEVICE = Machine(name="device", initial="healthy", final=(), table=TRANSITIONS)
OUT = (*SOFT, *HARD, "returning")
