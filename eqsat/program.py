"""Programs: the kernels and opaque calls that an optimisation ends with; they run, report, validate and save."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from eqsat.control import CONTROL, varying
from eqsat.cost import Cost
from eqsat.graph import Graph, Variable
from eqsat.lower import lower
from eqsat.memory import Use, peak_nbytes
from eqsat.misuse import unlike
from eqsat.notation import Kernel, Tensor
from eqsat.read import Call
from eqsat.running import backend, runner
from eqsat.schedule import Schedule
from eqsat.transform import Function, apply, program_p, traced

if TYPE_CHECKING:
    from os import PathLike

    from eqsat.bisection import Bisection
    from eqsat.explain import Explanation
    from eqsat.optimizer import Request
    from eqsat.validate import Validation

Array = Any

# By default XLA drops casts to a narrow float and back. Its simplifier stays on: without it XLA:CPU was seen to compute
# programs with `scan`, and a deep convolution network, wrongly.
KEEP_CASTS = {"xla_allow_excess_precision": False}


@dataclass(frozen=True, eq=False)
class PlannedKernel:
    """One launch: a kernel, bound to the program's tensors.

    `inputs` and `outputs` are the tensors that stand for the kernel's own, so that equal kernels can be one object.
    A `constant` step depends on constants only and runs once; it needs no schedule.
    """

    kernel: Kernel
    schedule: Schedule | None
    cost: Cost
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    constant: bool = False
    numerics: str = "exact"  # what may be changed where an array library runs it

    def __post_init__(self) -> None:
        if not self.outputs:  # a kernel over the program's own tensors
            object.__setattr__(self, "inputs", self.kernel.inputs)
            object.__setattr__(self, "outputs", self.kernel.outputs)

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def formula(self) -> str:
        """The kernel in index notation; long subterms that occur more than once get a line of their own."""
        return self.kernel.formula

    def source(self, target: str = "triton") -> str:
        """The text of a standalone file for a backend: "triton", "pallas", or "jax" for a readable function."""
        module = backend(target)
        if hasattr(module, "emit_module"):
            return module.emit_module([self.kernel], self.numerics)
        if self.schedule is None:
            raise ValueError(f"kernel {self.name}: a schedule required to print it for {target}, got none; it runs once, in JAX")
        return module.emit(lower(self.kernel, self.schedule))

    def __repr__(self) -> str:
        return f"{self.name}: {self.cost.seconds * 1e6:.1f} us, bound by {self.cost.bound}"


Step = PlannedKernel | Call
Launch = Callable[[PlannedKernel, list[Array]], Sequence[Array]]  # runs one kernel


@dataclass(frozen=True)
class Uses:
    """Launches of a kernel in one run, of which loops and branches may leave open how many there are."""

    count: int
    per_iteration: bool = False  # of a loop that ends by its values; `count` is that of one iteration
    at_most: bool = False  # in a branch

    def __add__(self, other: Uses) -> Uses:
        return Uses(self.count + other.count, self.per_iteration or other.per_iteration, self.at_most or other.at_most)

    def within(self, loop: Call) -> Uses:
        """The launches when `loop` runs once."""
        trips, chooses = loop.eqn.trips, CONTROL[loop.eqn.name].chooses
        return Uses(self.count * (1 if trips is None else trips), self.per_iteration or trips is None, self.at_most or chooses)

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else ''}{self.count}{'/iter' if self.per_iteration else ''}"


class Program:
    """A function as kernels in order. Call it like the original; it traces, so `jax.jit` and `jax.vmap` apply."""

    def __init__(
        self,
        graph: Graph,
        inputs: tuple[Tensor, ...],
        constants: Mapping[Tensor, Array],
        steps: Sequence[Step],
        outputs: tuple[Tensor, ...],
        target: str,
        numerics: str,
        baseline: Cost,
        cost: Cost,
        notes: Mapping[str, Any] | None = None,
        request: Request | None = None,
    ) -> None:
        self.graph, self.inputs, self.outputs = graph, inputs, outputs
        self.constants, self.steps = dict(constants), tuple(steps)
        self.target, self.numerics = target, numerics
        self.baseline, self.cost, self.notes = baseline, cost, dict(notes or {})
        self.request = request  # None for a program that no search made
        self._prepared: tuple[tuple[Array, ...], list[Array]] | None = None
        self._check_order()

    def _check_order(self) -> None:
        known = {*self.inputs, *self.constants}
        for step in self.steps:
            missing = [t for t in step.inputs if isinstance(t, Tensor) and t not in known]
            if missing:
                raise ValueError(f"plan of {self.name}: step {step.name} reads {missing[0]}, which no earlier step writes")
            known.update(step.outputs)
        if missing := [t for t in self.outputs if t not in known]:
            raise ValueError(f"plan of {self.name}: output {missing[0]} required, but no step writes it")

    @property
    def name(self) -> str:
        return self.graph.name

    @cached_property
    def launches(self) -> tuple[PlannedKernel, ...]:
        """Every kernel outside of loops and branches, in order; `uses` counts all."""
        return tuple(s for s in self.steps if isinstance(s, PlannedKernel) and not s.constant)

    @cached_property
    def parts(self) -> tuple[Program, ...]:
        """This program and those that its loops and branches hold, each before its own."""
        return (self, *(part for loop in self.loops for program in loop.programs for part in program.parts))

    @cached_property
    def kernels(self) -> tuple[PlannedKernel, ...]:
        """The distinct kernels, in order of first launch; equal parts of the program share theirs."""
        found: dict[Kernel, PlannedKernel] = {}
        for step in self.steps:
            for p in _launched(step):
                found.setdefault(p.kernel, p)
        return tuple(found.values())

    @cached_property
    def uses(self) -> Mapping[Kernel, Uses]:
        """How often each kernel is launched in a run."""
        found: dict[Kernel, Uses] = {}
        for step in self.steps:
            if isinstance(step, Call):
                new = [(kernel, uses.within(step)) for program in step.programs for kernel, uses in program.uses.items()]
            else:
                new = [] if step.constant else [(step.kernel, Uses(1))]
            for kernel, uses in new:
                found[kernel] = found.get(kernel, Uses(0)) + uses
        return found

    @property
    def calls(self) -> tuple[Call, ...]:
        """The equations that JAX evaluates, because they have no reading in index notation; also those in loops."""
        return tuple(s for part in self.parts for s in part.steps if isinstance(s, Call) and s.opaque)

    @property
    def opaque_share(self) -> float:
        """How much of the predicted time `calls` take, if each moves its operands and results once: at least that."""
        opaque = self.notes.get("opaque_seconds", 0.0)
        return opaque / (opaque + self.cost.seconds) if opaque else 0.0

    @property
    def loops(self) -> tuple[Call, ...]:
        """The steps that hold programs: loops, branches, sharded parts."""
        return tuple(s for s in self.steps if isinstance(s, Call) and s.programs)

    @cached_property
    def peak_nbytes(self) -> int:
        """The most bytes of temporaries that are alive at once; outputs and what is computed once are not among them."""
        kept = {*self.outputs, *(t for s in self.steps if _is_constant(s) for t in s.outputs)}
        return peak_nbytes(map(_use, self.steps), kept)

    # --- running

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs for arguments of the structure, shapes and dtypes that the program was made for; uses up donated ones."""
        failure: Exception | None = None
        if (call := self._dispatched) is not None:
            try:
                return call(*args, **kwargs)
            except (TypeError, ValueError) as error:  # also where something traces, since JAX takes no compiler options there
                failure = error
        flat = self.flat(*args, **kwargs)  # says which argument does not fit
        if failure is not None and not traced():
            raise failure
        results = self.run(*flat) if traced() or not self.donated else self._using_up(self.held(flat), *flat)
        return jax.tree_util.tree_unflatten(self.graph.out_tree, results)

    @cached_property
    def _dispatched(self) -> Callable[..., Any] | None:
        """A call as `jax.jit` dispatches it, in compiled code for types that it has seen; None where a call has more to do.

        What comes before is Python's, and slow: other work drives it out of the processor's cache between two calls.
        """
        if self.donated or self.function.in_line:
            return None

        def call(held: list[Array], /, *args: Any, **kwargs: Any) -> Any:
            results = program_p.bind(*held, *self._flat(args, kwargs), function=self.function)
            return jax.tree_util.tree_unflatten(self.graph.out_tree, results)

        if not self._prepared_tensors and not self.constants:
            run: Callable[..., Any] = jax.jit(partial(call, []), compiler_options=KEEP_CASTS)
        else:
            compiled = jax.jit(call, compiler_options=KEEP_CASTS)
            run = partial(compiled, list(self.constants.values()))
            if self._prepared_tensors:
                run = lambda *args, **kwargs: compiled(self._held_by(args, kwargs), *args, **kwargs)  # noqa: E731
        return self.graph.in_mode(run) if self.graph.wide else run

    def _held_by(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Array]:
        """`held`, without a look at the arguments that constant steps do not read if the others are those of the last call."""
        if self._prepared is not None:
            leaves = jax.tree_util.tree_leaves((args, kwargs))
            key, results = self._prepared
            if len(leaves) == len(self.inputs) and all(leaves[n] is a for n, a in zip(self._read_once, key, strict=True)):
                return [*self.constants.values(), *results]
        return self.held(self.flat(*args, **kwargs))

    def flat(self, *args: Any, **kwargs: Any) -> list[Array]:
        """The arguments as a flat list of arrays; raises TypeError or ValueError where they do not fit."""
        with self.graph.mode():
            return self._flat(args, kwargs)

    def _flat(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Array]:
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        if tree != self.graph.in_tree:
            found = unlike(self.name, self.graph.in_tree, tree)
            raise TypeError(f"{self.name}: {found}; call eqsat.optimize again for another structure")
        return [self._argument(v, leaf) for v, leaf in zip(self.graph.inputs, leaves, strict=True)]

    def _argument(self, variable: Variable, value: Any) -> Array:
        try:
            array = value if isinstance(value, jax.Array) else jnp.asarray(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"argument {self.graph.name_of[variable]}: {variable.type} required, got {value!r}") from error
        if array.shape != variable.shape or array.dtype != variable.aval.dtype:
            got = f"{array.dtype}[{','.join(map(str, array.shape))}]"
            kind = ValueError if array.shape != variable.shape else TypeError
            remedy = "call eqsat.optimize again for other shapes and dtypes"
            raise kind(f"argument {self.graph.name_of[variable]}: {variable.type} required, got {got}; {remedy}")
        return array

    def run(self, *flat: Array) -> list[Array]:
        """The flat outputs for flat arguments of the right shapes; under JAX's transformations see `eqsat.transform`."""
        with self.graph.mode():
            return apply(self.function, flat) if traced() else self._compiled(self.held(flat), *flat)

    @cached_property
    def _compiled(self) -> Callable[..., list[Array]]:
        if self.function.in_line:
            return lambda held, *flat: self.apart(held, list(flat))
        return self._jit()

    @cached_property
    def _using_up(self) -> Callable[..., list[Array]]:
        return self._jit(donate_argnums=tuple(1 + leaf for leaf in self.donated))

    def _jit(self, **options: Any) -> Callable[..., list[Array]]:
        bound = lambda held, *flat: program_p.bind(*held, *flat, function=self.function)  # noqa: E731
        return jax.jit(bound, compiler_options=KEEP_CASTS, **options)

    @property
    def donated(self) -> tuple[int, ...]:
        """The flat inputs whose buffers a call takes over."""
        given = () if self.request is None else self.request.donate
        return tuple(leaf for n in given for leaf in self.graph.argument_leaves[n])

    def apart(self, held: list[Array], flat: list[Array]) -> list[Array]:
        """The steps, compiled on their own; only a jit that is not inside another may keep XLA from dropping roundings."""
        return (self._inner if traced() else self._outermost)(held, flat)

    @cached_property
    def _outermost(self) -> Callable[[list[Array], list[Array]], list[Array]]:
        return jax.jit(self.evaluate, compiler_options=KEEP_CASTS)

    @cached_property
    def _inner(self) -> Callable[[list[Array], list[Array]], list[Array]]:
        return jax.jit(self.evaluate)

    @cached_property
    def function(self) -> Function:
        """The program to JAX's transformations."""
        again = None if self.request is None else replace(self.request, constants=(), donate=()).optimize
        return Function(self.name, self.graph.jaxpr, again, program=self)

    def held(self, flat: Sequence[Array]) -> list[Array]:
        """What a run needs besides its arguments: constants, and what was computed from them once if that is possible."""
        if not self._prepared_tensors:
            return list(self.constants.values())
        with jax.ensure_compile_time_eval():
            return [*self.constants.values(), *self._once(flat)]

    def evaluate(self, held: Sequence[Array], flat: Sequence[Array]) -> list[Array]:
        """The flat outputs, step after step; traceable."""
        constants, prepared = held[: len(self.constants)], held[len(self.constants) :]
        values = self._values(constants, flat)
        if len(prepared) == len(self._prepared_tensors):
            values.update(zip(self._prepared_tensors, prepared, strict=True))
            self._run_steps([s for s in self.steps if not _is_constant(s)], values)
        else:
            self._run_steps(self.steps, values)
        return [values[t] for t in self.outputs]

    def inline(self, *flat: Array, launch: Launch | None = None) -> list[Array]:
        """The flat outputs, step after step with nothing compiled apart: how a loop runs its body; traceable.

        `launch` runs the kernels outside of loops in place of what this machine would run them by.
        """
        values = self._values(list(self.constants.values()), list(flat))
        self._run_steps(self.steps, values, launch)
        return varying([values[t] for t in self.outputs], self.graph.outputs)

    def _evaluate_once(self, constants: list[Array], given: list[Array]) -> list[Array]:
        """The constant steps, from the inputs that they read."""
        values = dict(zip(self.constants, constants, strict=True))
        values.update(zip((self.inputs[n] for n in self._read_once), given, strict=True))
        self._run_steps([s for s in self.steps if _is_constant(s)], values)
        return [values[t] for t in self._prepared_tensors]

    def _values(self, constants: Sequence[Array], flat: Sequence[Array]) -> dict[Tensor, Array]:
        values = dict(zip(self.inputs, flat, strict=True))
        values.update(zip(self.constants, constants, strict=True))
        return values

    def _run_steps(self, steps: Sequence[Step], values: dict[Tensor, Array], launch: Launch | None = None) -> None:
        run: Launch = launch or runner(self.target)
        for step in steps:
            if isinstance(step, Call):
                results: Sequence[Array] = step.run([values[x] if isinstance(x, Tensor) else x for x in step.inputs])
            else:
                results = run(step, [values[t] for t in step.inputs])
            values.update(zip(step.outputs, results, strict=True))

    @cached_property
    def _prepared_tensors(self) -> tuple[Tensor, ...]:
        """What constant steps compute and others use."""
        made = [t for s in self.steps if isinstance(s, PlannedKernel) and s.constant for t in s.outputs]
        used = {t for s in self.steps if not _is_constant(s) for t in s.inputs if isinstance(t, Tensor)} | set(self.outputs)
        return tuple(t for t in made if t in used)

    @cached_property
    def _read_once(self) -> tuple[int, ...]:
        """The flat inputs that constant steps read."""
        read = {t for s in self.steps if _is_constant(s) for t in s.inputs}
        return tuple(n for n, t in enumerate(self.inputs) if t in read)

    def _once(self, flat: Sequence[Array]) -> list[Array]:
        """The values of constant steps: kept as long as the arguments that they depend on are the same arrays.

        None where these arguments are being traced.
        """
        if not self._prepared_tensors:
            return []
        key = tuple(flat[n] for n in self._read_once)
        if self._prepared is not None and all(a is b for a, b in zip(self._prepared[0], key, strict=True)):
            return self._prepared[1]
        if any(isinstance(a, jax.core.Tracer) for a in key):
            return []
        results = jax.jit(self._evaluate_once, compiler_options=KEEP_CASTS)(list(self.constants.values()), list(key))
        self._prepared = (key, results)
        return results

    # --- looking

    def report(self, *, seconds: bool = False) -> str:
        """What changed, and each kernel with its formula, cost and bound, as text.

        seconds: say too how long the search took, the one thing that differs from run to run.
        """
        from eqsat.report import report

        return report(self, seconds)

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        return f"Program({self.name}: {len(self.launches)} launches, {self.cost.seconds * 1e6:.1f} us predicted on {self.target})"

    def view(self, path: str | PathLike[str] | None = None, *, static: bool = False) -> str:
        """One self-contained page of HTML, written to `path` if given; see `eqsat.view`."""
        from eqsat.view import view

        return view(self, path, static=static)

    def _repr_html_(self) -> str:
        from eqsat.view import notebook

        return notebook(self)

    def validate(self, *args: Any, seed: int = 0, level: str = "program", **kwargs: Any) -> Validation:
        """Compare with the original on random inputs, or on `args`; see `eqsat.validate`."""
        from eqsat.validate import validate

        given = self.flat(*args, **kwargs) if args or kwargs else None
        return validate(self, given, seed=seed, level=level)

    def explain(self, seconds: float = 60.0) -> Explanation:
        """Which rules the result needed and what each is worth, what lost, why neighbours were not fused; see `eqsat.explain`."""
        from eqsat.explain import explain

        return explain(self, seconds)

    def bisect(
        self, reference: Any = None, *args: Any, tolerance: float | None = None, seed: int = 0, **kwargs: Any
    ) -> Bisection:
        """The first stage or rule that takes an output out of tolerance, on random inputs or on `args`; see `eqsat.bisection`."""
        from eqsat.bisection import bisect

        return bisect(self, reference, self.flat(*args, **kwargs) if args or kwargs else None, tolerance=tolerance, seed=seed)

    def to_stablehlo(self, path: str | PathLike[str] | None = None, *, binary: bool = False) -> str | bytes:
        """The rewritten graph, without kernels, as a StableHLO module: text, or a portable artifact if `binary`.

        It is written to `path` if given, as a portable artifact to `<name>.mlirbc`.

        Its operations, done one by one, keep the tier of the program. What keeps XLA from fusing a product with a sum and from
        simplifying as if numbers were real is not written: a compiler that does so gives up the exact tier.
        """
        from eqsat.writers.stablehlo import exported, save

        module = exported(self) if path is None else save(self, path)
        return module.mlir_module_serialized if binary else module.mlir_module()

    def to_onnx(self, path: str | PathLike[str] | None = None) -> Any:
        """The rewritten graph, without kernels, as an `onnx.ModelProto`, written to `path` if given.

        Raises ValueError listing what ONNX lacks.

        Its operations keep the tier of the program where they are done as ONNX's reference does them; ONNX Runtime, for one,
        passes over NaN in the maximum and the minimum of a row.
        """
        from eqsat.writers import onnx

        return onnx.model(self) if path is None else onnx.save(self, path)

    def tune(self, count: int = 4, seconds: Callable[[PlannedKernel], float] | None = None) -> Program:
        """The program with the fastest of each kernel's best schedules, as timed on this machine's GPU; see `eqsat.tuning`."""
        from eqsat.tuning import tune

        return tune(self, count, seconds)

    def save(self, folder: str | PathLike[str], autotune: int = 1) -> None:
        """Write the kernels' sources, a module that runs the program without eqsat, the report and the plan.

        Triton files hold up to `autotune` schedules for Triton's autotuner, which times them at the first launch.
        """
        from eqsat.saving import save

        save(self, folder, autotune)


def _launched(step: Step) -> tuple[PlannedKernel, ...]:
    if isinstance(step, Call):
        return tuple(p for program in step.programs for p in program.kernels)
    return () if step.constant else (step,)


def _use(step: Step) -> Use:
    inside = max((p.peak_nbytes for p in step.programs), default=0) if isinstance(step, Call) else 0
    return Use(step.inputs, step.outputs, inside)


def _is_constant(step: Step) -> bool:
    return isinstance(step, PlannedKernel) and step.constant
