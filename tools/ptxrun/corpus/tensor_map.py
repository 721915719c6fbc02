"""cuTensorMapEncodeTiled through ctypes: the driver's, or ptxrun's."""

import ctypes

import numpy as np

from .case import Case, TensorMap

_TYPES = {1: 0, 2: 1, 4: 2}  # CUtensorMapDataType: UINT8, UINT16, UINT32


def encoded_map(library: ctypes.CDLL, m: TensorMap, address: int) -> bytes:
    """The 128 bytes of a map: no interleaving, no promotion, zeros outside the tensor."""
    room = (ctypes.c_uint8 * 192)()
    at = -ctypes.addressof(room) % 64  # where the function wants them
    rank = len(m.extents)
    strides = np.cumprod([m.element_bytes, *m.extents])[1:]
    wide, narrow = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
    error = library.cuTensorMapEncodeTiled(
        ctypes.c_void_p(ctypes.addressof(room) + at),
        _TYPES[m.element_bytes],
        ctypes.c_uint32(rank),
        ctypes.c_void_p(address),
        wide(*m.extents),
        wide(*(int(s) for s in strides)),
        narrow(*m.box),
        narrow(*[1] * rank),
        0,
        m.swizzle,
        0,
        0,
    )
    if error != 0:
        raise ValueError(f"cuTensorMapEncodeTiled: error {error}: {m}")
    return bytes(room[at : at + 128])


def mapped_array(case: Case, num_inputs: int) -> int:
    """Which of the arrays, inputs and then the output, a case's tensor map describes."""
    return num_inputs if case.name.startswith("tensor store") else 0
