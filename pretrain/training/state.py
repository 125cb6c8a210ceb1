"""The state of a training run: weights, their moving average, the optimiser and the step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from fomo_stream.errors import CheckpointError, ConfigError
from fomo_stream.model.zero_shot import ZeroShotModel


@dataclass
class State:
    """Everything that a step changes."""

    model: ZeroShotModel
    optimizer: torch.optim.Optimizer
    trained: list[nn.Parameter]
    average: dict[str, Tensor]  # moving average of the weights; buffers are copied
    step: int = 0
    elapsed: float = 0.0  # seconds of training so far, over all resumptions

    @classmethod
    def fresh(cls, model: ZeroShotModel, frozen: str = "") -> State:
        """The state before the first step. Parameters whose names begin with `frozen` are not trained ("": all are).

        Raises ConfigError if no parameter is left to train.
        """
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not (frozen and name.startswith(frozen)))
        trained = [p for p in model.parameters() if p.requires_grad]
        if not trained:
            raise ConfigError(f"--freeze {frozen} leaves nothing to train")
        average = {name: value.detach().clone() for name, value in model.state_dict().items()}
        # fused: on CUDA it can skip a step without a transfer to the host
        return cls(model, torch.optim.AdamW(trained, weight_decay=0.0, fused=True), trained, average)

    def update(self, lr: float, weight_decay: float, ema: float, good: Tensor) -> None:
        """One step of the optimiser, skipped if `good` (a bool on the device) is false, and of the moving average."""
        for group in self.optimizer.param_groups:
            group["lr"], group["weight_decay"] = lr, weight_decay
        self.optimizer.found_inf = (~good).float()  # type: ignore[attr-defined]  # as torch.amp.GradScaler sets it
        self.optimizer.step()
        self.update_average(ema)

    def update_average(self, decay: float) -> None:
        """Move the average towards the weights. In the first steps the decay is smaller, or the initial weights would
        stay in the average for too long."""
        decay = min(decay, (1 + self.step) / (10 + self.step)) if decay else 0.0
        weights = self.model.state_dict()
        floats = [name for name, value in weights.items() if value.is_floating_point()]
        follow = get_ema_multi_avg_fn(decay)
        follow([self.average[name] for name in floats], [weights[name] for name in floats], None)
        for name in weights.keys() - set(floats):
            self.average[name].copy_(weights[name])

    def averaged(self) -> dict[str, Tensor]:
        """The moving average, on the CPU."""
        return _on_cpu(self.average)

    def tensors(self) -> dict[str, Tensor]:
        """The whole state by name (`model.*`, `average.*`, `optimizer.*`), on the CPU."""
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        found |= {f"average.{name}": value for name, value in self.average.items()}
        for i, parameter in enumerate(self.trained):
            for key, value in self.optimizer.state.get(parameter, {}).items():
                found[f"optimizer.{i}.{key}"] = value
        return _on_cpu(found)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Load the result of `tensors`. Raises CheckpointError for the weights of another model."""
        try:
            self.model.load_state_dict(below("model.", tensors))
        except RuntimeError as error:
            raise CheckpointError(f"the run was saved by another version of the model: {error}") from None
        for name, value in below("average.", tensors).items():
            self.average[name].copy_(value)
        for i, parameter in enumerate(self.trained):
            moments = below(f"optimizer.{i}.", tensors)
            if moments:
                self.optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in moments.items()}


def below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, with the prefix removed from their names."""
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}


def _on_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
