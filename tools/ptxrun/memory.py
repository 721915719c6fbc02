"""CPU tensors as device memory: the same bytes, at addresses that only kernels can follow."""

import ctypes
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from . import _ptxrun


class KernelError(AssertionError):
    """A check failed while a kernel ran."""


def _byte_range(tensor: Tensor) -> tuple[int, int]:
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    first = tensor.storage_offset()
    return first * tensor.itemsize, (first + last + 1) * tensor.itemsize


class _Range(NamedTuple):
    begin: int
    end: int
    name: str
    is_constant: bool


def _merged(ranges: list[_Range]) -> list[_Range]:
    merged: list[_Range] = []
    for x in sorted(ranges):
        if merged and x.begin <= merged[-1].end:
            known = merged[-1]
            names = known.name if x.name in known.name.split("/") else f"{known.name}/{x.name}"
            both = known.is_constant and x.is_constant
            merged[-1] = _Range(known.begin, max(known.end, x.end), names, both)
        else:
            merged.append(x)
    return merged


class DeviceMemory:
    """Tensors of one call. A kernel may touch what they span, and nothing beside it.

    `constant` are the names of those that no kernel may write.
    """

    def __init__(
        self, tensors: list[tuple[str, Tensor]], constant: Collection[str] = frozenset()
    ) -> None:
        ranges: dict[int, list[_Range]] = {}
        storages: dict[int, torch.UntypedStorage] = {}
        for name, tensor in tensors:
            if tensor.device.type == "cpu" and tensor.numel() > 0:
                storage = tensor.untyped_storage()
                storages[storage.data_ptr()] = storage
                span = _Range(*_byte_range(tensor), name, name in constant)
                ranges.setdefault(storage.data_ptr(), []).append(span)
        self._bases: dict[int, int] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}
        for data, storage in storages.items():
            base = _ptxrun.reserve(storage.nbytes())
            for begin, end, name, is_constant in _merged(ranges[data]):
                _ptxrun.map(base, data, begin, end - begin, name, is_constant)
            self._bases[data] = base
            window = (ctypes.c_uint8 * storage.nbytes()).from_address(base)
            self._storages[data] = torch.frombuffer(window, dtype=torch.uint8).untyped_storage()

    def to_device(self, tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu" or tensor.numel() == 0:
            return tensor
        storage = self._storages[tensor.untyped_storage().data_ptr()]
        view = torch.empty(0, dtype=tensor.dtype)
        return view.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())

    def release(self) -> None:
        for base in self._bases.values():
            _ptxrun.release(base)
        self._bases.clear()


def from_device(tensor: Tensor) -> Tensor:
    """A copy, in host memory, of a tensor that an op has made: ops write their outputs whole."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    if copy.numel() > 0:
        _, count = _byte_range(copy)
        if missing := _ptxrun.unwritten(tensor.data_ptr(), count):
            raise KernelError(f"{missing} of {count} bytes of an output were never written")
        ctypes.memmove(copy.data_ptr(), _ptxrun.data(tensor.data_ptr(), count), count)
    return copy
