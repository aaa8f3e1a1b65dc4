"""The table of devices. Dense rates, no sparsity; adding a device is adding one row.

Peak rates and capacities are from the vendors' datasheets and architecture whitepapers (A100, H100, H200, B200, L4
datasheets; Ampere, Ada, Hopper and Blackwell whitepapers). L2 rates and launch costs are measured figures published
with gpu-benches (D. Ernst). `efficiency` is what a good kernel reaches of each peak.

MI300X: peaks from AMD's data sheet. Its L2 is in eight parts of 4 MB that do not see each other, so that the cache that
programs share is the Infinity Cache: 256 MB at a peak of 17.2 TB/s (CDNA 3 white paper). Special functions take four times as
long as additions (16 a cycle and compute unit, 2.1 GHz). It has other float8 formats than ours, which Triton multiplies as
float16. Not known: the cost of a launch and the efficiencies; those of the H100 stand in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TERA = 1e12


@dataclass(frozen=True)
class Device:
    """One accelerator. Rates are per second; `tensor_flops` by operand dtype, accumulating in 32 bits."""

    name: str
    compute_capability: int
    multiprocessors: int
    dram_bytes_per_second: float
    l2_bytes_per_second: float
    l2_nbytes: int
    shared_nbytes: int  # per program
    shared_nbytes_per_multiprocessor: int
    vector_flops: float  # float32 multiply-adds count as two
    float64_flops: float
    special_ops_per_second: float  # exp, log, reciprocal, ...
    tensor_flops: Mapping[str, float]
    launch_seconds: float
    source: str
    dram_efficiency: float = 0.92
    tensor_efficiency: float = 0.8
    lanes: int = 32  # of a warp
    gfx: str = ""  # LLVM's name of an AMD architecture, which has no compute capability: 0
    arrays: bool = False  # runs array programs, one operation after the other, instead of kernels

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def architecture(self) -> int | str:
        """What kernels are compiled for: the compute capability, or LLVM's name of an AMD architecture."""
        return self.gfx or self.compute_capability

    def contraction_flops(self, dtype: str) -> float:
        """Peak rate of contractions whose operands have this dtype."""
        if dtype in self.tensor_flops:
            return self.tensor_flops[dtype]
        return self.float64_flops if dtype == "float64" else self.vector_flops


def _tensor(bf16: float, fp8: float = 0.0, int8: float = 0.0) -> dict[str, float]:
    rates = {"bfloat16": bf16, "float16": bf16, "int8": int8, "float8_e4m3fn": fp8, "float8_e5m2": fp8}
    return {k: v * TERA for k, v in rates.items() if v}


_KB, _MB = 1 << 10, 1 << 20

DEVICES: dict[str, Device] = {
    d.name: d
    for d in [
        Device("a100", 80, 108, 2.039e12, 5.4e12, 40 * _MB, 163 * _KB, 164 * _KB, 19.5e12, 9.7e12, 2.4e12,
               _tensor(312, int8=624), 2.7e-6, "NVIDIA A100 80GB SXM datasheet; Ampere whitepaper"),
        Device("h100", 90, 132, 3.35e12, 8.5e12, 50 * _MB, 227 * _KB, 228 * _KB, 66.9e12, 33.5e12, 4.2e12,
               _tensor(989.4, 1978.9, 1978.9), 2.5e-6, "NVIDIA H100 SXM datasheet; Hopper whitepaper"),
        Device("h200", 90, 132, 4.8e12, 9.7e12, 50 * _MB, 227 * _KB, 228 * _KB, 66.9e12, 33.5e12, 4.2e12,
               _tensor(989.4, 1978.9, 1978.9), 2.5e-6, "NVIDIA H200 datasheet; Hopper whitepaper"),
        Device("b200", 100, 148, 8.0e12, 12e12, 126 * _MB, 227 * _KB, 228 * _KB, 75e12, 37e12, 4.6e12,
               _tensor(2250, 4500, 4500), 2.5e-6, "NVIDIA HGX B200 datasheet (1000 W)"),
        Device("l4", 89, 58, 0.30e12, 2.3e12, 48 * _MB, 99 * _KB, 100 * _KB, 30.3e12, 0.49e12, 1.9e12,
               _tensor(121, 242, 242), 2.7e-6, "NVIDIA L4 datasheet; Ada whitepaper"),
        Device("rtx4090", 89, 128, 1.008e12, 5.2e12, 72 * _MB, 99 * _KB, 100 * _KB, 82.6e12, 1.3e12, 5.2e12,
               _tensor(165.2, 330.3, 660.6), 2.7e-6, "NVIDIA Ada whitepaper (float32 accumulation)"),
        Device("mi300x", 0, 304, 5.3e12, 17.2e12, 256 * _MB, 64 * _KB, 64 * _KB, 163.4e12, 81.7e12, 10.2e12,
               _tensor(1307.4, 1307.4, 2614.9) | dict.fromkeys(("float32", "float64"), 163.4 * TERA), 2.5e-6,
               "AMD Instinct MI300X data sheet; CDNA 3 white paper; cost of a launch not known", lanes=64, gfx="gfx942"),
    ]
}  # fmt: skip


def device(name: str) -> Device:
    """The device of that name: of the table, measured by the user, or "cpu", which is measured when it is first asked for.

    Raises ValueError listing the names when there is none.
    """
    if name in DEVICES:
        return DEVICES[name]
    from eqsat import calibrate  # measures with JAX

    own = calibrate.measured()
    if name == "cpu" and name not in own:
        return calibrate.keep(calibrate.measured_cpu())
    if name not in own:
        known = dict.fromkeys((*DEVICES, *own, "cpu"))
        raise ValueError(f"target {name!r}: a device of the table required; choose one of {', '.join(known)}")
    return own[name]
