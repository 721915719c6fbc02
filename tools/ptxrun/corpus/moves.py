"""What only moves bits: ldmatrix, stmatrix, movmatrix; tensor copies, dumped by ordinary loads."""

from collections.abc import Iterator

import numpy as np

from .case import (
    SHARED_REGISTERS,
    Case,
    Compare,
    TensorMap,
    dump_shared,
    fill_shared,
    kernel,
    registers,
    words,
)
from .values import generator


def _row_addresses(rng: np.random.Generator) -> np.ndarray:
    """Of each lane: a row of 16 bytes of 64, in no order."""
    return (16 * rng.permutation(64)[:32]).astype(np.uint32).reshape(1, 1, 32)


def matrix_cases() -> Iterator[Case]:
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            regs = registers("r", count)
            what = f"sync.aligned.m8n8.x{count}{trans}.shared.b16"
            declared = f"{SHARED_REGISTERS} .reg .b32 row, {', '.join(regs)};"
            listed = f"{{{', '.join(regs)}}}"
            fill = fill_shared(0, 256, 32) + "\n" + words("ld", ["row"], 1)
            fill += "\n  add.u32 row, row, base;\n"
            name = f"ldmatrix/x{count}{trans}"
            rng = generator(name)
            image = rng.integers(0, 2**32, 256, dtype=np.uint32)
            body = fill + f"  ldmatrix.{what} {listed}, [row];\n" + words("st", regs, 2)
            text = kernel(body, 3, declared)
            inputs = [image, _row_addresses(rng)]
            yield Case(name, text, inputs, (1, count, 32), Compare.EQUAL, smem=1024)

            body = fill + words("ld", regs, 2) + f"\n  stmatrix.{what} [row], {listed};"
            text = kernel(body + dump_shared(3, 256, 32), 4, declared, "sm_90a")
            inputs = [*inputs, rng.integers(0, 2**32, (1, count, 32), dtype=np.uint32)]
            yield Case(f"stmatrix/x{count}{trans}", text, inputs, (256,), Compare.EQUAL, smem=1024)
    body = words("ld", ["a"], 0) + "\n  movmatrix.sync.aligned.m8n8.trans.b16 d, a;\n"
    inputs = [generator("movmatrix").integers(0, 2**32, (1, 1, 32), dtype=np.uint32)]
    text = kernel(body + words("st", ["d"], 1), 2, ".reg .b32 a, d;")
    yield Case("movmatrix", text, inputs, (1, 1, 32), Compare.EQUAL)


def _tensor_copy(is_load: bool, rank: int) -> str:
    at = f"[map, {{{', '.join(registers('x', rank))}}}]"
    if is_load:
        what = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
        return f"@first {what} [base], {at}, [barrier];"
    return f"@first cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group {at}, [base];"


def tensor_cases() -> Iterator[Case]:
    """Tiles inside the tensor, over its edges, and before it."""
    for swizzle in range(4):
        for element, extents, box, at in (
            (2, (136, 40), (8 << max(swizzle, 1), 16), (8, 24)),
            (2, (136, 40), (8 << max(swizzle, 1), 16), (104, 32)),
            (2, (136, 40), (8 << max(swizzle, 1), 8), (-8, -3)),
            (1, (144, 24), (16 << max(swizzle, 0), 8), (16, 8)),
            (4, (36, 6, 5), (4 << max(swizzle, 0), 4, 3), (4, 1, 2)),
        ):
            tensor_map = TensorMap(element, extents, box, swizzle)
            name = f"tensor load/swizzle{16 << swizzle}/{8 * element}b {box} at {at}"
            yield _tensor_case(name, tensor_map, at, True)
        tensor_map = TensorMap(2, (136, 40), (8 << max(swizzle, 1), 16), swizzle)
        yield _tensor_case(f"tensor store/swizzle{16 << swizzle}", tensor_map, (104, 32), False)


def _tensor_case(name: str, tensor: TensorMap, at: tuple[int, ...], is_load: bool) -> Case:
    num_words = int(np.prod(tensor.box)) * tensor.element_bytes // 4
    size = int(np.prod(tensor.extents)) * tensor.element_bytes // 4
    rank = len(at)
    declared = f"{SHARED_REGISTERS} .reg .b64 map; .reg .pred first; .reg .b32 barrier;"
    declared += f" .reg .b32 {', '.join(registers('x', rank))};"
    setup = "  mov.b64 map, m;\n  cvta.param.u64 map, map;\n  setp.eq.u32 first, lane, 0;\n"
    setup += "\n".join(f"  mov.s32 x{i}, {x};" for i, x in enumerate(at))
    rng = generator(name)
    image = rng.integers(0, 2**32, size, dtype=np.uint32)
    if is_load:
        body = f"""{setup}
  add.u32 barrier, base, {4 * num_words};
  @first mbarrier.init.shared::cta.b64 [barrier], 1;
  @first fence.mbarrier_init.release.cluster;
  @first mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], {4 * num_words};
  {_tensor_copy(True, rank)}
  bar.sync 0;
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 more, [barrier], 0;
  @!more bra WAIT;
"""
        inputs, output = [image], (num_words,)
        body += dump_shared(1, num_words, 32)
        num_params = 2
    else:  # the tensor is the output: it starts as zeros
        body = setup + fill_shared(0, num_words, 32)
        body += f"""
  fence.proxy.async.shared::cta;
  bar.sync 0;
  {_tensor_copy(False, rank)}
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;"""
        inputs, output, num_params = [image[:num_words]], (size,), 2
    head = ".param .align 64 .b8 m[128]"
    text = kernel(body, num_params, declared, "sm_90a", head)
    smem = 4 * num_words + 16
    return Case(name, text, inputs, output, Compare.EQUAL, 1, 32, smem, tensor)
