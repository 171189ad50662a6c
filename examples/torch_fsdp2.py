"""The training of torch_ddp.py with FSDP2: the same loop, parameters and checkpoints sharded over the ranks."""

from __future__ import annotations

from torch import nn
from torch.distributed.fsdp import fully_shard

from torch_ddp import options, train


def shard(model: nn.Sequential) -> nn.Module:
    """Each linear layer is a unit of its own: several reductions a step, overlapped with the backward pass."""
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return model


def main() -> None:
    train(options(), shard)


if __name__ == "__main__":
    main()
