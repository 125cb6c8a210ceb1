"""Mean attention in the place of the softmax attention with which queries of a trained model read their context."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fomo_stream.errors import ConfigError
from fomo_stream.model.zero_shot import ZeroShotModel


def with_mean_attention(model: ZeroShotModel) -> ZeroShotModel:
    """A model with mean attention, and all other weights of `model`.

    Its queries read the projected mean of the values, which `model` approaches as its attention weights become equal.
    Raises ConfigError for a model without softmax attention.
    """
    if not model.config.attends:
        raise ConfigError(f"{model.name} has no softmax attention that a mean could replace")
    converted = ZeroShotModel(replace(model.config, attention="mean"), model.name)
    weights = model.state_dict()
    for layer in range(model.config.layers):
        weights |= _mean_of_values(weights, f"layers.{layer}.cross")
    wanted = converted.state_dict().keys()
    converted.load_state_dict({name: value for name, value in weights.items() if name in wanted})
    return converted


def _mean_of_values(weights: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """Values and output of one attention as one projection: both are linear, so the mean may be taken first."""
    parts = ("value.weight", "value.bias", "out.weight", "out.bias")
    value, value_bias, out, out_bias = (weights[f"{name}.{part}"].double() for part in parts)
    product, bias = out @ value, out @ value_bias + out_bias
    kind = weights[f"{name}.out.weight"].dtype
    return {f"{name}.project.weight": product.to(kind), f"{name}.project.bias": bias.to(kind)}
