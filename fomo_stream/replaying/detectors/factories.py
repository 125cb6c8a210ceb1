"""From a name of `--compare` to a detector of another library."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, signature
from typing import Any

from fomo_stream.errors import ConfigError
from fomo_stream.wording import did_you_mean

RIVER, PYSAD, ROWS = ("score_one", "learn_one"), ("score_partial", "fit_partial"), ("judge",)
PROTOCOLS = (RIVER, PYSAD, ROWS)
KNN = "knn"
HOW = "or write module:factory for one of your own"


@dataclass(frozen=True)
class RiverDetector:
    """A detector of River as its documentation recommends to use it."""

    make: Callable[[int], Any]  # from a seed
    warm_up: int = 0  # records whose scores say nothing


def _half_space_trees(seed: int) -> Any:
    from river import anomaly, preprocessing

    return preprocessing.MinMaxScaler() | anomaly.HalfSpaceTrees(seed=seed)  # it expects values from 0 to 1


def _one_class_svm(seed: int) -> Any:
    from river import anomaly, preprocessing

    return preprocessing.StandardScaler() | anomaly.OneClassSVM()  # it draws no random numbers


NAMED = {
    "river.HalfSpaceTrees": RiverDetector(_half_space_trees, warm_up=250),  # all are 0 until its first window is full
    "river.OneClassSVM": RiverDetector(_one_class_svm),
}


def check_rivals(specs: Sequence[str]) -> None:
    """Raise ConfigError, in one sentence, if one of these cannot be compared with; makes none of them."""
    for i, spec in enumerate(specs):
        if spec in specs[:i]:
            raise ConfigError(f"--compare names {spec} twice; name each once")
        if spec != KNN and spec not in NAMED:
            _check_arguments(spec, find_factory(spec))


def find_factory(spec: str) -> Callable[..., Any]:
    """The object that `module:factory` names; the module may lie in the current directory.

    Raises ConfigError, in one sentence, if it cannot be found.
    """
    module_name, colon, name = spec.partition(":")
    if not (colon and module_name and name):
        names = [KNN, *NAMED]
        known = did_you_mean(spec, names) or f"; name {', '.join(names)}"
        raise ConfigError(f"--compare {spec}: there is no such detector{known}; {HOW}")
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)  # as `python -m` does
    try:
        found: Any = import_module(module_name)
    except Exception as error:  # the module is not ours
        raise ConfigError(f"--compare {spec}: {module_name} cannot be imported: {in_words(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            hint = did_you_mean(part, [other for other in dir(found) if not other.startswith("_")])
            raise ConfigError(f"--compare {spec}: {module_name} has no {name}{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"--compare {spec}: {name} is not a function or class that makes a detector")
    made: Callable[..., Any] = found
    return made


def make_detector(spec: str, n_features: int, seed: int) -> Any:
    """The detector that `module:factory` makes. Raises ConfigError, in one sentence, if it cannot be used."""
    factory = find_factory(spec)
    given = {"n_features": n_features, "seed": seed % 2**32, "random_state": seed % 2**32}
    arguments = {name: given[name] for name in _check_arguments(spec, factory)}
    try:
        made = factory(**arguments)
    except Exception as error:  # the factory is not ours
        raise ConfigError(
            f"--compare {spec}: the factory failed: {in_words(error)}; leave it out, or correct it"
        ) from error
    if protocol_of(made) is None:
        raise ConfigError(f"--compare {spec} gives a {type(made).__name__}, which has {_lacks()}")
    return made


def protocol_of(detector: Any) -> tuple[str, ...] | None:
    """The methods of the first protocol that it has, None: of no protocol."""
    for methods in PROTOCOLS:
        if all(callable(getattr(detector, name, None)) for name in methods):
            return methods
    return None


def _check_arguments(spec: str, factory: Callable[..., Any]) -> list[str]:
    """Names of the arguments that the factory takes of those that we give."""
    if isinstance(factory, type) and protocol_of(factory) is None:
        raise ConfigError(f"--compare {spec}: the class {factory.__name__} has {_lacks()}")
    try:
        parameters = signature(factory).parameters.values()
    except (TypeError, ValueError):  # compiled functions may have no signature
        return []
    named = {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}
    taken = [p.name for p in parameters if p.kind in named and p.name in ("n_features", "seed", "random_state")]
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is Parameter.empty and p.kind not in variable]
    if unknown := [name for name in needed if name not in taken]:
        raise ConfigError(
            f"--compare {spec}: the factory needs the argument {unknown[0]}; write a function of your own that takes "
            "none, or only n_features or seed"
        )
    return taken


def _lacks() -> str:
    return "none of the methods " + ", ".join("/".join(methods) for methods in PROTOCOLS)


def in_words(error: Exception) -> str:
    """An exception of foreign code, in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
