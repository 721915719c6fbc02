// An unmodified CUTLASS 2 GEMM: tiles, stages and types are chosen by the build line.

#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm.h>

using cutlass::gemm::GemmShape;
using cutlass::layout::ColumnMajor;
using cutlass::layout::RowMajor;

template <class In, class Sum, class LayoutA, class LayoutB, int kTileM, int kTileN, int kTileK,
          class Mma, int kStages>
using Gemm = cutlass::gemm::device::Gemm<
    In, LayoutA, In, LayoutB, Sum, RowMajor, Sum, cutlass::arch::OpClassTensorOp,
    cutlass::arch::Sm80, GemmShape<kTileM, kTileN, kTileK>,
    GemmShape<kTileM / 2, kTileN / 2, kTileK>, Mma,
    cutlass::epilogue::thread::LinearCombination<Sum, 4, Sum, float>,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>, kStages>;

template <class G, class In, class Sum>
int run(int m, int n, int k, int lda, int ldb, const void* a, const void* b, const void* c, void* d,
        float alpha, float beta) {
  typename G::Arguments arguments({m, n, k}, {static_cast<const In*>(a), lda},
                                  {static_cast<const In*>(b), ldb}, {static_cast<const Sum*>(c), n},
                                  {static_cast<Sum*>(d), n}, {alpha, beta});
  G gemm;
  if (gemm.can_implement(arguments) != cutlass::Status::kSuccess) return -1;
  return static_cast<int>(gemm(arguments));
}

using BF16 = cutlass::bfloat16_t;
using F16 = cutlass::half_t;
using TF32 = cutlass::tfloat32_t;
using Mma16 = GemmShape<16, 8, 16>;
using Mma8 = GemmShape<16, 8, 8>;
using Mma32 = GemmShape<16, 8, 32>;

extern "C" int gemm(int which, int m, int n, int k, int lda, int ldb, const void* a, const void* b,
                    const void* c, void* d, float alpha, float beta) {
  switch (which) {
    case 0:
      return run<Gemm<BF16, float, RowMajor, ColumnMajor, 64, 64, 32, Mma16, 3>, BF16, float>(
          m, n, k, lda, ldb, a, b, c, d, alpha, beta);
    case 1:
      return run<Gemm<F16, float, ColumnMajor, RowMajor, 64, 128, 32, Mma16, 4>, F16, float>(
          m, n, k, lda, ldb, a, b, c, d, alpha, beta);
    case 2:
      return run<Gemm<TF32, float, RowMajor, ColumnMajor, 64, 64, 16, Mma8, 3>, TF32, float>(
          m, n, k, lda, ldb, a, b, c, d, alpha, beta);
    case 3:
      return run<Gemm<int8_t, int32_t, RowMajor, ColumnMajor, 64, 64, 64, Mma32, 3>, int8_t,
                 int32_t>(m, n, k, lda, ldb, a, b, c, d, alpha, beta);
    default: return -1;
  }
}
