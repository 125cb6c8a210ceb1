"""Counts what a GPU would have to launch."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """Counts the operations of torch that compute something: those that a GPU launches."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types
        self.number = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch would load its compiler, which takes seconds

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += not operation.is_view and "empty" not in str(operation)
        return operation(*args, **(kwargs or {}))
