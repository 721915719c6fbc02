// int8 weights by TMA, converted in registers: wgmma takes its first operand from there.

#include "cutlass_sm90.h"

extern "C" int gemm(int which, int m, int n, int k, const void* a, const void* b, const void* c,
                    void* d, float alpha, float beta) {
  return Gemm<Shape<_128, _64, _64>, One, RowMajor, ColumnMajor,
              cutlass::gemm::KernelTmaWarpSpecializedCooperative, Auto, int8_t>::run(m, n, k, a, b,
                                                                                     c, d, alpha,
                                                                                     beta);
}
