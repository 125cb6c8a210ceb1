"""The state of a training run: weights, their moving average, the optimiser and the step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from fomo_stream.errors import CheckpointError
from fomo_stream.model.zero_shot import ZeroShotModel

MOMENTS = ("exp_avg", "exp_avg_sq")  # of the optimiser


@dataclass
class State:
    """Everything that a step changes."""

    model: ZeroShotModel
    optimizer: torch.optim.Optimizer
    average: dict[str, Tensor]  # moving average of the weights; buffers are copied
    rounded: bool = False  # the moments of the optimiser have the resolution of bf16
    step: int = 0
    elapsed: float = 0.0  # seconds of training so far, over all resumptions

    @classmethod
    def fresh(cls, model: ZeroShotModel, rounded: bool = False) -> State:
        """The state before the first step."""
        average = {name: value.detach().clone() for name, value in model.state_dict().items()}
        # fused: on CUDA it can skip a step without a transfer to the host
        return cls(model, torch.optim.AdamW(model.parameters(), weight_decay=0.0, fused=True), average, rounded)

    def update(self, lr: float, weight_decay: float, ema: float, good: Tensor) -> None:
        """One step of the optimiser, skipped if `good` (a bool on the device) is false, and of the moving average.

        Rounding takes random numbers of torch's global generator."""
        for group in self.optimizer.param_groups:
            group["lr"], group["weight_decay"] = lr, weight_decay
        self.optimizer.found_inf = (~good).float()  # type: ignore[attr-defined]  # as torch.amp.GradScaler sets it
        self.optimizer.step()
        if self.rounded:
            slots = self.optimizer.state.values()
            round_at_random([value for slot in slots for name, value in slot.items() if name in MOMENTS])
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
        """The whole state by name (`model.*`, `average.*`, `optimizer.*`), on the CPU. An average that equals its
        weight is left out."""
        weights = self.model.state_dict()
        found = {f"model.{name}": value for name, value in weights.items()}
        found |= {f"average.{n}": value for n, value in self.average.items() if not torch.equal(value, weights[n])}
        for i, parameter in enumerate(self.model.parameters()):
            for key, value in self.optimizer.state.get(parameter, {}).items():
                small = self.rounded and key in MOMENTS
                found[f"optimizer.{i}.{key}"] = value.bfloat16() if small else value
        return _on_cpu(found)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Load the result of `tensors`. Raises CheckpointError for the weights of another model."""
        try:
            self.model.load_state_dict(below("model.", tensors))
        except RuntimeError as error:
            raise CheckpointError(f"the run was saved by another version of the model: {error}") from None
        for name, value in averaged_weights(tensors).items():
            self.average[name].copy_(value)
        for i, parameter in enumerate(self.model.parameters()):
            moments = below(f"optimizer.{i}.", tensors)
            if moments:
                self.optimizer.state[parameter] = {k: v.to(parameter.device).float() for k, v in moments.items()}


def round_at_random(values: list[Tensor]) -> None:
    """Round float32 in place to the resolution of bf16, up or down so that the mean over many roundings is the value.

    To the nearest, a moment that changes by 0.1 % a step would never change. Values that are rounded already stay.
    """
    largest = max(value.numel() for value in values)
    noise = torch.randint(1 << 16, (largest,), dtype=torch.int32, device=values[0].device)
    for value in values:
        bits = value.view(torch.int32)
        bits.add_(noise[: value.numel()].view_as(bits)).bitwise_and_(-1 << 16)


def averaged_weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The moving average in the result of `State.tensors`."""
    return below("model.", tensors) | below("average.", tensors)


def below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, with the prefix removed from their names."""
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}


def _on_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
