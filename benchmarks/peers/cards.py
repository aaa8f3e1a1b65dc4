"""Cards as XLA's deviceless compiler wants them: `stream_executor.GpuTargetConfigProto` as text, from public figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    description: str
    compute_capability: tuple[int, int]
    accelerated: bool  # compile for sm_90a rather than sm_90
    multiprocessors: int
    float32_lanes: int
    memory_bytes_per_second: int
    l2_nbytes: int
    clock_ghz: float
    memory_nbytes: int
    shared_nbytes: int  # per block
    shared_nbytes_per_core: int
    tensor_clock_ghz: float
    tensor_ops: dict[str, int]  # per clock and unit, four units a multiprocessor


PRIMITIVE = {"s8": 2, "u8": 6, "f16": 10, "f32": 11, "f64": 12, "bf16": 16, "f8e5m2": 19, "f8e4m3fn": 20}  # xla.PrimitiveType
AMPERE = {"f16": 256, "bf16": 256, "f32": 128, "s8": 512, "f64": 16}
HOPPER = {"f16": 512, "bf16": 512, "f32": 256, "s8": 1024, "f8e5m2": 1024, "f8e4m3fn": 1024, "f64": 32}
BLACKWELL = {"f16": 1024, "bf16": 1024, "f32": 512, "s8": 2048, "f8e5m2": 2048, "f8e4m3fn": 2048, "f64": 16}

CARDS = {
    "a100": Card("NVIDIA A100-SXM4-80GB", (8, 0), False, 108, 64, 2039040000000, 41943040, 1.41, 85100068864, 166912, 167936,
                 1.41, AMPERE),
    "h100": Card("NVIDIA H100 80GB HBM3", (9, 0), True, 132, 128, 3352320000000, 52428800, 1.98, 84942979072, 232448, 233472,
                 1.83, HOPPER),
    "h200": Card("NVIDIA H200 141GB HBM3e", (9, 0), True, 132, 128, 4800000000000, 52428800, 1.98, 151397597184, 232448, 233472,
                 1.83, HOPPER),
    "b200": Card("NVIDIA B200", (10, 0), True, 148, 128, 7670000000000, 132644864, 1.965, 192000000000, 232448, 233472,
                 1.85, BLACKWELL),
}  # fmt: skip


def _rate(dtype: str, clock: float, units: int, ops: int) -> str:
    key = PRIMITIVE[dtype]
    return f"rate_infos {{ key: {key} value {{ clock_rate_ghz: {clock} units_per_core: {units} ops_per_clock: {ops} }} }}"


def _units(card: Card) -> str:
    lanes = card.float32_lanes
    scalar = [_rate(d, card.clock_ghz, n, o) for d, n, o in (("f32", lanes, 1), ("f64", lanes // 2, 1), ("bf16", lanes, 2))]
    matrix = [_rate(dtype, card.tensor_clock_ghz, 4, ops) for dtype, ops in card.tensor_ops.items()]
    return f"scalar_unit_description {{ {' '.join(scalar)} }}\n  matrix_unit_description {{ {' '.join(matrix)} }}"


def target_config(name: str) -> str:
    """The card's description. Raises ValueError listing the cards where there is none of that name."""
    if name not in CARDS:
        raise ValueError(f"card {name!r}: one of {', '.join(CARDS)} required to compile for")
    card = CARDS[name]
    major, minor = card.compute_capability
    return f"""gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: {card.shared_nbytes_per_core}
  shared_memory_per_block_optin: {card.shared_nbytes}
  core_count: {card.multiprocessors} fpus_per_core: {card.float32_lanes} clock_rate_ghz: {card.clock_ghz}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  memory_bandwidth: {card.memory_bytes_per_second} l2_cache_size: {card.l2_nbytes} device_memory_size: {card.memory_nbytes}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  cuda_compute_capability {{
    major: {major} minor: {minor} feature_extension: {"ACCELERATED_FEATURES" if card.accelerated else "NONE"}
  }}
  {_units(card)}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{card.description}"
"""
