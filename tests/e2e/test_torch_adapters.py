"""The callbacks for Trainers of others, with the real packages (extra `dev`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.needs import need
from torch import nn

from medevac.torch import lineage

pytestmark = pytest.mark.e2e
BAD_STEP = 5


class Spoilt(nn.Module):
    """A linear fit whose loss is NaN once."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.calls = 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        loss = ((self.linear(x) - labels) ** 2).mean()
        return {"loss": loss * float("nan") if self.calls == BAD_STEP else loss}


def rows() -> list[dict[str, torch.Tensor]]:
    return [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(64)]


def went_on(model: nn.Module, folder: Path) -> None:
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
    assert 4 in {known.step for known in lineage.survey(folder)}


@pytest.mark.filterwarnings("default")
def test_hugging_face(tmp_path: Path) -> None:
    need("transformers")
    need("accelerate")
    from transformers import Trainer, TrainingArguments

    from medevac.torch.huggingface import MedevacCallback

    model = Spoilt()
    given: dict[str, Any] = {"max_steps": 12, "per_device_train_batch_size": 4, "use_cpu": True}
    arguments = TrainingArguments(str(tmp_path / "out"), report_to=[], save_strategy="no", **given)
    trainer = Trainer(model, arguments, train_dataset=rows())
    trainer.add_callback(MedevacCallback(checkpoint_dir=tmp_path / "ck", every_steps=4))
    trainer.train()
    went_on(model, tmp_path / "ck")


@pytest.mark.filterwarnings("default")
def test_lightning(tmp_path: Path) -> None:
    need("lightning")
    from lightning.pytorch import LightningModule, Trainer

    from medevac.torch.lightning import MedevacCallback

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Spoilt()

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            loss: torch.Tensor = self.net(**batch)["loss"]
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    module = Module()
    callback = MedevacCallback(checkpoint_dir=tmp_path / "ck", every_steps=4)
    given: dict[str, Any] = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False}
    trainer = Trainer(max_steps=12, enable_progress_bar=False, callbacks=[callback], **given)
    trainer.fit(module, torch.utils.data.DataLoader(rows(), batch_size=4))  # type: ignore[arg-type]
    went_on(module, tmp_path / "ck")
