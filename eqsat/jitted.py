"""`eqsat.jit`: a function that runs as the program optimised for the arguments it is called with, in place of `jax.jit`.

`jax.jit` itself does the dispatch. So a call costs what it costs there, and what makes `jax.jit` trace anew (shapes, dtypes,
weak types, shardings, static arguments, the structure of the arguments, JAX's settings) makes this trace anew. A program is
searched for what was traced, unless it is known, and bound in its place (`eqsat.transform`).
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax

from eqsat.graph import Graph, Static, lifted, trace
from eqsat.misuse import untraceable_call
from eqsat.optimizer import checked, optimize
from eqsat.program import KEEP_CASTS, Program
from eqsat.rule import Rule
from eqsat.transform import apply, traced

Settings = dict[str, Any]


class Jitted:
    """A function that runs as optimised programs; made by `jit`. It may be called by several threads."""

    def __init__(
        self, fn: Callable[..., Any], options: Settings, static: Settings, donated: Settings, notes: Settings | None = None
    ) -> None:
        functools.update_wrapper(self, fn)
        self._fn, self._options, self._static, self._donate = fn, options, static, _positions(fn, **donated)
        self._programs: dict[Hashable, Program] = {}
        self._notes = notes or {}
        self._lock = threading.RLock()

        def run(donate: tuple[int, ...]) -> Callable[..., Any]:
            return functools.wraps(fn)(lambda *args, **kwargs: self._run(args, kwargs, donate))

        self._outermost: Any = jax.jit(run(self._donate), compiler_options=KEEP_CASTS, **static, **donated)
        self._inner: Any = jax.jit(run(()), **static, **donated)  # JAX takes compiler options at the outermost only

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._called(self._inner if traced() else self._outermost, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method: `self` is an argument like any other, as it is for `jax.jit`."""
        return self if instance is None else functools.partial(self, instance)

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs made so far."""
        with self._lock:
            return tuple(self._programs.values())

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The program for arguments, which may be `jax.ShapeDtypeStruct`s; searched if it is not known."""
        found: list[Program] = []

        def run(*args: Any, **kwargs: Any) -> tuple[()]:
            found.append(self._program(self._graph(args, kwargs), self._donate))
            return ()

        self._called(jax.jit(functools.wraps(self._fn)(run), **self._static).eval_shape, args, kwargs)
        return found[-1]

    def clear_cache(self) -> None:
        """Forget the programs and what was compiled."""
        with self._lock:
            self._programs.clear()
        self._outermost.clear_cache()
        self._inner.clear_cache()

    def _called(self, jitted: Callable[..., Any], args: tuple[Any, ...], kwargs: Settings) -> Any:
        """A call of what `jax.jit` made; its errors about values and static arguments say what to do."""
        try:
            return jitted(*args, **kwargs)
        except Exception as error:
            if (said := untraceable_call(self._fn, error)) is None:
                raise
            raise said from error

    def _run(self, args: tuple[Any, ...], kwargs: Settings, donate: tuple[int, ...]) -> Any:
        """While `jax.jit` traces: the program's results. An outer trace may need what is donated: then `donate` is empty."""
        graph = self._graph(args, kwargs)
        flat = [leaf for leaf in jax.tree_util.tree_leaves((args, kwargs)) if isinstance(leaf, jax.core.Tracer)]
        captured, graph = lifted(graph)
        results = apply(self._program(graph, () if captured else donate).function, [*captured, *flat])
        return jax.tree_util.tree_unflatten(graph.out_tree, results)

    def _graph(self, args: tuple[Any, ...], kwargs: Settings) -> Graph:
        """What `jax.jit` traces is a tracer; what it does not is static."""

        def marked(leaf: Any) -> Any:
            return leaf if isinstance(leaf, jax.core.Tracer) else Static(leaf)

        args, kwargs = jax.tree_util.tree_map(marked, (args, kwargs))
        return trace(self._fn, args, kwargs)

    def _program(self, graph: Graph, donate: tuple[int, ...]) -> Program:
        """The program of what was traced: equal text over the same constants is the same function."""
        closed = graph.jaxpr
        key = (str(closed.jaxpr), tuple(map(str, closed.in_avals)), graph.out_tree, tuple(map(id, closed.consts)), donate)
        with self._lock:
            if key not in self._programs:
                with jax.ensure_compile_time_eval():
                    self._programs[key] = optimize(graph, **self._options, donate=donate)
                self._programs[key].notes.update(self._notes)
            return self._programs[key]  # which holds the constants, so that their ids stay theirs


def _positions(
    fn: Callable[..., Any], donate_argnums: int | Sequence[int] | None, donate_argnames: str | Iterable[str] | None
) -> tuple[int, ...]:
    """The positions of the arguments that are donated, by number or by name."""
    numbers = [donate_argnums] if isinstance(donate_argnums, int) else list(donate_argnums or ())
    names = [donate_argnames] if isinstance(donate_argnames, str) else list(donate_argnames or ())
    try:
        known = list(inspect.signature(fn).parameters)
    except ValueError:  # a builtin
        known = []
    return tuple(dict.fromkeys([*numbers, *(known.index(name) for name in names if name in known)]))


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    target: str = "h100",
    numerics: str = "reassociate",
    objective: str = "time",
    time_limit: float = 30.0,
    rules: Iterable[Rule] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    shapes: Any = None,
    buckets: Mapping[str, Sequence[int]] | None = None,
) -> Any:
    """As `jax.jit`, with what `eqsat.optimize` makes of the function; also a decorator, with or without options.

    target, numerics, objective, time_limit, rules: as for `eqsat.optimize`. static_*, donate_*: as for `jax.jit`. Arrays that the
    function closes over are constants: what depends on them alone is computed once. Gradients, batched forms and loops over the
    function are optimised as programs of their own when they are first needed.

    shapes, buckets: for arguments of many sizes. `shapes` names sizes, as `jax.export.symbolic_args_specs` takes them:
    ``(None, "batch, seq, ...")``; `buckets` lists extents for each name: ``{"batch": (1, 8), "seq": (128, 512)}``. A call runs
    the program of the smallest extents that hold its sizes, so that there are at most as many programs as buckets. Its results
    are those of the function, at any size: a function for which that can't be proved is refused (`eqsat.padding`). Arguments
    are positional. Filling and cutting arrays are small programs of XLA, one for each size. A model's function
    (`eqsat.function`) has shapes of its own.

    Returns a `Jitted`, or a `Bucketed`. Raises ValueError for an unknown target, tier or objective; a call raises what tracing
    `fn` raises, and TypeError or ValueError that says what to do where that is an error of JAX about values or static arguments.
    """
    if fn is None:
        options = {k: v for k, v in locals().items() if k != "fn"}
        return functools.partial(jit, **options)
    if not callable(fn):
        raise TypeError(f"eqsat.jit: a function required, got {type(fn).__name__}")
    checked(target, numerics, objective, time_limit)
    rules = None if rules is None else tuple(rules)
    options = {"target": target, "numerics": numerics, "objective": objective, "time_limit": time_limit, "rules": rules}
    if buckets is not None and shapes is None:
        shapes = getattr(fn, "shapes", None)
    if shapes is not None or buckets is not None:
        return _bucketed(fn, options, shapes, buckets, (static_argnums, static_argnames, donate_argnums, donate_argnames))
    static = {"static_argnums": static_argnums, "static_argnames": static_argnames}
    return Jitted(fn, options, static, {"donate_argnums": donate_argnums, "donate_argnames": donate_argnames})


def _bucketed(fn: Callable[..., Any], options: Settings, shapes: Any, buckets: Any, others: Sequence[Any]) -> Any:
    from eqsat.buckets import Bucketed

    if shapes is None or not buckets:
        raise ValueError(
            "eqsat.jit: both shapes= and buckets= required, got one of them; name sizes in shapes=, list extents in buckets="
        )
    if any(o is not None for o in others):
        raise ValueError("eqsat.jit: buckets= without static and donated arguments required; bind them with functools.partial")
    return Bucketed(fn, options, shapes, buckets)
