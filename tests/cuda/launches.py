"""What a call launches, apart from data: ops with their arguments, and the kernels of each."""

from typing import Any

import ptxrun
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# Ops by which the host reads device data, or whose sizes depend on it.
READS = {"_local_scalar_dense", "is_nonzero", "item", "equal", "nonzero", "masked_select"}
READS |= {"unique_consecutive", "_unique2", "bincount", "repeat_interleave", "lift_fresh"}


def shape_of(value: Any) -> Any:
    """A tensor without its data: type, sizes and strides."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.stride(), value.storage_offset()
    return value


class Launches(TorchDispatchMode):
    """Lists what runs inside; with ptxrun, the kernels of every op too. Host reads raise."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[tuple] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name
        arguments = pytree.tree_map(shape_of, (args, kwargs or {}))
        base = name.split("::")[1]
        assert base not in READS, f"the host reads device data: {name}"
        if base in ("index", "index_put", "index_put_", "_index_put_impl_"):
            kinds = [x.dtype for x in args[1] if x is not None]
            assert torch.bool not in kinds, f"a size that depends on data: {name}"
        ptxrun.counters(reset=True)
        result = function(*args, **(kwargs or {}))
        kernels = {k: self._launch(total) for k, total in ptxrun.totals().items()}
        self.listed.append((name, arguments, kernels))
        return result

    @staticmethod
    def _launch(total: Any) -> tuple[int, ...]:
        return total.launches, total.ctas, total.threads, total.dynamic_shared

    def kernels(self) -> list[str]:
        return [kernel for _, _, kernels in self.listed for kernel in kernels]
