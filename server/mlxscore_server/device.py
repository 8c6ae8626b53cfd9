"""What differs between the back ends, decided in one place. Import after the BLAS is loaded."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import mlx.core as mx

from mlxscore_server.block_attention import BlockAttention, attend, attend_in_parts, attend_mlx
from mlxscore_server.block_costs import BlockCosts
from mlxscore_server.cpu_attention import attend_numpy
from mlxscore_server.cuda_attention import CudaKernel
from mlxscore_server.settings import CpuKernels


@dataclass(frozen=True)
class Device:
    """The device that MLX computes on and the choices that suit it."""

    name: str
    """cpu, metal or cuda."""
    max_batch_tokens: int
    """Default budget of a micro-batch, padded tokens."""
    batch_overhead: int
    """What starting one more micro-batch costs, in tokens: the planner's price for less padding."""
    length_multiple: int
    """Padded lengths are rounded up to this."""
    logits_bytes: int
    """Bytes of float32 logits held at once: the output head runs in chunks of rows."""
    cache_bytes: int
    """Freed buffers that MLX may keep for reuse."""
    numpy_reads_logits: bool
    """Whether log-sum-exp and its kind run in numpy on the shared memory."""
    node_cost: int
    """Tokens that a shared prefix must save to be computed apart."""
    block_costs: BlockCosts
    """What attention costs in blocks of various shapes."""
    attend: BlockAttention = field(default=attend_mlx, repr=False)
    """How attention blocks are computed."""
    begin_every: int | None = None
    """After how many layers of a packed micro-batch the device is told to begin with them; None: it is
    told when all are known."""
    warm_up: Callable[[], None] = field(default=lambda: None, repr=False)
    """What is done once a model has run, so that its first requests do not pay for it."""
    numpy_kernels: bool = False
    """Whether activations, norms and attention run in numpy on the shared memory."""

    @property
    def memory_bytes(self) -> int:
        """Memory of the device; on a CPU, and where it is shared, the machine's."""
        info = mx.device_info()
        for name in ("memory_size", "total_memory"):
            if info.get(name):
                return int(info[name])
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# CPU: numpy, because MLX's exp costs 20 ns an element there (numpy's 0.65) and its long sums run one
# entry after another; small chunks of logits stay near the caches.
_CPU = Device(
    name="cpu",
    max_batch_tokens=2048,
    batch_overhead=32,
    length_multiple=1,
    logits_bytes=64 * 2**20,
    cache_bytes=2**30,
    numpy_reads_logits=True,
    node_cost=16,
    block_costs=BlockCosts.cpu(),
    attend=attend_numpy,
    numpy_kernels=True,
)
_CPU_MLX = replace(_CPU, attend=attend_in_parts, numpy_kernels=False)
# CUDA builds a graph for each new attention shape (0.3 to 2.6 s the first time), so lengths are
# rounded. Budget, one H200, 1B in bf16, 128 rows of 64-1024: 133 k tok/s at 2,048 tokens, 185 k at
# 4,096, 197 k at 8,192, 206 k at 16,384, 207 k at 32,768; overheads of 512 and 2,048 differ by 2%.
# One H200, 8B in bf16, one window, ms, told at the end and after every 8 layers (1 to 16 are alike):
# 32 questions x 4 choices 127, 122; one-letter choices 113, 110; 100 documents 196, 193; 32 x 512 397, 392.
_CUDA_KERNEL = CudaKernel()
_CUDA = Device(
    name="cuda",
    max_batch_tokens=16384,
    batch_overhead=512,
    length_multiple=32,
    logits_bytes=2**29,
    cache_bytes=16 * 2**30,
    numpy_reads_logits=False,
    node_cost=16,
    block_costs=BlockCosts.cuda(),
    attend=partial(attend, kernel=_CUDA_KERNEL),
    begin_every=8,
    warm_up=_CUDA_KERNEL.warm_up,
)
# Not measured here: no Metal device was at hand. The values are the careful ones.
_METAL = Device(
    name="metal",
    max_batch_tokens=8192,
    batch_overhead=256,
    length_multiple=1,
    logits_bytes=512 * 2**20,
    cache_bytes=4 * 2**30,
    numpy_reads_logits=False,
    node_cost=16,
    block_costs=BlockCosts.cuda(),
)


def current(cpu_kernels: CpuKernels = "numpy") -> Device:
    """The device that MLX uses by default."""
    if mx.default_device() == mx.Device(mx.cpu):
        return _CPU if cpu_kernels == "numpy" else _CPU_MLX
    return _METAL if mx.metal.is_available() else _CUDA
