"""The in-job side of Medevac without torch: heartbeats out, requests in, sealed checkpoints (docs/in-job-protocol.md).

    client = Client.from_env()          # does nothing where no Medevac started the job
    client.resumed(step)
    client.heartbeat(step, loss=loss, grad_norm=norm, compute_s=seconds)
    if client.request() == "checkpoint":
        ...

It is a guest in the training: it never blocks, never raises, and keeps memory and disk bounded.
"""

from medevac.client.link import Request
from medevac.client.session import Client

__all__ = ["Client", "Request"]
