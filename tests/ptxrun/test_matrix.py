"""Matrix instructions against torch, through ldmatrix and stmatrix: layouts must fit each other."""

import ptxrun
import pytest
import torch
from ptxrun import MmaMode


def load(matrices, base, at, transposed=False):
    trans = ".trans" if transposed else ""
    registers = ", ".join(f"{base}{i}" for i in range(matrices))
    return f"ldmatrix.sync.aligned.m8n8.x{matrices}{trans}.shared.b16 {{{registers}}}, [{at}];"


def product(mma, k_bytes, transposed, d_words):
    """A warp copies a[16][k] and b[8][k] (or b[k][8] if transposed) to shared memory, multiplies
    them onto c and stores its words of d."""
    a_regs, b_regs = (4, 2) if k_bytes == 32 else (2, 1)
    names = [
        ", ".join(f"{v}{i}" for i in range(n))
        for v, n in (("d", d_words), ("a", a_regs), ("b", b_regs), ("c", d_words))
    ]
    loads = "\n".join(f"  ld.global.b32 c{i}, [at+{128 * i}];" for i in range(d_words))
    stores = "\n".join(f"  st.global.b32 [at+{128 * i}], d{i};" for i in range(d_words))
    b_at = "k" if transposed else "n"
    return f"""
.version 8.8
.target sm_90a
.address_size 64
.visible .entry product(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd) {{
  .reg .b32 lane, row, half, place, a<4>, b<2>, c<4>, d<4>, word, i, n, k;
  .reg .b64 at, offset;
  .reg .pred p;
  .shared .align 16 .b8 sa[512];
  .shared .align 16 .b8 sb[256];
  mov.u32 lane, %tid.x;
  shl.b32 place, lane, 2;
  cvt.u64.u32 offset, place;
  mov.u32 i, 0;
COPY_A:
  ld.param.u64 at, [pa];
  add.u64 at, at, offset;
  ld.global.b32 word, [at];
  mov.u32 row, sa;
  add.u32 row, row, place;
  st.shared.b32 [row], word;
  setp.lt.u32 p, place, {8 * k_bytes};
  ld.param.u64 at, [pb];
  add.u64 at, at, offset;
  @p ld.global.b32 word, [at];
  mov.u32 row, sb;
  add.u32 row, row, place;
  @p st.shared.b32 [row], word;
  add.u32 place, place, 128;
  add.u64 offset, offset, 128;
  setp.lt.u32 p, place, {16 * k_bytes};
  @p bra COPY_A;
  bar.sync 0;
  and.b32 row, lane, 15;
  shr.u32 half, lane, 4;
  mul.lo.u32 row, row, {k_bytes};
  mad.lo.u32 row, half, 16, row;
  mov.u32 i, sa;
  add.u32 row, row, i;
  {load(a_regs, "a", "row")}
  and.b32 n, lane, 7;
  shr.u32 half, lane, 3;
  and.b32 half, half, 1;
  mul.lo.u32 n, n, {k_bytes};
  mad.lo.u32 n, half, 16, n;
  and.b32 k, lane, 15;
  shl.b32 k, k, 4;
  mov.u32 i, sb;
  add.u32 n, n, i;
  add.u32 k, k, i;
  {load(b_regs, "b", b_at, transposed)}
  cvt.u64.u32 offset, lane;
  shl.b64 offset, offset, 2;
  ld.param.u64 at, [pc];
  add.u64 at, at, offset;
{loads}
  mma.sync.aligned.{mma} {{{names[0]}}}, {{{names[1]}}}, {{{names[2]}}}, {{{names[3]}}};
  ld.param.u64 at, [pd];
  add.u64 at, at, offset;
{stores}
  ret;
}}
"""


def unpacked(words, dtype):
    """Of a lane's words: rows lane / 4 (+ 8), columns 2 (lane % 4) on."""
    pairs = (
        words.view(dtype).view(-1, 32, 2)
        if dtype == torch.float16
        else words.view(dtype).view(2, 2, 32).transpose(1, 2)
    )
    return pairs.reshape(2, 8, 8).reshape(16, 8)


def packed(c):
    rows = c.view(2, 32, 2)
    return (rows if c.dtype == torch.float16 else rows.transpose(1, 2)).contiguous()


CASES = [
    ("m16n8k16.row.col.f32.bf16.bf16.f32", torch.bfloat16, torch.float32, 16),
    ("m16n8k16.row.col.f32.f16.f16.f32", torch.float16, torch.float32, 16),
    ("m16n8k16.row.col.f16.f16.f16.f16", torch.float16, torch.float16, 16),
    ("m16n8k8.row.col.f32.bf16.bf16.f32", torch.bfloat16, torch.float32, 8),
    ("m16n8k8.row.col.f32.tf32.tf32.f32", torch.float32, torch.float32, 8),
    ("m16n8k4.row.col.f32.tf32.tf32.f32", torch.float32, torch.float32, 4),
    ("m16n8k32.row.col.s32.s8.s8.s32", torch.int8, torch.int32, 32),
    ("m16n8k32.row.col.s32.u8.s8.s32", torch.uint8, torch.int32, 32),
    ("m16n8k16.row.col.s32.s8.s8.s32", torch.int8, torch.int32, 16),
    ("m16n8k32.row.col.f32.e4m3.e4m3.f32", torch.float8_e4m3fn, torch.float32, 32),
    ("m16n8k32.row.col.f32.e5m2.e5m2.f32", torch.float8_e5m2, torch.float32, 32),
]


def random_matrix(shape, dtype, g):
    if dtype in (torch.int8, torch.uint8):
        return torch.randint(0, 127, shape, generator=g).to(dtype)
    return torch.randn(shape, generator=g).to(dtype)


@pytest.mark.parametrize("mode", [MmaMode.CHAINED, MmaMode.BLOCK_TRUNCATED, MmaMode.PERMUTED])
@pytest.mark.parametrize(("mma", "dtype", "sums", "k"), CASES)
def test_products(mma, dtype, sums, k, mode):
    g = torch.Generator().manual_seed(k)
    b_type = torch.int8 if dtype == torch.uint8 else dtype
    a, b = random_matrix((16, k), dtype, g), random_matrix((8, k), b_type, g)
    if dtype == torch.float32:  # tf32
        a, b = ((x.view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (a, b))
    c = (
        random_matrix((16, 8), sums, g)
        if sums != torch.int32
        else torch.randint(-99, 99, (16, 8), generator=g, dtype=sums)
    )
    c_words, d_words = packed(c), torch.empty_like(packed(c))
    module = ptxrun.Module(
        product(mma, k * dtype.itemsize, False, 2 if sums == torch.float16 else 4)
    )
    with ptxrun.using(mma=mode):
        module.launch("product", [a, b, c_words, d_words], [1], [32])
    want = a.double() @ b.double().T + c.double()
    terms = a.double().abs() @ b.double().abs().T + c.double().abs()
    got = unpacked(d_words, sums).double()
    rounding = want.abs() * 2.0**-11 if sums == torch.float16 else 0
    assert ((got - want).abs() <= terms * 2.0**-21 + rounding).all()


def test_transposed_loads():
    g = torch.Generator().manual_seed(0)
    a, b = random_matrix((16, 16), torch.bfloat16, g), random_matrix((16, 8), torch.bfloat16, g)
    c, d = torch.zeros(2, 2, 32), torch.empty(2, 2, 32)
    module = ptxrun.Module(product(CASES[0][0], 32, True, 4))
    module.launch("product", [a, b, c, d], [1], [32])
    want = a.double() @ b.double()
    assert ((unpacked(d, torch.float32).double() - want).abs() < 1e-5).all()


def test_modes_differ():
    """Each mode adds in another way, or the modes would prove nothing."""
    g = torch.Generator().manual_seed(0)
    a, b = random_matrix((16, 16), torch.bfloat16, g), random_matrix((8, 16), torch.bfloat16, g)
    a *= torch.exp2(torch.randint(-6, 7, a.shape, generator=g))  # sums that float cannot hold
    results = []
    for mode in (MmaMode.CHAINED, MmaMode.BLOCK_TRUNCATED, MmaMode.PERMUTED):
        c, d = torch.ones(2, 2, 32), torch.empty(2, 2, 32)
        with ptxrun.using(mma=mode):
            ptxrun.Module(product(CASES[0][0], 32, False, 4)).launch(
                "product", [a, b, c, d], [1], [32]
            )
        results.append(d)
    assert all(
        not torch.equal(x, y) for x, y in zip(results, results[1:] + results[:1], strict=True)
    )


def test_matrices_need_all_lanes():
    text = """
.version 8.8
.target sm_80
.address_size 64
.visible .entry half(.param .u64 p0) {
  .reg .b32 lane, r, d;
  .reg .pred p;
  .shared .align 16 .b8 s[256];
  mov.u32 lane, %tid.x;
  setp.lt.u32 p, lane, 16;
  mov.u32 r, s;
  @p ldmatrix.sync.aligned.m8n8.x1.shared.b16 {d}, [r];
  ret;
}
"""
    with pytest.raises(ptxrun.KernelError, match="divergence"):
        ptxrun.Module(text).launch("half", [torch.zeros(1)], [1], [32])
