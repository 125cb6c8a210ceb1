"""The architecture of a model, without the code that computes it, so that neither torch nor a kernel is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from numpy.typing import NDArray

from fomo_stream.errors import CheckpointError

MAX_LAYERS, MAX_SIZE = 100, 100_000  # of a model: its weights are made in memory before they are read
VALUE_LIMIT = 1e60  # keeps squares of raw values finite in float64
NARROW = 1e-6  # of the size of a feature's values: a smaller spread is computed from differences
NOISE = 1e-13  # of the size of a feature's values: a smaller spread is rounding

SPACES = ("z", "quantile", "whitened")
# Of kernel attention: bandwidths in each space, and for each row its learned coordinates in a space, its values in a
# head, and its coordinates for routers
BANDWIDTHS, COORDINATES, VALUES, MESSAGE_KEYS = 4, 4, 8, 8
TIE = 1e-5  # densities that differ by less, of their size, are equal: of few different values rounding would rank them
SPACE_STATISTICS = (
    "nearest",
    "mean5",
    "mean20",
    "ratio5",
    "ratio20",
    "density0.5",
    "density1",
    "density2",
    "density4",
    "gap",
    "max",
    "top3",
    "rms",
    "mean_abs",
)
RANK_STATISTICS = ("tail_sum", "tail_max")


def statistics_in(spaces: Sequence[str]) -> tuple[str, ...]:
    """Statistics of these of SPACES, in order. Ranks are those of the quantile map."""
    ranks = RANK_STATISTICS if "quantile" in spaces else ()
    return tuple(f"{space}.{name}" for space in spaces for name in SPACE_STATISTICS) + ranks


def channels_in(spaces: Sequence[str]) -> tuple[str, ...]:
    """Channels of these of SPACES, in order: two of each statistic."""
    return tuple(f"{name}.{kind}" for name in statistics_in(spaces) for kind in ("far", "rare"))


STATISTICS, CHANNELS = statistics_in(SPACES), channels_in(SPACES)


@dataclass(frozen=True)
class ModelConfig:
    """The architecture of a checkpoint: a fusion of evidence (the defaults), or a transformer."""

    raw_features: int = 0  # D, raw inputs of the network after the quantile transform; 0 = none
    evidence: bool = True  # no longer read: a transformer has raw inputs or kernel attention
    spaces: str = "z,quantile,whitened"  # of SPACES: those in which rows are compared
    fusion: bool = True  # add the weighted sum of the evidence channels to the logit
    layers: int = 0  # L; 0 = no transformer
    width: int = 256  # h
    heads: int = 4  # kernel attention has BANDWIDTHS in each space
    feed_forward: int = 512
    routers: int = 500  # R; 0 = full attention between context rows
    attention: str = "softmax"  # how queries weigh the context rows; "mean": all the same; "kernel": by distance
    channel_dropout: float = 0.0  # share of densities hidden from the transformer per training step ...
    fusion_dropout: float = 0.0  # ... and from the fusion, so that it does not lean on a few of them
    quantile: bool = True  # raw inputs go through the quantile map; False: they are plain z-scores

    def __post_init__(self) -> None:
        if self.attention not in ("softmax", "kernel"):
            raise CheckpointError(f"configuration has attention = {self.attention!r}, expected softmax or kernel")
        scorers = [self.fusion, self.raw_features > 0, self.attention == "kernel"]
        if scorers.count(True) != 1 or (self.layers > 0) == self.fusion:
            raise CheckpointError(
                "a model is a fusion without layers, or has layers on raw_features, or layers with kernel attention:"
                f" this configuration has fusion = {self.fusion}, raw_features = {self.raw_features},"
                f" layers = {self.layers}, attention = {self.attention}"
            )
        if not self.used_spaces or self.used_spaces != tuple(s for s in SPACES if s in self.used_spaces):
            raise CheckpointError(f"configuration has spaces = {self.spaces!r}, expected some of {','.join(SPACES)}")
        if self.layers and not (self.heads and self.width and self.width % self.heads == 0):
            raise CheckpointError(f"configuration has heads = {self.heads}, which must divide width = {self.width}")

    @property
    def used_spaces(self) -> tuple[str, ...]:
        """The spaces whose evidence is computed, in order."""
        return tuple(self.spaces.split(","))

    @property
    def has_quantile_map(self) -> bool:
        """Return whether rows go through the quantile map."""
        return "quantile" in self.used_spaces or self.raw_features > 0

    @property
    def channels(self) -> tuple[str, ...]:
        """The evidence channels."""
        return channels_in(self.used_spaces)

    @property
    def attends(self) -> bool:
        """Return whether queries have attention weights."""
        return self.layers > 0

    def max_features(self, n_categorical: int = 0) -> int:
        """Features that it takes at most; 0: any number. Pairs of categories take an input."""
        return self.raw_features - (self.raw_features > 1 and n_categorical > 1)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        """The configuration from the output of `asdict`; unknown names mean another format version."""
        if not isinstance(values, dict):
            raise CheckpointError(f"configuration must be an object of settings, not {values!r}")
        defaults = asdict(cls())
        unknown = set(values) - set(defaults)
        if unknown:
            raise CheckpointError(f"configuration has unknown entries {sorted(unknown)}; update fomo-stream")
        for name, value in values.items():
            kind, text = type(defaults[name]), repr(value)[:60]
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise CheckpointError(f"configuration has {name} = {text}, expected {kind.__name__}")
            limit = MAX_LAYERS if name == "layers" else MAX_SIZE if kind is int else 1
            if kind is not str and not 0 <= value <= limit:
                raise CheckpointError(f"configuration has {name} = {text}, expected 0 to {limit}")
        return cls(**values)


_KERNEL = ModelConfig(
    evidence=False,
    fusion=False,
    layers=2,
    width=32,
    feed_forward=64,
    routers=8,
    attention="kernel",
    channel_dropout=0.3,
)
PRESETS: dict[str, ModelConfig] = {
    "paper-100": ModelConfig(raw_features=100, evidence=False, fusion=False, layers=4),
    "paper-20": ModelConfig(raw_features=20, evidence=False, fusion=False, layers=4),
    "fomo": _KERNEL,
    "fusion": ModelConfig(fusion_dropout=0.5),
    "streams": ModelConfig(fusion_dropout=0.5, spaces="whitened"),
    "tiny": replace(_KERNEL, width=8, feed_forward=16, routers=4),
}


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each weight of a model of this architecture, by its name in a checkpoint."""
    width, shapes = config.width, dict[str, tuple[int, ...]]()

    def linear(name: str, inputs: int, outputs: int) -> None:
        shapes.update({f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)})

    if config.attention == "kernel":
        _kernel_shapes(config, linear, shapes)
        return shapes
    if config.fusion:
        shapes.update(fusion_raw=(len(config.channels),), fusion_bias=())
    if config.layers:
        linear("embed", config.raw_features, width)
        linear("head.0", width, 2 * width)
        linear("head.2", 2 * width, 2)
    for layer in (f"layers.{i}" for i in range(config.layers)):
        attentions = ["spread", "cross"] + ["collect"] * (config.routers > 0)
        for part in (f"{layer}.{name}.{map_}" for name in attentions for map_ in ("query", "key", "value", "out")):
            linear(part, width, width)
        if config.routers:
            shapes[f"{layer}.routers"] = (config.routers, width)
        linear(f"{layer}.feed_forward.0", width, config.feed_forward)
        linear(f"{layer}.feed_forward.2", config.feed_forward, width)
        for norm in ("norm1", "norm2"):
            shapes.update({f"{layer}.{norm}.weight": (width,), f"{layer}.{norm}.bias": (width,)})
    return shapes


def _kernel_shapes(
    config: ModelConfig, linear: Callable[[str, int, int], None], shapes: dict[str, tuple[int, ...]]
) -> None:
    width, spaces = config.width, len(config.used_spaces)
    heads = spaces * BANDWIDTHS
    shapes.update({"network.weight": (config.layers * 2 * heads,), "network.bias": ()})
    linear("network.head.0", width, 2 * width)
    linear("network.head.2", 2 * width, 1)
    norms = ["network.norm"]
    for i, layer in enumerate(f"network.layers.{i}" for i in range(config.layers)):
        shapes[f"{layer}.log_precision"] = (spaces,)
        linear(f"{layer}.mix", (heads * VALUES if i else 0) + 2 * heads, width)
        linear(f"{layer}.feed_forward.0", width, config.feed_forward)
        linear(f"{layer}.feed_forward.2", config.feed_forward, width)
        norms.append(f"{layer}.norm")
        if i:
            norms.append(f"{layer}.norm_read")
            shapes[f"{layer}.coordinates.weight"] = (spaces * COORDINATES, width)
            linear(f"{layer}.values", width, heads * VALUES)
        if i and config.routers:
            shapes.update({f"{layer}.routers": (config.routers, MESSAGE_KEYS), f"{layer}.log_router_precision": ()})
            linear(f"{layer}.router_key", width, MESSAGE_KEYS)
            linear(f"{layer}.router_value", width, width)
            linear(f"{layer}.message", width, width)
    for norm in norms:
        shapes.update({f"{norm}.weight": (width,), f"{norm}.bias": (width,)})


class Model(Protocol):
    """A model that can score: a `CompiledModel`, or a `ZeroShotModel` of torch. See `scoring`."""

    name: str
    config: ModelConfig
    kernel: str  # what computes its logits: "numba" or "torch"
    tile: int  # rows that are scored at once; fewer cost as much
    compiled: Any  # the weights as the numba kernels read them, once they were needed

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its weights by name, float32."""


class CompiledModel:
    """A model for the numba kernels. Neither these nor torch are loaded before it scores."""

    def __init__(self, name: str, config: ModelConfig, arrays: dict[str, NDArray[Any]]) -> None:
        self.name, self.config, self._arrays = name, config, arrays
        self.kernel, self.tile = "numba", 1
        self.compiled: Any = None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """See `Model`."""
        return self._arrays
