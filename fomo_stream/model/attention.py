"""The context rows that a query attends to most.

As in the paper's qualitative analysis of sample-to-sample attention: cross-attention weights of the last layer,
averaged over heads. A model without a transformer has no attention weights: ConfigError.

>>> import numpy as np
>>> from fomo_stream.model.checkpoint import load_torch_model
>>> rng = np.random.default_rng(0)
>>> weights = attention_weights(load_torch_model("fomo"), rng.normal(size=(200, 3)), rng.normal(size=(4, 3)))
>>> found = most_attended(weights, top=5)
>>> found.indices.shape, bool((np.diff(found.weights) <= 0).all())
((4, 5), True)
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from fomo_stream.errors import ConfigError, SchemaError
from fomo_stream.model.architecture import Model, ModelConfig
from fomo_stream.model.checkpoint import SHIPPED, read_metadata, shipped_models
from fomo_stream.model.scoring import canonical_order, encode_with_torch
from fomo_stream.model.zero_shot import ZeroShotModel

Float = NDArray[np.float64]


class Attended(NamedTuple):
    """The context rows that each of q queries attends to most, the most attended first."""

    indices: NDArray[np.int64]  # (q, top) into the context's rows
    weights: Float  # (q, top); over all n rows of the context they would sum to one


def most_attended(weights: Float, top: int = 5) -> Attended:
    """The `top` largest of weights (q, n), or all of them if there are fewer; of equal ones the first row's leads."""
    if top < 1:
        raise ConfigError(f"top is the number of context rows to name: at least 1, not {top}")
    indices = np.argsort(-weights, axis=1, kind="stable")[:, :top]
    return Attended(indices, np.take_along_axis(weights, indices, 1))


def attention_weights(model: Model, context: Float, queries: Float) -> Float:
    """Return how much queries (q, d) attend to each row of context (n, d): (q, n), every query's weights sum to one.

    Raw units, NaN = missing. The order of the context's rows changes only the order of the columns. A model that has
    weights must be one of torch. Raises ConfigError for a model without attention weights, SchemaError for rows that do
    not fit each other.
    """
    if not model.config.attends:
        raise ConfigError(
            f"model {model.name} has no transformer, so it has no attention weights;"
            f" models that have them: {', '.join(_models_that_attend()) or 'none is shipped'}"
        )
    if queries.ndim != 2 or queries.shape[1] != context.shape[1]:
        raise SchemaError(f"the context has {context.shape[1]} features, the queries are {queries.shape}")
    order = canonical_order(context)
    cache, torchs = encode_with_torch(model, context[order]), cast(ZeroShotModel, model)
    rows = torch.from_numpy(np.ascontiguousarray(queries, dtype=np.float64)).to(torchs.device)
    with torch.inference_mode():
        parts = torch.split(rows, torchs.tile) if len(rows) else ()
        tiles = [torchs.attention_weights(cache, part[None])[0] for part in parts]
    weights = np.empty((len(rows), len(context)))
    if tiles:  # columns are in the order of the cache's rows
        weights[:, order] = torch.cat(tiles).cpu().numpy()
    return weights


def _models_that_attend() -> list[str]:
    configs = {name: read_metadata(SHIPPED / f"{name}.safetensors")["config"] for name in shipped_models()}
    return [name for name, config in configs.items() if ModelConfig.from_dict(config).attends]
