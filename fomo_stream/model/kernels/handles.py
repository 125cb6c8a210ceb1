"""Pass arrays by address: one integer costs nothing as an argument, dozens of arrays cost more than a score.

Nothing is checked when a handle is read: positions, types and dimensions must be those that it was made of.
Kernels that depend on the model are called by address, too: else every caller had the code of all of them in its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.kernels.compiling import ARE_COMPILED, inline_kernel

if ARE_COMPILED:
    from llvmlite import ir
    from numba import carray, types
    from numba.extending import intrinsic

    from fomo_stream.model.kernels.numba_files import pointer_to

WORDS = 5  # integers for each array: its address, and its sizes
NO_SIZES = (0,) * (WORDS - 1)


class Handle:
    """The address of a list of array addresses; the arrays live as long as the handle.

    tree: nested named tuples and tuples of arrays, numbers and handles, or None. A copy has the addresses of its own
    arrays. Contiguous arrays are not copied: what a kernel writes is in them.
    """

    def __init__(self, *tree: Any) -> None:
        self._tree = tree
        self._leaves: list[Any] = []
        words: list[int] = []
        _add_leaves(tree, self._leaves, words)
        self._words = np.array(words, np.int64)
        self.address: int = self._words.ctypes.data

    def __reduce__(self) -> tuple[type[Handle], tuple[Any, ...]]:
        return Handle, self._tree


def _address_of(array: NDArray[Any]) -> int:
    """Return the address of an array's values; 0 if it has none."""
    if not array.size:
        return 0
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))  # `array.ctypes` takes three times as long
    except TypeError:  # it is read-only
        return int(array.ctypes.data)


def _add_leaves(tree: tuple[Any, ...], leaves: list[Any], words: list[int]) -> None:
    """Add what has an address to the leaves, and its integers to the words. A context has 40 arrays."""
    for part in tree:
        if isinstance(part, tuple):
            _add_leaves(part, leaves, words)
            continue
        if isinstance(part, Handle):
            leaf: Any = part
            words += part.address, 0, 0, 0, 0
        else:
            value = np.zeros(0) if part is None else float(part) if isinstance(part, (int, float)) else part
            leaf = np.ascontiguousarray(value)
            words += _address_of(leaf), *leaf.shape, *NO_SIZES[leaf.ndim :]
        leaves.append(leaf)


if ARE_COMPILED:

    @intrinsic
    def _pointer(_typing: Any, address: Any) -> Any:
        """Return the pointer of an address (int64)."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.voidptr(types.int64), codegen

    @intrinsic
    def call(_typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        """Call the function at an address with five integers."""

        def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            word = ir.IntType(64)
            pointer = builder.inttoptr(arguments[0], ir.FunctionType(ir.VoidType(), [word] * 5).as_pointer())
            builder.call(pointer, arguments[1:])
            return context.get_dummy_value()

        return types.void(*(types.int64,) * 6), codegen

    @cache
    def address_of(function: Any) -> int:
        """Return the address of a kernel of five integers, for `call`."""
        address: int = pointer_to(function, types.void(*(types.int64,) * 5))
        return address

else:
    _FUNCTIONS: dict[int, Callable[..., Any]] = {}

    def _pointer(address: Any) -> Any:
        return int(address)

    def call(function: Any, *arguments: Any) -> None:
        _FUNCTIONS[function](*arguments)

    @cache
    def address_of(function: Any) -> int:
        _FUNCTIONS[id(function)] = function
        return id(function)

    def carray(address: Any, shape: Any, kind: Any) -> Any:
        """The array of this shape and type at an address."""
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        if not size:
            return np.zeros(shape, kind)
        return np.frombuffer((ctypes.c_char * size).from_address(address), kind).reshape(shape)


@inline_kernel
def words_at(address):
    """Return the integers (2 ** 20,) of the handle at an address; only the first of them belong to it."""
    return carray(_pointer(address), (1 << 20,), np.int64)


@inline_kernel
def scalar(words, i):
    """Return array i of a handle, which has one float64."""
    return carray(_pointer(words[i * WORDS]), (1,), np.float64)[0]


@inline_kernel
def row(words, i, kind):
    """Array i (a,) of this type."""
    return carray(_pointer(words[i * WORDS]), (words[i * WORDS + 1],), kind)


@inline_kernel
def table(words, i, kind):
    """Array i (a, b) of this type."""
    k = i * WORDS
    return carray(_pointer(words[k]), (words[k + 1], words[k + 2]), kind)


@inline_kernel
def cube(words, i, kind):
    """Array i (a, b, c) of this type."""
    k = i * WORDS
    return carray(_pointer(words[k]), (words[k + 1], words[k + 2], words[k + 3]), kind)


@inline_kernel
def cubes(words, i, kind):
    """Array i (a, b, c, d) of this type."""
    k = i * WORDS
    return carray(_pointer(words[k]), (words[k + 1], words[k + 2], words[k + 3], words[k + 4]), kind)


@inline_kernel
def first_of_row(words, i, n, kind):
    """The first n numbers of array i (a,) of this type."""
    return carray(_pointer(words[i * WORDS]), (n,), kind)


@inline_kernel
def first_of_table(words, i, n, kind):
    """The first n rows of array i (a, b) of this type."""
    k = i * WORDS
    return carray(_pointer(words[k]), (n, words[k + 2]), kind)


@inline_kernel
def first_of_cube(words, i, n, kind):
    """The first n tables of array i (a, b, c) of this type."""
    k = i * WORDS
    return carray(_pointer(words[k]), (n, words[k + 2], words[k + 3]), kind)


@inline_kernel
def rows_at(address, n, d):
    """Rows (n, d) of float64 at an address."""
    return carray(_pointer(address), (n, d), np.float64)


@inline_kernel
def numbers_at(address, n):
    """Numbers (n,) of float64 at an address."""
    return carray(_pointer(address), (n,), np.float64)
