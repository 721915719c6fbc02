// An attention head: 16 rows over keys that 4 warps share, behind a tree mask; bf16, head dim 64.
// What most kernels are made of: a cp.async pipeline, ldmatrix, mma, shuffles, shared atomics.
//
//   grid   heads                 block  4 warps
//   smem   q, two stages of k and v, and the merge of the warps

#include <cuda_bf16.h>

#include <cstdint>

constexpr int kDim = 64, kKeys = 64, kRows = 16, kWarps = 4;
constexpr int kPitch = kDim + 8;  // rows start in different banks

__device__ uint32_t shared(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ void copy16(void* to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared(to)), "l"(from),
               "r"(is_there ? 16 : 0)
               : "memory");
}

__device__ void load_matrices(uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared(p))
               : "memory");
}

__device__ void load_transposed(uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared(p))
               : "memory");
}

__device__ void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ uint32_t packed(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Row r sees the first num_prefix keys, and of the others those whose bit is set in mask[r].
extern "C" __global__ void __launch_bounds__(kWarps * 32)
    attention(const __nv_bfloat16* q, const __nv_bfloat16* k, const __nv_bfloat16* v,
              const uint32_t* mask, float* out, int num_keys, int num_prefix, float scale) {
  using Row = __nv_bfloat16[kPitch];
  __shared__ __align__(16) Row q_rows[kRows];
  __shared__ __align__(16) Row k_rows[2][kKeys], v_rows[2][kKeys];
  __shared__ float maxima[kWarps][kRows], sums[kWarps][kRows], merged[kRows][kDim];
  const int t = static_cast<int>(threadIdx.x), warp = t / 32, lane = t % 32;
  const size_t head = blockIdx.x;
  q += head * kRows * kDim;
  k += head * num_keys * kDim;
  v += head * num_keys * kDim;
  out += head * kRows * kDim;

  const auto load = [&](int stage, int tile) {
    for (int i = t; i < kKeys * kDim / 8; i += kWarps * 32) {
      const int row = i / (kDim / 8), col = i % (kDim / 8) * 8, key = tile * kKeys + row;
      const size_t at = static_cast<size_t>(key < num_keys ? key : 0) * kDim + col;
      copy16(&k_rows[stage][row][col], k + at, key < num_keys);
      copy16(&v_rows[stage][row][col], v + at, key < num_keys);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  if (t < kRows * kDim / 8) {
    const int row = t / (kDim / 8), col = t % (kDim / 8) * 8;
    *reinterpret_cast<uint4*>(&q_rows[row][col]) =
        *reinterpret_cast<const uint4*>(q + row * kDim + col);
  }
  const int num_tiles = (num_keys + kKeys - 1) / kKeys;
  load(0, 0);
  __syncthreads();
  uint32_t a[kDim / 16][4];
  for (int i = 0; i < kDim / 16; ++i) {
    load_matrices(a[i], &q_rows[lane % 16][i * 16 + lane / 16 * 8]);
  }
  const uint32_t bits[2] = {mask[lane / 4], mask[lane / 4 + 8]};
  float sum[kDim / 8][4] = {}, largest[2] = {-INFINITY, -INFINITY}, total[2] = {};
  for (int tile = 0; tile < num_tiles; ++tile) {
    if (tile + 1 < num_tiles) {
      load((tile + 1) % 2, tile + 1);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncthreads();
    const Row *k_tile = k_rows[tile % 2] + warp * 16, *v_tile = v_rows[tile % 2] + warp * 16;
    float score[2][4] = {};
    for (int i = 0; i < kDim / 16; ++i) {
      uint32_t b[4];
      load_matrices(b, &k_tile[lane % 8 + lane / 16 * 8][i * 16 + lane / 8 % 2 * 8]);
      multiply(score[0], a[i], b);
      multiply(score[1], a[i], b + 2);
    }
    for (int r = 0; r < 2; ++r) {
      float most = largest[r];
      for (int i = 0; i < 4; ++i) {
        const int key = tile * kKeys + warp * 16 + i / 2 * 8 + lane % 4 * 2 + i % 2;
        float& s = score[i / 2][2 * r + i % 2];
        const bool sees =
            key < num_keys && (key < num_prefix || (bits[r] >> (key - num_prefix) & 1) != 0);
        s = sees ? s * scale : -INFINITY;
        most = fmaxf(most, s);
      }
      for (int d : {1, 2}) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
      const float base = most == -INFINITY ? 0 : most, factor = exp2f(largest[r] - base);
      largest[r] = most;
      total[r] *= factor;
      for (auto& column : sum) {
        for (int i = 0; i < 2; ++i) column[2 * r + i] *= factor;
      }
      for (int i = 0; i < 4; ++i) {
        float& s = score[i / 2][2 * r + i % 2];
        s = exp2f(s - base);
        total[r] += s;
      }
    }
    const uint32_t p[4] = {packed(score[0][0], score[0][1]), packed(score[0][2], score[0][3]),
                           packed(score[1][0], score[1][1]), packed(score[1][2], score[1][3])};
    for (int i = 0; i < kDim / 16; ++i) {
      uint32_t b[4];
      load_transposed(b, &v_tile[lane % 16][i * 16 + lane / 16 * 8]);
      multiply(sum[2 * i], p, b);
      multiply(sum[2 * i + 1], p, b + 2);
    }
    __syncthreads();
  }

  // The warps' sums, scaled to the largest score of all.
  for (int r = 0; r < 2; ++r) {
    for (int d : {1, 2}) total[r] += __shfl_xor_sync(~0u, total[r], d);
    if (lane % 4 == 0) {
      maxima[warp][lane / 4 + 8 * r] = largest[r];
      sums[warp][lane / 4 + 8 * r] = total[r];
    }
  }
  for (int i = t; i < kRows * kDim; i += kWarps * 32) merged[i / kDim][i % kDim] = 0;
  __syncthreads();
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r;
    float most = -INFINITY, all = 0;
    for (int w = 0; w < kWarps; ++w) most = fmaxf(most, maxima[w][row]);
    for (int w = 0; w < kWarps; ++w) all += sums[w][row] * exp2f(maxima[w][row] - most);
    const float factor = exp2f(largest[r] - most) / all;
    for (int i = 0; i < kDim / 8; ++i) {
      for (int j = 0; j < 2; ++j) {
        atomicAdd(&merged[row][i * 8 + lane % 4 * 2 + j], sum[i][2 * r + j] * factor);
      }
    }
  }
  __syncthreads();
  for (int i = t * 4; i < kRows * kDim; i += kWarps * 32 * 4) {
    *reinterpret_cast<float4*>(out + i) =
        *reinterpret_cast<const float4*>(&merged[i / kDim][i % kDim]);
  }
}

extern "C" int run(const __nv_bfloat16* q, const __nv_bfloat16* k, const __nv_bfloat16* v,
                   const uint32_t* mask, float* out, int heads, int num_keys, int num_prefix,
                   float scale) {
  attention<<<heads, kWarps * 32>>>(q, k, v, mask, out, num_keys, num_prefix, scale);
  return cudaGetLastError();
}
