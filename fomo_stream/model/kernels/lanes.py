"""Sixteen numbers at a time, for loops that a compiler vectorises badly: with checks before each.

LANES float32, or as many int32 counts, are one variable of a kernel, which the processor keeps in registers. Also:
parts of arrays at no cost (`span`).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model
from numba.np.arrayobj import populate_array

LANES = 16


class _Singles(types.Type):
    """LANES float32."""


class _Counts(types.Type):
    """LANES int32."""


_FLOATS, _INTEGERS = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(ir.IntType(32), LANES)
_EACH = ir.Constant(_INTEGERS, list(range(LANES)))


def _register(kind: type, vector: Any) -> Any:
    """Have values of this type kept as a vector. Returns the type for signatures."""

    class Model(models.PrimitiveModel):
        def __init__(self, manager: Any, of: Any) -> None:
            super().__init__(manager, of, vector)

    register_model(kind)(Model)
    return kind(kind.__name__)


_singles, _counts = _register(_Singles, _FLOATS), _register(_Counts, _INTEGERS)


def _everywhere(builder: Any, x: Any, vector: Any) -> Any:
    """A number in all lanes."""
    empty = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(empty, x, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, empty, ir.Constant(_INTEGERS, [0] * LANES))


def _pointer(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    """Return the pointer to the lanes of a contiguous array from value `at` on."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), _FLOATS.as_pointer())


@intrinsic
def span(_typing: Any, values: Any, at: Any, count: Any) -> Any:
    """`count` values of a contiguous array of any dimensions, in its order, from value `at` on: (count,), not a copy.

    It has no reference count, as counting costs more than to read a few values. So use it only for arrays that live
    longer: arguments of the kernel, or those that are used after it.
    """
    kind = types.Array(values.dtype, 1, "C")

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = context.make_array(signature.args[0])(context, builder, arguments[0])
        view, size = context.make_array(kind)(context, builder), source.itemsize
        data = builder.gep(source.data, [arguments[1]])
        populate_array(view, data=data, shape=[arguments[2]], strides=[size], itemsize=size, meminfo=None)
        return view._getvalue()

    return kind(values, types.int64, types.int64), codegen


@intrinsic
def lanes_at(_typing: Any, values: Any, at: Any) -> Any:
    """The values (LANES,) of a float32 array of any dimensions, in its order, from value `at` on."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_pointer(context, builder, signature.args[0], *arguments), align=4)

    return _singles(values, types.int64), codegen


@intrinsic
def put_lanes(_typing: Any, values: Any, at: Any, lanes: Any) -> Any:
    """Lanes into a float32 array, from value `at` on."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, start, value = arguments
        builder.store(value, _pointer(context, builder, signature.args[0], array, start), align=4)
        return context.get_dummy_value()

    return types.void(values, types.int64, _singles), codegen


@intrinsic
def all_lanes(_typing: Any, x: Any) -> Any:
    """A float32 in all lanes."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _everywhere(builder, arguments[0], _FLOATS)

    return _singles(types.float32), codegen


@intrinsic
def all_counts(_typing: Any, x: Any) -> Any:
    """An integer in all lanes."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _everywhere(builder, arguments[0], _INTEGERS)

    return _counts(types.int32), codegen


@intrinsic
def add_squares(_typing: Any, total: Any, lanes: Any, x: Any) -> Any:
    """total + (lanes - x) ** 2, the sum with the square in one operation where the processor has it."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
        added = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32")
        part = builder.fsub(arguments[1], _everywhere(builder, arguments[2], _FLOATS))
        return builder.call(added, [part, part, arguments[0]])

    return _singles(_singles, _singles, types.float32), codegen


@intrinsic
def add_products(_typing: Any, total: Any, a: Any, b: Any) -> Any:
    """total + a * b, in one operation where the processor has it."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
        added = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32")
        return builder.call(added, [arguments[1], arguments[2], arguments[0]])

    return _singles(_singles, _singles, _singles), codegen


def _across(builder: Any, lanes: Any, combine: Any) -> Any:
    """All lanes combined to one number, in halves."""
    left = LANES
    while left > 1:
        left //= 2
        order = [(i + left) % LANES for i in range(LANES)]
        lanes = combine(lanes, builder.shuffle_vector(lanes, lanes, ir.Constant(_INTEGERS, order)))
    return builder.extract_element(lanes, ir.Constant(ir.IntType(32), 0))


def _smaller(builder: Any) -> Any:
    return lambda a, b: builder.select(builder.fcmp_ordered("<", a, b), a, b)


@intrinsic
def sum_across(_typing: Any, lanes: Any) -> Any:
    """The sum of all lanes."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _across(builder, arguments[0], builder.fadd)

    return types.float32(_singles), codegen


@intrinsic
def least_across(_typing: Any, lanes: Any) -> Any:
    """The smallest of all lanes."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _across(builder, arguments[0], _smaller(builder))

    return types.float32(_singles), codegen


@intrinsic
def least(_typing: Any, a: Any, b: Any) -> Any:
    """The smaller value in each lane."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _smaller(builder)(*arguments)

    return _singles(_singles, _singles), codegen


@intrinsic
def count_if(_typing: Any, counts: Any, x: Any, lanes: Any, at: Any) -> Any:
    """counts, and 1 more where x < lanes, or equal if the lane's number is above `at`; none is negative.

    Such numbers are in the order of their bits, and a whole number that is equal to x is larger than x - 1.
    """

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        number, value, lanes, at = arguments
        bits = _everywhere(builder, builder.bitcast(value, ir.IntType(32)), _INTEGERS)
        after = builder.icmp_signed(">", _EACH, _everywhere(builder, at, _INTEGERS))
        less = builder.add(bits, builder.sext(after, _INTEGERS))
        larger = builder.icmp_signed(">", builder.bitcast(lanes, _INTEGERS), less)
        return builder.sub(number, builder.sext(larger, _INTEGERS))

    return _counts(_counts, types.float32, _singles, types.int32), codegen


@intrinsic
def smallest_with(_typing: Any, counts: Any, k: Any, lanes: Any) -> Any:
    """Return the smallest of the lanes whose counts are at least k, or infinity without such a lane."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        number, k, lanes = arguments
        has = builder.icmp_signed(">=", number, _everywhere(builder, k, _INTEGERS))
        candidates = builder.select(has, lanes, ir.Constant(_FLOATS, [float("inf")] * LANES))
        return _across(builder, candidates, _smaller(builder))

    return types.float32(_counts, types.int32, _singles), codegen


@intrinsic
def put_counts(_typing: Any, values: Any, at: Any, counts: Any) -> Any:
    """Counts into an int32 array, from value `at` on."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, start, value = arguments
        place = builder.bitcast(_pointer(context, builder, signature.args[0], array, start), _INTEGERS.as_pointer())
        builder.store(value, place, align=4)
        return context.get_dummy_value()

    return types.void(values, types.int64, _counts), codegen


@intrinsic
def up_to(_typing: Any, lanes: Any, bound: Any) -> Any:
    """A bit for each lane that is at most `bound`."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        smaller = builder.fcmp_ordered("<=", arguments[0], _everywhere(builder, arguments[1], _FLOATS))
        return builder.zext(builder.bitcast(smaller, ir.IntType(LANES)), ir.IntType(64))

    return types.uint64(_singles, types.float32), codegen


@intrinsic
def trailing_zeros(_typing: Any, bits: Any) -> Any:
    """The number of the lowest bit that is set; 64 without any."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), codegen


@intrinsic
def bits_set(_typing: Any, bits: Any) -> Any:
    """Return how many bits are set."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), codegen
