"""What the tests of every op need: awkward layouts, and errors that read the same everywhere."""

import pytest
import torch
from torch import Tensor


def spread(x: Tensor, fill: float = 12345, last: bool = True) -> Tensor:
    """A copy of x as every second element of a buffer whose others are wrong.

    last=False keeps the last dimension contiguous and spreads the others.
    """
    if not last and x.dim() < 2:
        return x.clone()
    dims = x.dim() if last else x.dim() - 1
    step = (slice(1, None, 2),) * dims
    shape = [2 * n + 1 if d < dims else n for d, n in enumerate(x.shape)]
    buffer = torch.empty(shape, dtype=x.dtype, device=x.device)
    buffer.copy_(torch.full((), fill).expand(shape))
    buffer[step] = x
    return buffer[step]


def apply(hook, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """A function of `_C.hooks` over every element of a contiguous tensor."""
    out = torch.empty(x.shape, dtype=dtype)
    hook(x.data_ptr(), out.data_ptr(), x.numel())
    return out


def assert_raises_alike(function, op, call, out, error, text, outputs=None) -> None:
    """`out`: {}, or the outputs by name, which the Python function takes as one `outputs`, or bare."""
    python_out = {"out": outputs(**out) if outputs else next(iter(out.values()))} if out else {}
    with pytest.raises(error) as from_python:
        function(**call, **python_out)
    with pytest.raises(RuntimeError) as from_op:
        op(**call, **out)
    name = function.__name__
    assert str(from_python.value) == str(from_op.value) == f"{name}: {text}"


def assert_compiles_whole(function, call) -> None:
    got, want = torch.compile(function, fullgraph=True)(**call), function(**call)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def assert_any_strides(function, call, last_contiguous=()) -> None:
    """Inputs are read, outputs written where they lie; `last_contiguous`: inputs that must be."""
    want = function(**call)
    call = {
        name: spread(x, last=name not in last_contiguous) if isinstance(x, Tensor) else x
        for name, x in call.items()
    }
    out = type(want)(*(spread(torch.zeros_like(x)) for x in want))
    assert function(**call, out=out) is out
    assert all(torch.equal(a, b) for a, b in zip(out, want, strict=True))
