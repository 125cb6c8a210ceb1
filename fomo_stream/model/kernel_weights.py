"""The weights of a model in the arrangement of the compiled kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fomo_stream.model.kernels.context_network import ContextWeights
from fomo_stream.model.kernels.evidence import STATISTICS
from fomo_stream.model.kernels.network import Weights
from fomo_stream.model.router import Attention, Layer, MeanAttention
from fomo_stream.model.zero_shot import ZeroShotModel

Single = NDArray[np.float32]


def weights_of(model: ZeroShotModel) -> tuple[Weights, ContextWeights]:
    """For queries and for context rows; made once for each model, whose weights must not change then."""
    if model.compiled is None:
        layers = [layer for layer in model.layers if isinstance(layer, Layer)] if model.config.layers else []
        model.compiled = _for_queries(model, layers), _for_context(model, layers)
    found: tuple[Weights, ContextWeights] = model.compiled
    return found


def _for_queries(model: ZeroShotModel, layers: list[Layer]) -> Weights:
    config, channels = model.config, 2 * STATISTICS
    fusion, bias = np.zeros(channels), 0.0
    if config.fusion:
        # softplus, by `math`: the last digits of torch's depend on the processor
        fusion = np.array([math.log1p(math.exp(raw)) for raw in model.fusion_raw.tolist()])
        bias = float(model.fusion_bias)
    crosses = [layer.cross for layer in layers if isinstance(layer.cross, Attention)]
    embed, head = ([model.embed], [model.head[0]]) if layers else ([], [])
    last = [nn.Linear(1, 1)] if not layers else [model.head[2]]
    difference, last_bias = _outlier_minus_inlier(last[0])
    norms = [torch.stack([n.norm1.weight, n.norm1.bias, n.norm2.weight, n.norm2.bias]) for n in layers]
    return Weights(
        config.fusion,
        fusion,
        bias,
        *_first(_maps(embed)),
        config.attends,
        *_maps([cross.query for cross in crosses]),
        *_maps([cross.out for cross in crosses]),
        _stack(norms, 3),
        *_maps([layer.feed_forward[0] for layer in layers]),
        *_maps([layer.feed_forward[2] for layer in layers]),
        *_first(_maps(head)),
        difference,
        last_bias,
    )


def _for_context(model: ZeroShotModel, layers: list[Layer]) -> ContextWeights:
    crosses = [layer.cross for layer in layers]
    attended = [cross for cross in crosses if isinstance(cross, Attention)]
    routers = [layer.routers for layer in layers if layer.routers is not None]
    none = [torch.zeros(0, model.config.width)] * (len(layers) - len(routers))
    return ContextWeights(
        model.config.heads,
        *_maps([cross.project for cross in crosses if isinstance(cross, MeanAttention)]),
        *_maps([cross.key for cross in attended]),
        *_maps([cross.value for cross in attended]),
        _stack([*routers, *none], 3),
        *_attention([layer.collect for layer in layers if layer.routers is not None]),
        *_attention([layer.spread for layer in layers]),
    )


def _attention(parts: Sequence[Any]) -> tuple[Single, Single]:
    """Query, key, value and output maps of attentions: (n, 4, width, width) and biases (n, 4, width)."""
    if not parts:
        return np.zeros((0, 0, 0, 0), np.float32), np.zeros((0, 0, 0), np.float32)
    maps = [_maps([part.query, part.key, part.value, part.out]) for part in parts]
    return np.stack([weights for weights, _ in maps]), np.stack([bias for _, bias in maps])


def _maps(maps: Sequence[Any]) -> tuple[Single, Single]:
    """Weights (n, inputs, outputs) and biases (n, outputs) of linear maps."""
    return _stack([m.weight.T for m in maps], 3), _stack([m.bias for m in maps], 2)


def _first(maps: tuple[Single, Single]) -> tuple[Single, Single]:
    """Weights (inputs, outputs) and bias (outputs,) of the only map; without any, empty."""
    weights, bias = maps
    return (weights[0], bias[0]) if len(weights) else (np.zeros((0, 0), np.float32), np.zeros(0, np.float32))


def _outlier_minus_inlier(last: Any) -> tuple[Single, float]:
    """The last map as weights (inputs,) and a bias of the outlier's logit minus the inlier's."""
    weight, bias = last.weight.detach(), last.bias.detach()
    return np.ascontiguousarray((weight[-1] - weight[0]).numpy()), float(bias[-1] - bias[0])


def _stack(parts: Sequence[Tensor], dimensions: int) -> Single:
    if not parts:
        return np.zeros((0,) * dimensions, np.float32)
    return np.ascontiguousarray(torch.stack(list(parts)).detach().numpy())
