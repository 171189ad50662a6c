"""torchrun that passes its ranks' exit code on.

    python -m medevac.torch.run --nproc-per-node 4 train.py

torchrun itself ends with 1 whatever its ranks said, so that a drained job looks like a failed one, and starts ranks
again that had left on purpose. This one ends with the code of the first rank that said one (docs/exit-codes.md).
"""

from __future__ import annotations

import os
import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from medevac.client.agents import fitted
from medevac.torch.stop import DRAINED, HARDWARE, ROLL_BACK, SUSPECT, TERMINATED
from medevac.torch.warm_ranks import fork_ranks

SAID = (HARDWARE, SUSPECT, ROLL_BACK, DRAINED, TERMINATED)
"""In this order: a rank whose hardware failed outweighs one that was only asked to leave."""


def main() -> int:
    """Run, and tell how it ended."""
    # Restarted ranks would read the dead ones' addresses out of one store for all restarts (pytorch/pytorch#135712).
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    try:
        fit()
        fork_ranks(sys.argv[1:])
        torchrun()
    except ChildFailedError as failed:
        codes = {failure.exitcode for failure in failed.failures.values()}
        code = next((said for said in SAID if said in codes), None)
        if code is None:
            raise
        return code
    return 0


def fit() -> None:
    """Under Medevac: as many agents and ranks as there are nodes and GPUs left, said where that changes something."""
    try:
        words, said = fitted(sys.argv[1:], os.environ)
    except ValueError as problem:
        sys.exit(f"torchrun: {problem}")
    for one in said:
        print(f"medevac: {one}", file=sys.stderr, flush=True)  # noqa: T201 - the agent's log
    sys.argv[1:] = words


if __name__ == "__main__":
    sys.exit(main())
