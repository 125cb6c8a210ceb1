"""Arrays handed over by address: one integer costs nothing as an argument, dozens of arrays cost more than a score.

A handle is an array of integers, WORDS for each array of a tree: its address, and its sizes. `Handle` in
`fomo_stream.model.compiled` makes it; here it is read. Nothing is checked: positions, types and dimensions must be
those that it was made of.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from fomo_stream.model.kernels.compiling import exact_kernel

WORDS = 5


@intrinsic
def _pointer(_typing: Any, address: Any) -> Any:
    """What is at an address (int64)."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.voidptr(types.int64), codegen


@exact_kernel
def words_at(address):
    """The handle (2 ** 20,) at an address; it ends before."""
    return carray(_pointer(address), (1 << 20,), np.int64)


@exact_kernel
def number(words, i):
    """Array i of a handle, which has one float64."""
    return carray(_pointer(words[i * WORDS]), (1,), np.float64)[0]


@exact_kernel
def truths(words, i):
    """Array i (a,), bool."""
    return carray(_pointer(words[i * WORDS]), (words[i * WORDS + 1],), np.bool_)


@exact_kernel
def doubles(words, i):
    """Array i (a,), float64."""
    return carray(_pointer(words[i * WORDS]), (words[i * WORDS + 1],), np.float64)


@exact_kernel
def doubles_2(words, i):
    """Array i (a, b), float64."""
    k = i * WORDS
    return carray(_pointer(words[k]), (words[k + 1], words[k + 2]), np.float64)


@exact_kernel
def doubles_3(words, i):
    """Array i (a, b, c), float64."""
    k = i * WORDS
    return carray(_pointer(words[k]), (words[k + 1], words[k + 2], words[k + 3]), np.float64)


@exact_kernel
def singles(words, i):
    """Array i (a,), float32."""
    return carray(_pointer(words[i * WORDS]), (words[i * WORDS + 1],), np.float32)


@exact_kernel
def singles_2(words, i):
    """Array i (a, b), float32."""
    k = i * WORDS
    return carray(_pointer(words[k]), (words[k + 1], words[k + 2]), np.float32)


@exact_kernel
def singles_3(words, i):
    """Array i (a, b, c), float32."""
    k = i * WORDS
    return carray(_pointer(words[k]), (words[k + 1], words[k + 2], words[k + 3]), np.float32)


@exact_kernel
def singles_4(words, i):
    """Array i (a, b, c, d), float32."""
    k = i * WORDS
    return carray(_pointer(words[k]), (words[k + 1], words[k + 2], words[k + 3], words[k + 4]), np.float32)
