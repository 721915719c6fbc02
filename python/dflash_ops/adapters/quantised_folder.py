"""GPTQ and AWQ matrices of a folder, where config.json says that there are any."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..decoder.linear import Matrix, QuantisedMatrix
from .errors import ModelError

Tensors = Callable[[str], Tensor | None]


class QuantisedFolder:
    """
    Args:
        where: names the folder in errors.
        options: `quantization_config` of config.json.
    """

    def __init__(self, where: str, options: dict[str, Any]):
        method, bits = options.get("quant_method"), options.get("bits")
        version = str(options.get("version", "gemm")).lower()
        if method not in ("gptq", "awq") or bits != 4 or (method == "awq" and version != "gemm"):
            raise ModelError(f"{where}: {bits}-bit {method} weights are not supported")
        group_size = options.get("group_size")
        if not isinstance(group_size, int):
            raise ModelError(f"{where}: quantization_config has group_size {group_size}")
        is_v2 = method == "gptq" and options.get("checkpoint_format") == "gptq_v2"
        self._where = where
        self._source = "gptq_v2" if is_v2 else method
        self._group_size = group_size

    def matrix(self, tensors: Tensors, name: str, as_stored: bool) -> Matrix | None:
        """By the name that the plain tensor has."""
        stem = name.removesuffix(".weight")
        weight = tensors(f"{stem}.qweight")
        if weight is None or name == stem:
            return tensors(name)
        scales, groups = tensors(f"{stem}.scales"), tensors(f"{stem}.g_idx")
        if scales is None:
            raise ModelError(f"{self._where}: the model has no tensor {stem}.scales")
        if groups is not None and not torch.equal(groups.int(), self._groups_in_order(len(groups))):
            raise ModelError(f"{self._where}: {stem} is in act-order, which is not supported")
        matrix = QuantisedMatrix(
            self._source, weight, scales, tensors(f"{stem}.qzeros"), self._group_size
        )
        return matrix if as_stored else matrix.values()

    def _groups_in_order(self, depth: int) -> Tensor:
        return (torch.arange(depth) // (self._group_size if self._group_size > 0 else depth)).int()
