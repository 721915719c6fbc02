"""Reads GGUF files (versions 2 and 3): metadata, and tensors dequantised to fp32 or as stored.

The file is mapped, not read: a tensor costs memory when it is asked for. Whatever is wrong with the
file, the caller gets a ModelError that names it.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import ModelError
from .quants import FORMATS

# Metadata value types: struct codes by type number; 8 is a string, 9 an array.
_SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class TensorInfo:
    shape: tuple[int, ...]  # outermost first, as in torch
    format: int  # key of quants.FORMATS
    begin: int  # byte in the file


class _Cursor:
    """Little-endian fields, one after another."""

    def __init__(self, data: np.ndarray):
        self.data = data.data
        self.at = 0

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        size = self.scalar("Q")
        return str(self.bytes(size), "utf-8")

    def bytes(self, size: int) -> memoryview:
        if size > len(self.data) - self.at:
            raise ValueError("a field goes past the end")
        self.at += size
        return self.data[self.at - size : self.at]

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind == _STRING:
            return [self.string() for _ in range(count)]
        code = "<" + _SCALARS[kind]
        return np.frombuffer(self.bytes(count * struct.calcsize(code)), code).tolist()


class GGUFFile:
    """``metadata`` by key, and ``tensors`` by name."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self._data = np.memmap(path, np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read {path}: {error}") from None
        try:
            self._read_header()
        except (struct.error, ValueError, KeyError, OverflowError) as error:
            raise ModelError(f"{path} is not a GGUF file or is damaged: {error}") from None

    def _read_header(self) -> None:
        cursor = _Cursor(self._data)
        if bytes(cursor.bytes(4)) != b"GGUF":
            raise ValueError("the first four bytes are not GGUF")
        version = cursor.scalar("I")
        if version not in (2, 3):
            raise ValueError(f"version {version}, expected 2 or 3")
        num_tensors, num_values = cursor.scalar("Q"), cursor.scalar("Q")

        self.metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = cursor.string()
            self.metadata[key] = cursor.value(cursor.scalar("I"))

        infos = []
        for _ in range(num_tensors):
            name, num_dims = cursor.string(), cursor.scalar("I")
            dims = [cursor.scalar("Q") for _ in range(min(num_dims, 5))]
            infos.append((name, tuple(reversed(dims)), cursor.scalar("I"), cursor.scalar("Q")))

        align = self.metadata.get("general.alignment", 32)
        if not (isinstance(align, int) and align > 0):
            raise ValueError(f"general.alignment is {align}")
        base = -(-cursor.at // align) * align
        self.tensors = {
            name: self._checked(name, shape, kind, base + offset)
            for name, shape, kind, offset in infos
        }

    def _checked(self, name: str, shape: tuple[int, ...], kind: int, begin: int) -> TensorInfo:
        if kind not in FORMATS:
            raise ValueError(f"tensor {name} has format {kind}, which is not supported")
        block = FORMATS[kind]
        if not 1 <= len(shape) <= 4 or 0 in shape or shape[-1] % block.values:
            raise ValueError(f"tensor {name} has shape {list(shape)}")
        if begin + math.prod(shape) // block.values * block.bytes > len(self._data):
            raise ValueError(f"tensor {name} goes past the end")
        return TensorInfo(shape, kind, begin)

    def tensor(self, name: str) -> Tensor | None:
        """The fp32 values, or None if there is no such tensor."""
        if name not in self.tensors:
            return None
        info = self.tensors[name]
        values = FORMATS[info.format].dequantise(self._blocks(info))
        return torch.from_numpy(np.require(values, np.float32, ["C", "W"]).reshape(info.shape))

    def rows(self, name: str) -> Tensor:
        """``[outputs, bytes]`` of a matrix, as they are stored."""
        info = self.tensors[name]
        return torch.from_numpy(self._blocks(info).reshape(info.shape[0], -1).copy())

    def _blocks(self, info: TensorInfo) -> np.ndarray:
        block = FORMATS[info.format]
        count = math.prod(info.shape) // block.values
        raw = self._data[info.begin : info.begin + count * block.bytes]
        return raw.reshape(count, block.bytes)
