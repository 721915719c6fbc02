"""A CUDA graph that repeats a captured step while a flag on the device is set: cuda.core.graph."""

from collections.abc import Callable

import torch

# The conditional handle is set by a kernel; the declaration is the device runtime's.
SET_CONDITION = """
extern "C" __device__ __cudart_builtin__ void CUDARTAPI
cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned int value);

extern "C" __global__ void set_condition(cudaGraphConditionalHandle handle, const int* flag) {
  cudaGraphSetConditional(handle, *flag != 0);
}
"""


def is_there() -> bool:
    try:
        import cuda.core.graph  # noqa: F401
    except ImportError:
        return False
    return True


def compiled(arch: str):
    """The kernel as machine code; needs NVRTC, and no GPU."""
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(std="c++17", arch=arch)
    return Program(SET_CONDITION, code_type="c++", options=options).compile("cubin")


class WhileLoop:
    """
    Args:
        step: launches work on the current stream; it has run before, so that nothing is loaded or
            chosen while it is captured.
        flag: int32; read after each step. There is a first step in any case.
    """

    def __init__(self, step: Callable[[], None], flag: torch.Tensor) -> None:
        from cuda.core import Device, LaunchConfig, launch

        device = Device(flag.device.index or 0)
        device.set_current()
        major, minor = torch.cuda.get_device_capability(flag.device)
        kernel = compiled(f"sm_{major}{minor}").get_kernel("set_condition")
        self._kept = flag, step  # the graph has their addresses
        self._memory = torch.cuda.MemPool()  # of what the step allocates: nobody else's
        self._stream = device.create_stream()

        whole = device.create_graph_builder().begin_building()
        condition = whole.create_condition(default_value=1)
        body = whole.while_loop(condition)
        body.begin_building()  # relaxed: torch may allocate
        handle = int(body.stream.handle)
        stream = torch.cuda.ExternalStream(handle, device=flag.device)
        with torch.cuda.use_mem_pool(self._memory), torch.cuda.stream(stream):
            step()
        launch(body, LaunchConfig(grid=1, block=1), kernel, condition, flag.data_ptr())
        body.end_building()
        self._graph = whole.end_building().complete()

    def __call__(self) -> None:
        """Runs the loop to its end; the host waits for it once."""
        torch.cuda.synchronize()
        self._graph.launch(self._stream)
        self._stream.sync()
