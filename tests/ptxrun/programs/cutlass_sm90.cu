// TMA or cp.async loads, wgmma with both operands in shared memory, warp-specialised schedules.

#include "cutlass_sm90.h"

extern "C" int gemm(int which, int m, int n, int k, const void* a, const void* b, const void* c,
                    void* d, float alpha, float beta) {
  switch (which) {
    case 0:
      return Gemm<Shape<_64, _128, _64>, One, RowMajor, ColumnMajor,
                  cutlass::gemm::KernelTmaWarpSpecializedPingpong, Auto>::run(m, n, k, a, b, c, d,
                                                                              alpha, beta);
    case 1:
      return Gemm<Shape<_128, _64, _32>, One, ColumnMajor, RowMajor,
                  cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                  cutlass::epilogue::TmaWarpSpecializedCooperative>::run(m, n, k, a, b, c, d, alpha,
                                                                         beta);
    case 2:
      return Gemm<Shape<_64, _64, _64>, One, RowMajor, ColumnMajor,
                  cutlass::gemm::KernelCpAsyncWarpSpecialized, Auto>::run(m, n, k, a, b, c, d,
                                                                          alpha, beta);
    case 3:
      return Gemm<Shape<_64, _64, _64>, Two, RowMajor, ColumnMajor,
                  cutlass::gemm::KernelTmaWarpSpecialized, Auto>::run(m, n, k, a, b, c, d, alpha,
                                                                      beta);
    default: return -1;
  }
}
