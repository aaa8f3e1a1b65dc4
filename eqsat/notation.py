"""The language: scalar expressions over named axes (terms), stored tensors, and kernels.

A term says what one element is; `store` says over which axes it is written. Views do not exist (they are indices),
operands broadcast by axis name, and a kernel is what lies between its loads and its stores. Terms are immutable and
interned: equal terms are one object, so they compare by identity and every fact about them is computed once.
The meaning of each form is `eqsat.evaluate`.

====================================  ======================================================================
form                                  meaning
====================================  ======================================================================
load(tensor, index, operands)         element of a stored tensor; outside its bounds it reads 0
const(value, dtype), pos(index, ..)   a literal; the value of an index expression (iota)
scalar(op, *args), cast(dtype, arg)   a row of `eqsat.scalars`; conversion with JAX's rounding
reduce(name, axis, arg)               fold over all values of an axis, which it binds
online(axis, s, v, weight)            sum over k of cast(weight, exp(s - max_k s)) * v, in one pass over k; other reductions that
                                      depend on another over the same axis are the rows of `eqsat.online`
scan(name, axis, arg, reverse)        fold over all positions of a free axis up to one's own, or from it on; only when a kernel
                                      is priced and lowered: elsewhere it is a masked fold (see `eqsat.scans`); "softsum" is that
                                      of an online sum, with the scores behind `reverse`
====================================  ======================================================================
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any
from weakref import WeakValueDictionary

from eqsat.index import Axis, Dynamic, Index, Quotient, Remainder
from eqsat.scalars import DTYPES, REDUCTIONS, SCALARS, element_nbytes


@dataclass(frozen=True, eq=False)
class Tensor:
    """An array in device memory; compared by identity.

    A tensor without a definition is a leaf: an input, or the buffer that another kernel or an opaque call fills.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * element_nbytes(self.dtype)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{','.join(map(str, self.shape))}]"

    __repr__ = __str__


@dataclass(frozen=True, eq=False, repr=False)
class Stored(Tensor):
    """A tensor that holds `term` over `axes`: one axis per dimension of extent above 1, in order of dimensions."""

    term: Term
    axes: tuple[Axis, ...]

    @property
    def roots(self) -> tuple[Term, ...]:
        """The terms that writing it takes."""
        return (self.term,)

    @property
    def written_nbytes(self) -> int:
        return self.nbytes


@dataclass(frozen=True, eq=False, repr=False)
class Window(Stored):
    """An output of which `term`, over `axes`, is written at `places`; elsewhere it stays what `base` is, in whose buffer it lies.

    One place per dimension; a Dynamic atom stands for the operand with its slot number. Places outside of the tensor are not
    written. Where it `adds`, the term is added to what is there, also several times in one place; without a base that is zeros.
    Where it does not add, and has no base, its places are all of the tensor.
    """

    base: Tensor | None
    places: tuple[Index, ...]
    operands: tuple[Term, ...]
    adds: bool = False

    @property
    def roots(self) -> tuple[Term, ...]:
        return (self.term, *self.operands)

    @property
    def zeroed(self) -> bool:
        """True if it must be zeros before it is written."""
        return self.adds and self.base is None

    @property
    def written_nbytes(self) -> int:
        """With what adding reads, and the zeros."""
        own = prod(a.extent for a in self.axes) * element_nbytes(self.dtype)
        return own * 2 + self.nbytes * self.zeroed if self.adds else min(own, self.nbytes)


def output_axes(shape: Iterable[int]) -> tuple[Axis, ...]:
    """The axes x0, x1, ... of a shape; a dimension of extent 1 has none, and its position counts all the same."""
    return tuple(Axis(f"x{d}", n) for d, n in enumerate(shape) if n != 1)


def dimension_indices(shape: Iterable[int], axes: Iterable[Axis]) -> tuple[Index, ...]:
    """One index per dimension of `shape`, taking an axis for each extent other than 1."""
    rest = iter(axes)
    return tuple(Index.of(next(rest)) if n != 1 else Index() for n in shape)


class Term:
    """An immutable, interned expression. `head` names the form or scalar op, `data` holds what is not a term."""

    __slots__ = ("__dict__", "__weakref__", "args", "data", "dtype", "head", "serial")
    _table: WeakValueDictionary[tuple[Any, ...], Term] = WeakValueDictionary()
    _serials = itertools.count()

    head: str
    args: tuple[Term, ...]
    data: Any
    dtype: str
    serial: int  # order of creation

    def __new__(cls, head: str, args: tuple[Term, ...], data: Any, dtype: str) -> Term:
        key = (head, args, data, dtype)
        found = cls._table.get(key)
        if found is None:
            found = object.__new__(cls)
            found.head, found.args, found.data, found.dtype = key
            found.serial = next(cls._serials)
            cls._table[key] = found
        return found

    @cached_property
    def axes(self) -> frozenset[Axis]:
        """The free axes."""
        free: set[Axis] = set().union(*(a.axes for a in self.args))
        if self.head in ("load", "pos"):
            for index in self.indices:
                free |= index.axes
        if self.head == "scan":
            free.add(self.data[1])
        if (bound := self.bound) is not None:
            free.discard(bound)
        return frozenset(free)

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that loads read, in order of first use."""
        return tuple(dict.fromkeys(t.tensor for t in self.walk() if t.head == "load"))

    @property
    def indices(self) -> tuple[Index, ...]:
        """Index expressions of a load or pos."""
        return self.data[1] if self.head == "load" else (self.data,)

    @property
    def tensor(self) -> Tensor:
        """The tensor that a load reads."""
        return self.data[0]

    @property
    def bound(self) -> Axis | None:
        """The axis that a reduction binds."""
        return self.data[1] if self.head in ("reduce", "online") else None

    def walk(self) -> Iterator[Term]:
        """Each distinct subterm once, operands first."""
        seen: set[Term] = set()
        stack: list[tuple[Term, bool]] = [(self, False)]
        while stack:
            term, ready = stack.pop()
            if ready:
                yield term
            elif term not in seen:
                seen.add(term)
                stack.append((term, True))
                stack.extend((a, False) for a in reversed(term.args))

    def __repr__(self) -> str:
        from eqsat.formula import formula  # printing is built on the language

        return formula(self)


def const(value: float | int | bool, dtype: str) -> Term:
    """A literal; float values are kept as Python floats (signed zeros and NaN included), integers as ints."""
    kind = DTYPES[dtype].kind
    value = bool(value) if kind == "bool" else float(value) if kind == "float" else int(value)
    return Term("const", (), (repr(value), value) if value == value else ("nan", None), dtype)


def const_value(term: Term) -> float | int | bool:
    """The Python number of a const term."""
    return float("nan") if term.data[1] is None else term.data[1]


def pos(index: Index, dtype: str) -> Term:
    """The value of an index expression."""
    return Term("pos", (), index, dtype)


def load(tensor: Tensor, index: Iterable[Index], operands: tuple[Term, ...] = ()) -> Term:
    """One element of `tensor`; a `Dynamic` atom in the index stands for the operand with its slot number."""
    index = tuple(index)
    if len(index) != len(tensor.shape):
        raise ValueError(f"load of {tensor}: one index per dimension, got {len(index)}")
    return Term("load", operands, (tensor, index), tensor.dtype)


def scalar(op: str, *args: Term) -> Term:
    """A scalar operation of the table; operands have one dtype (the predicate of `where` is bool)."""
    row = SCALARS[op]
    typed = args[1:] if op == "where" else args
    if len(args) != row.arity or any(a.dtype != typed[0].dtype for a in typed):
        raise TypeError(f"{op}: {row.arity} operands of one dtype, got {', '.join(a.dtype for a in args)}; cast first")
    if DTYPES[typed[0].dtype].kind not in row.kinds or (op == "where" and args[0].dtype != "bool"):
        raise TypeError(f"{op}: operands of kind {', '.join(row.kinds)}, got {', '.join(a.dtype for a in args)}")
    return Term(op, args, None, "bool" if row.result == "bool" else typed[0].dtype)


def cast(dtype: str, arg: Term) -> Term:
    """Conversion; to the same dtype it is the operand itself."""
    return arg if arg.dtype == dtype else Term("cast", (arg,), None, dtype)


def reduce(name: str, axis: Axis, arg: Term) -> Term:
    """Fold `arg` over `axis` with a row of REDUCTIONS."""
    if DTYPES[arg.dtype].kind not in REDUCTIONS[name].kinds:
        raise TypeError(f"reduce {name}: operand of kind {', '.join(REDUCTIONS[name].kinds)}, got {arg.dtype}")
    return Term("reduce", (arg,), (name, axis), arg.dtype)


def online(axis: Axis, s: Term, v: Term, weight: str, name: str = "softmax") -> Term:
    """A reduction in one pass by a row of `eqsat.online`; of a softmax the sum of ``cast(weight, exp(s - max s)) * v``.

    `weight` is the dtype to which the exponential is rounded; other rows round nothing, and have that of `s` there.
    """
    return Term("online", (s, v), (name, axis, weight), v.dtype)


def scan(name: str, axis: Axis, arg: Term, reverse: bool, *scores: Term) -> Term:
    """The running fold of `arg` along `axis`, which stays free."""
    return Term("scan", (arg, *scores), (name, axis, reverse), arg.dtype)


def rebuild(term: Term, args: tuple[Term, ...]) -> Term:
    """The same form over other operands."""
    return term if args == term.args else Term(term.head, args, term.data, term.dtype)


def substitute(
    term: Term, values: Mapping[Axis, Index], memo: dict[Any, Term] | None = None, operands: tuple[Term, ...] = ()
) -> Term:
    """Replace free axes by index expressions; `memo` may be shared between calls with the same values.

    A Dynamic atom in a value stands for one of `operands`. A bound axis shadows a value of its name. Raises ValueError
    where a value mentions an axis that is bound at a place where it would be captured (see `level_of` for how names are
    chosen so that this does not happen).
    """
    memo = {} if memo is None else memo
    live = term.axes & values.keys()
    if not live:
        return term
    found = memo.get(term)
    if found is not None:
        return found
    if term.head == "load":
        tensor, index = term.data
        own = tuple(substitute(a, values, memo, operands) for a in term.args)
        result = _load_at(tensor, [i.substitute(_shifted(values, len(own))) for i in index], own, operands)
    elif term.head == "pos":
        result = _position(term.data.substitute(values), term.dtype, operands)
    elif term.head == "scan":
        result = _scan_along(term, values, tuple(substitute(a, values, memo, operands) for a in term.args))
    elif (bound := term.bound) is not None:
        if any(bound in values[axis].axes for axis in live) or any(bound in o.axes for o in operands):
            raise ValueError(f"substitution into {term}: index values may not mention the bound axis {bound}")
        inner = {axis: value for axis, value in values.items() if axis != bound}
        scope = memo if len(inner) == len(values) else {}
        result = rebuild(term, tuple(substitute(a, inner, scope, operands) for a in term.args))
    else:
        result = rebuild(term, tuple(substitute(a, values, memo, operands) for a in term.args))
    memo[term] = result
    return result


def _scan_along(term: Term, values: Mapping[Axis, Index], args: tuple[Term, ...]) -> Term:
    """A scan along another axis of the same positions."""
    name, axis, reverse = term.data
    target = values.get(axis, Index.of(axis))
    other = next(iter(target.axes), axis)
    if target != Index.of(other) or other.extent != axis.extent or any(other in v.axes for a, v in values.items() if a != axis):
        raise ValueError(f"substitution into {term}: a scan along {axis} needs an axis of its own, got {target}")
    return scan(name, other, args[0], reverse, *args[1:])


def _shifted(values: Mapping[Axis, Index], by: int) -> Mapping[Axis, Index]:
    """Values whose slots come after `by` others."""
    if not by or not any(v.slots for v in values.values()):
        return values
    return {axis: v.renumber({slot: slot + by for slot in v.slots}) for axis, v in values.items()}


def _load_at(tensor: Tensor, index: list[Index], own: tuple[Term, ...], operands: tuple[Term, ...]) -> Term:
    """A load whose slots refer to own + operands, with only the operands that it uses."""
    every = own + operands
    used = sorted(frozenset().union(*(i.slots for i in index)))
    numbers = {slot: n for n, slot in enumerate(used)}
    return load(tensor, (i.renumber(numbers) for i in index), tuple(every[slot] for slot in used))


def _position(index: Index, dtype: str, operands: tuple[Term, ...]) -> Term:
    """The value of an index whose Dynamic atoms stand for operands."""
    if not index.slots:
        return pos(index, dtype)
    static = Index(tuple((a, c) for a, c in index.terms if not Index(((a, 1),)).slots), index.constant)
    total = pos(static, dtype)
    for atom, coefficient in index.terms:
        if isinstance(atom, Dynamic):
            total = scalar("add", total, scalar("mul", cast(dtype, operands[atom.slot]), const(coefficient, dtype)))
        elif Index(((atom, 1),)).slots:
            raise ValueError(f"position {index}: an affine function of loaded values required")
    return total


@dataclass(frozen=True)
class Kernel:
    """One launch: what lies between its loads and its stores.

    Every output's term loads only leaf tensors. All outputs share an iteration space: the axes of the first output
    contain those of the others. An `exact` kernel does what its operations do one by one: it rounds each product before it adds
    it, visits what a mask gives the weight 0 in a sum of products, which may be NaN (see `eqsat.limits`), and adds floats in the
    same order whenever it runs (see `eqsat.scatters`). An output may take over the buffer of an input that is `donated` (see
    `eqsat.updates`).
    """

    name: str
    outputs: tuple[Stored, ...]
    exact: bool = True
    donated: frozenset[Tensor] = frozenset()

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        """Tensors read, in order of first use."""
        return tuple(dict.fromkeys(t.tensor for t in self.terms if t.head == "load"))

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """Distinct subterms of all outputs, operands first."""
        return tuple(dict.fromkeys(t for o in self.outputs for root in o.roots for t in root.walk()))

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The output axes of the kernel."""
        return self.outputs[0].axes

    @property
    def nbytes(self) -> int:
        """Compulsory traffic: each distinct input and output once."""
        return sum(t.nbytes for t in (*self.inputs, *self.outputs))

    @property
    def formula(self) -> str:
        """The kernel in index notation (see `eqsat.formula.named_formula`)."""
        from eqsat.formula import named_formula  # printing is built on the language

        return named_formula(self)


# --- names of bound axes ----------------------------------------------------------------------------------------


def bound_level(axis: Axis) -> int:
    """Number of a reduction axis: 2 for r2."""
    return int(axis.name[1:])


def level_of(terms: Iterable[Term], axes: Iterable[Axis]) -> int:
    """The lowest level at which a new reduction over `axes` captures nothing.

    A term that mentions one of `axes` below a binder of level n needs a level above n, since the axes will be replaced
    by the new bound axis there. Using the lowest level gives alpha-equal reductions equal names.
    """
    wanted = frozenset(axes)
    memo: dict[Term, int] = {}

    def visit(term: Term) -> int:
        if not (term.axes & wanted):
            return 0
        if term not in memo:
            below = max((visit(a) for a in term.args), default=0)
            bound = term.bound
            memo[term] = max(below, bound_level(bound) + 1) if bound is not None else below
        return memo[term]

    return max((visit(t) for t in terms), default=0)


def raised(term: Term, levels: int) -> Term:
    """The term with its reductions so many levels higher, where binders below those levels capture nothing of it."""
    memo: dict[Term, Term] = {}
    for t in term.walk():
        args = tuple(memo[a] for a in t.args)
        if (axis := t.bound) is None:
            memo[t] = rebuild(t, args)
        else:
            higher = Axis(f"r{bound_level(axis) + levels}", axis.extent)
            data = (t.data[0], higher, *t.data[2:])
            memo[t] = Term(t.head, tuple(substitute(a, {axis: Index.of(higher)}) for a in args), data, t.dtype)
    return memo[term]


def operands_of(term: Term, head: str) -> tuple[Term, ...]:
    """The operands of an operation nested in itself, left to right: the factors of a product ("mul"), the parts of an "and"."""
    found: list[Term] = []
    stack = [term]
    while stack:
        top = stack.pop()
        if top.head == head:
            stack.extend(reversed(top.args))
        else:
            found.append(top)
    return tuple(found)


def crossed(product: Term) -> Iterator[tuple[Term, Term]]:
    """Pairs of factors of which each has an axis that the other lacks: what a product of matrices multiplies."""
    pairs = itertools.combinations(operands_of(product, "mul"), 2)
    return ((a, b) for a, b in pairs if a.axes - b.axes and b.axes - a.axes)


def is_box(index: Index) -> bool:
    """True for an affine index without quotients, remainders or loaded values."""
    return not any(isinstance(a, Quotient | Remainder) for a, _ in index.terms) and not index.slots
