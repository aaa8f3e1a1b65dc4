"""A kernel under the roofline of a device: what bounds it, and how close its predicted time comes."""

from __future__ import annotations

from dataclasses import dataclass

from eqsat.devices import Device
from eqsat.program import PlannedKernel
from eqsat.work import Work

BOUNDS = {
    "dram": "device memory", "l2": "L2 cache", "tensor": "tensor cores", "vector": "arithmetic",
    "special": "special functions", "launch": "launch overhead", "": "nothing",
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A kernel as a dot: predicted seconds, traffic and operations of one launch, and how often it is launched."""

    name: str
    seconds: float
    nbytes: int
    flops: int
    bound: str
    count: int
    rate: float  # peak operations per second of the unit that its arithmetic needs
    dtype: str  # of its contractions' operands; "" where it has none

    @property
    def intensity(self) -> float:
        return self.flops / self.nbytes if self.nbytes else 0.0

    def share_of_roofline(self, card: Device) -> float:
        """The time that its traffic and arithmetic need at peak rates, over the predicted time."""
        ideal = max(self.nbytes / card.dram_bytes_per_second, self.flops / self.rate)
        return ideal / self.seconds if self.seconds else 1.0


def point(planned: PlannedKernel, card: Device, count: int = 1) -> Point:
    rates = [(card.contraction_flops(c.dtype), c.dtype) for c in Work(planned.kernel).contractions]
    rate, dtype = max(rates, default=(card.vector_flops, ""))
    cost = planned.cost
    return Point(planned.name, cost.seconds, cost.nbytes, cost.flops, cost.bound, count, rate, dtype)
