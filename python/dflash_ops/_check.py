"""Argument checks: the twin of csrc/common/check.h, word for word.

The ops raise RuntimeError, the only type that the stable ABI has. The public functions check first
and raise ValueError or TypeError with the same text.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Checks:
    """What one op call says about its arguments: "<op>: <argument> must <...>, got <...>"."""

    op: str
    like: Tensor  # names the device on which every tensor must be

    def tensor(
        self,
        name: str,
        tensor: Tensor | None,
        dtypes: tuple[torch.dtype, ...],
        dims: str,
        *shape: int,
    ) -> None:
        """`dims` spells `shape` in the op's own words; -1: any extent. None: an absent option."""
        if tensor is None:
            return
        if tensor.dtype not in dtypes:
            wanted = " or ".join(_dtype_name(dtype) for dtype in dtypes)
            raise TypeError(f"{self.op}: {name} must be {wanted}, got {_dtype_name(tensor.dtype)}")
        self.any_tensor(name, tensor, dims, *shape)

    def any_tensor(self, name: str, tensor: Tensor, dims: str, *shape: int) -> None:
        """The same for a tensor of any dtype, whose bytes alone matter."""
        if tensor.dim() != len(shape) or any(
            want not in (-1, got) for want, got in zip(shape, tensor.shape, strict=True)
        ):
            wanted, got = _shape_name(shape), _shape_name(tensor.shape)
            raise ValueError(f"{self.op}: {name} must have shape {dims} = {wanted}, got {got}")
        if tensor.device != self.like.device:
            raise ValueError(
                f"{self.op}: {name} must be on {self.like.device}, got {tensor.device}"
            )

    def index(self, name: str, tensor: Tensor | None, dims: str, *shape: int) -> None:
        self.tensor(name, tensor, (torch.int32, torch.int64), dims, *shape)

    def at_least(self, name: str, value: float, low: float) -> None:
        if not value >= low:
            raise ValueError(f"{self.op}: {name} must be at least {low}, got {value}")

    def at_most(self, name: str, value: float, high: float) -> None:
        if not value <= high:
            raise ValueError(f"{self.op}: {name} must be at most {high}, got {value}")

    def given(self, name: str, value: object, other: str, other_value: object) -> None:
        """An option that another one needs."""
        if other_value is not None and value is None:
            raise ValueError(f"{self.op}: {name} must be given with {other}, got None")

    def one_of(self, name: str, value: str, *options: str) -> None:
        if value not in options:
            raise ValueError(f"{self.op}: {name} must be one of {', '.join(options)}, got {value}")

    def last_contiguous(self, name: str, tensor: Tensor | None) -> None:
        if tensor is not None and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            strides = _shape_name(tensor.stride())
            raise ValueError(
                f"{self.op}: {name} must have a contiguous last dimension, got strides {strides}"
            )


def check_contiguous(checks: Checks, name: str, tensor: Tensor) -> None:
    if not tensor.is_contiguous():
        strides = _shape_name(tensor.stride())
        raise ValueError(f"{checks.op}: {name} must be contiguous, got strides {strides}")


def status_or_scratch(status: Tensor | None, like: Tensor, size: int) -> Tensor | None:
    """For ops with one output: inductor (torch 2.13) cannot lower one that then mutates nothing."""
    if status is None and torch.compiler.is_compiling():
        return like.new_zeros(size, dtype=torch.int32)
    return status


FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape_name(shape: Iterable[int]) -> str:
    return "[" + ", ".join("*" if extent == -1 else str(extent) for extent in shape) + "]"
