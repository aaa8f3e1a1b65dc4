"""A CPU build of torch that takes a CUDA card to be there, well enough for Inductor to write its kernels.

Inductor asks for a device's properties, guards, streams and random state; each is answered for a card that is not there.
Nothing can run.
"""

from __future__ import annotations

import types
from typing import Any

import torch

CARDS = {
    "h100": dict(name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132, total_memory=80 << 30,
                 shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472, L2_cache_size=52428800),
    "a100": dict(name="NVIDIA A100-SXM4-80GB", major=8, minor=0, multi_processor_count=108, total_memory=80 << 30,
                 shared_memory_per_block_optin=166912, shared_memory_per_multiprocessor=167936, L2_cache_size=41943040),
}  # fmt: skip
COMMON = dict(
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32,
    shared_memory_per_block=49152, gcnArchName="", is_integrated=0, clock_rate=1980000, memory_clock_rate=2619000,
    memory_bus_width=5120,
)  # fmt: skip


def install(card: str) -> None:
    """Raises ValueError for a card that is not in the table."""
    if card not in CARDS:
        raise ValueError(f"card {card!r}: one of {', '.join(CARDS)} required")
    properties = types.SimpleNamespace(**COMMON, **CARDS[card])
    _device(properties)
    _interface(properties)
    _triton(properties)
    _tracing()
    _methods()


def _device(properties: Any) -> None:
    cuda: Any = torch.cuda
    guard = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if guard is not None:
        guard()
    answers: dict[str, Any] = {
        "is_available": True, "device_count": 1, "current_device": 0, "get_device_properties": properties,
        "get_device_capability": (properties.major, properties.minor), "get_device_name": properties.name,
        "set_device": None, "synchronize": None, "_exchange_device": 0, "_maybe_exchange_device": 0,
        "is_bf16_supported": True, "current_stream": types.SimpleNamespace(cuda_stream=0), "memory_allocated": 0,
        "is_initialized": False, "_lazy_init": None, "set_rng_state": None,
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(cuda, name, _constant(answer))
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *a, **k: torch.zeros(16, dtype=torch.uint8)
    torch.version.cuda = "13.0"  # type: ignore[assignment]


def _constant(answer: Any) -> Any:
    return lambda *args, **kwargs: answer


def _interface(properties: Any) -> None:
    from torch._dynamo import device_interface

    interface: Any = device_interface.CudaInterface
    names = ("current_device", "device_count", "get_device_properties", "synchronize", "set_device", "is_bf16_supported")
    for name in (*names, "memory_allocated"):
        setattr(interface, name, staticmethod(getattr(torch.cuda, name)))
    for name in ("exchange_device", "maybe_exchange_device", "get_raw_stream"):
        setattr(interface, name, staticmethod(_constant(0)))
    interface.Worker.current_device = staticmethod(_constant(0))
    interface.Worker.get_device_properties = staticmethod(_constant(properties))
    device_interface.caching_worker_device_properties["cuda"] = [properties]
    for name in ("cuda", "cuda:0"):
        device_interface.register_interface_for_device(name, interface)


def _triton(properties: Any) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    target = GPUTarget("cuda", properties.major * 10 + properties.minor, 32)
    fake = types.SimpleNamespace(
        get_current_target=_constant(target), get_active_torch_device=_constant(torch.device("cuda", 0)),
        get_current_device=_constant(0), get_current_stream=_constant(0), is_active=_constant(True),
    )  # fmt: skip
    driver.set_active(fake)


def _tracing() -> None:
    import torch._inductor.fx_passes.misc_patterns as patterns
    import torch._subclasses.fake_tensor as fake
    from torch._inductor.fx_passes import joint_graph

    module: Any = fake
    module.init_gpu_context = _constant(None)
    module.FakeTensorMode.avoid_device_init = property(_constant(True))
    original: Any = patterns._misc_patterns_init
    patterns._misc_patterns_init = lambda device=None: original(torch.device("cpu"))  # type: ignore[assignment]
    folder: Any = joint_graph.UniformValueConstantFolder
    deduce = folder._deduce_value

    def deduced(self: Any, node: Any) -> Any:
        """Uniform tensors are looked at on the CPU."""
        if node.target is torch.ops.aten.full.default and len(node.args) == 2:
            args, _ = self.fetch_args_kwargs_from_env(node)
            if not isinstance(args[1], torch.SymInt | torch.SymFloat | torch.SymBool):
                return torch.full([1], args[1], dtype=node.kwargs.get("dtype"))
        if node.target is torch.ops.aten.scalar_tensor.default:
            return torch.scalar_tensor(node.args[0], dtype=node.kwargs.get("dtype"))
        return deduce(self, node)

    folder._deduce_value = deduced


def _methods() -> None:
    """Two methods take a device guard that a CPU build lacks; the operators do not."""
    tensor: Any = torch.Tensor
    aten = torch.ops.aten
    tensor.contiguous = lambda self, memory_format=torch.contiguous_format: aten.contiguous(self, memory_format=memory_format)
    tensor.__invert__ = lambda self: aten.bitwise_not(self)
