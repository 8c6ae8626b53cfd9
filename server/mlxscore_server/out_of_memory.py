"""Whether what a model raised means that memory ran out. Knows no MLX, only what it says."""

import re

# MLX has no type of its own for it; these are its allocators' words (RuntimeError):
# - "[malloc] Unable to allocate N bytes.", "[malloc_or_wait] Unable to allocate N bytes."
# - "[metal::malloc] Attempting to allocate N bytes which is greater than the maximum allowed buffer size"
# - "[metal::malloc] Resource limit (N) exceeded."
# - "[METAL] Command buffer execution failed: Insufficient Memory (...CallbackErrorOutOfMemory)"
# - "cudaMallocAsync(...) failed: out of memory", "cudaMallocManaged failed: out of memory."
# - cuBLAS and cuDNN: CUBLAS_STATUS_ALLOC_FAILED, CUDNN_STATUS_ALLOC_FAILED
_SAID = re.compile(
    r"unable to allocate|\[metal::malloc\]|insufficient memory|out ?of ?memory|_alloc_failed",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether less at once might succeed. std::bad_alloc and numpy's own arrive as MemoryError."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and _SAID.search(str(error)) is not None
