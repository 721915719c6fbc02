"""The `ptx` device of the tests: dflash ops on CPU tensors run their CUDA launchers here."""

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from . import _ptxrun
from .memory import DeviceMemory, KernelError, from_device

LIBRARY = Path(__file__).parent / "libdflash_ops_ptx.so"
_CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)


def raise_reports() -> None:
    reports = _ptxrun.take_reports()
    if reports:
        lines = (f"{kind} ({count} times): {text}" for kind, text, count in reports)
        raise KernelError("\n".join(lines))


def _named_tensors(schema: Any, args: Any, kwargs: Any) -> list[tuple[str, Tensor]]:
    names = [argument.name for argument in schema.arguments]
    values = [*zip(names, args, strict=False), *kwargs.items()]
    return [
        (name, x)
        for name, value in values
        for x in pytree.tree_leaves(value)
        if isinstance(x, Tensor)
    ]


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    constant = {a.name for a in op._schema.arguments if a.alias_info is None}
    memory = DeviceMemory(_named_tensors(op._schema, args, kwargs), constant)
    try:
        moved = pytree.tree_map_only(Tensor, memory.to_device, (args, kwargs))
        failure = None
        try:
            result = op.redispatch(_CUDA, *moved[0], **moved[1])
        except RuntimeError as error:
            failure = error
        raise_reports()
        if failure is not None:
            raise failure
        return pytree.tree_map_only(Tensor, from_device, result)
    except KernelError as error:  # the frames below hold device tensors, which nobody can print
        raise error.with_traceback(None) from None
    finally:
        _ptxrun.release_temporaries()
        memory.release()


def _ops() -> Iterator[Any]:
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("dflash::"):
            base, _, overload = name.removeprefix("dflash::").partition(".")
            yield getattr(getattr(torch.ops.dflash, base), overload or "default")


def load_library() -> None:
    import dflash_ops  # noqa: F401  the schemas

    torch.ops.load_library(LIBRARY)


@contextmanager
def emulated(missing: Callable[[str], Any], arch: int = 80) -> Iterator[None]:
    """Ops on CPU tensors run as CUDA kernels of `arch`; `missing(op)` those that have none."""
    load_library()
    _ptxrun.set_arch(arch)
    library = torch.library.Library("dflash", "IMPL")
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is overridden is the point
        for op in _ops():
            name = op._schema.name + ("." + op._schema.overload_name).rstrip(".")
            if not has_kernel(name, "CPU"):
                continue
            run = functools.partial(_run, op)
            if not has_kernel(name, "CUDA"):
                run = functools.partial(_refuse, missing, name)
            library.impl(op, run, "CPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def _refuse(missing: Callable[[str], Any], name: str, *args: Any, **kwargs: Any) -> Any:
    missing(f"{name} has no CUDA kernel")
