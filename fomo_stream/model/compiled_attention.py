"""Contexts and weights of kernel attention for the compiled kernels; see `kernels.router_attention`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.architecture import BANDWIDTHS, COORDINATES, MESSAGE_KEYS, TIE, VALUES, ModelConfig
from fomo_stream.model.kernels.neighbours import LIMIT
from fomo_stream.model.kernels.router_attention import (
    AttentionContext,
    AttentionWeights,
    keys_of_layer,
    own_densities,
    own_rows,
    units_of,
)
from fomo_stream.model.kernels.statistics import rarities
from fomo_stream.model.layout import Arrays, Single, as_tables, in_blocks, linear_map, linear_maps, norms, stacked

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]


def encode_by_attention(views: Float, far: Bool, weights: AttentionWeights) -> tuple[AttentionContext, Single, Float]:
    """The context whose rows have these views (S, n, d), what queries read of routers, and the rows' own logits (n,),
    leave-one-out. far: which rows have far values (n,), see `bulk`."""
    spaces, n, d = views.shape
    x = np.clip(views, -LIMIT, LIMIT).astype(np.float32)
    unit = units_of(x, in_blocks(x), 1e-4 * math.sqrt(d))
    x = np.clip(views / unit[:, None, None], -LIMIT, LIMIT).astype(np.float32)
    columns = in_blocks(x)
    m = columns.shape[1] * columns.shape[3]
    layers, heads = weights.precision.shape[0], spaces * BANDWIDTHS
    coordinates = np.zeros(((layers - 1) * spaces, columns.shape[1], COORDINATES, columns.shape[3]), np.float32)
    values = np.zeros(((layers - 1) * heads, VALUES, m), np.float32)
    tables = np.zeros((0, n))
    context = AttentionContext(columns, coordinates, values, unit, *_comparison(tables), rarities(n, False))
    z, own, rarity = np.zeros((n, weights.head.shape[0]), np.float32), np.full(n, weights.bias), rarities(n, True)
    reads = []
    for layer in range(layers):
        read = np.zeros((0, weights.router_key.shape[2] + z.shape[1]), np.float32)
        if layer:
            of_rows, of_heads, read = keys_of_layer(z, layer, weights)
            at = slice((layer - 1) * spaces, layer * spaces)
            coordinates[at] = in_blocks(of_rows.reshape(n, spaces, -1).transpose(1, 0, 2), 0.0)
            values[(layer - 1) * heads : layer * heads, :, :n] = of_heads.reshape(n, heads, VALUES).transpose(1, 2, 0)
        reads.append(read)
        densities, mixed = own_densities(x, z, layer, weights, context)
        tables = np.concatenate([tables, densities.T])
        middle = np.sort(densities, axis=0)[(n - 1) // 2]
        tables[-heads:, far] = middle[:, None]  # they say nothing of what is usual
        context = AttentionContext(*context[:4], *_comparison(tables), context.rarity)
        own_rows(z, layer, densities, mixed, weights, context, rarity, read, own)
    return context, np.concatenate(reads), own


def _comparison(own: Float) -> tuple[Float, Float, Single, Single]:
    """Return the statistics that densities are compared with, from the rows' own (L H, n), leave-one-out."""
    n = own.shape[1]
    ordered = np.sort(own, axis=1)
    median = ordered[:, (n - 1) // 2].copy()
    deviation = np.partition(np.abs(own - median[:, None]), (n - 1) // 2, axis=1)[:, (n - 1) // 2]
    spread = 1.4826 * deviation + 0.05 * own.std(1) + 1e-3
    return median, spread, *as_tables((ordered + TIE * (1 + np.abs(ordered))).astype(np.float32))


def weights_of_attention(config: ModelConfig, arrays: Arrays) -> AttentionWeights:
    """The weights of a model with kernel attention."""
    layers = [f"network.layers.{i}" for i in range(config.layers)]
    later, width = layers[1:], config.width
    heads = len(config.used_spaces) * BANDWIDTHS
    mixes = [arrays[f"{layer}.mix.weight"].T for layer in layers]
    # the first layer reads nothing, and has no norm for it
    of_norms = [
        norms(arrays, [f"{layer}.norm", f"{layer}.norm{'_read' if i else ''}"]) for i, layer in enumerate(layers)
    ]
    coordinates = stacked([arrays[f"{layer}.coordinates.weight"].T for layer in later], 3)
    routers = [arrays.get(f"{layer}.routers", np.zeros((0, MESSAGE_KEYS), np.float32)) for layer in later]
    routed = later if config.routers else []
    precision = [np.exp(arrays[f"{layer}.log_router_precision"].reshape(1))[0] for layer in routed]
    last = arrays["network.head.2.weight"][0]
    return AttentionWeights(
        # by `math`: the last digits of libraries depend on the processor
        np.array([[math.exp(x) for x in arrays[f"{layer}.log_precision"].tolist()] for layer in layers]),
        stacked([mix[-2 * heads :] for mix in mixes], 3),
        stacked([arrays[f"{layer}.mix.bias"] for layer in layers], 2),
        stacked([mix[: -2 * heads] for mix in mixes[1:]], 3),
        np.zeros(max(width, coordinates.shape[-1]), np.float32),
        stacked(of_norms, 3),
        *linear_maps(arrays, [f"{layer}.feed_forward.0" for layer in layers]),
        *linear_maps(arrays, [f"{layer}.feed_forward.2" for layer in layers]),
        coordinates,
        *linear_maps(arrays, [f"{layer}.values" for layer in later]),
        stacked(routers, 3),
        np.array(precision, np.float32),
        *linear_maps(arrays, [f"{layer}.router_key" for layer in routed]),
        *linear_maps(arrays, [f"{layer}.router_value" for layer in routed]),
        *linear_maps(arrays, [f"{layer}.message" for layer in routed]),
        np.maximum(arrays["network.weight"], 0).astype(np.float64).reshape(len(layers), 2 * heads),
        float(arrays["network.bias"]),
        norms(arrays, ["network.norm"]),
        *linear_map(arrays, ["network.head.0"]),
        last,
        float(arrays["network.head.2.bias"][0]),
    )
