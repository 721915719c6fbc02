// Unmodified CUTLASS 3 GEMMs for sm_90a: TMA or cp.async loads, wgmma, warp-specialised schedules.

#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>

#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/util/packed_stride.hpp>

using namespace cute;
using cutlass::layout::ColumnMajor;
using cutlass::layout::RowMajor;

template <class Tile, class Cluster, class LayoutA, class LayoutB, class Schedule,
          class EpilogueSchedule>
struct Gemm {
  using Element = cutlass::bfloat16_t;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, float, RowMajor, 4, Element,
      RowMajor, 8, EpilogueSchedule>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, LayoutA, 8, Element, LayoutB, 8,
      float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Epilogue::SharedStorage))>,
      Schedule>::CollectiveOp;
  using Kernel =
      cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue>;
  using Device = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

  static int run(int m, int n, int k, const void* a, const void* b, const void* c, void* d,
                 float alpha, float beta) {
    const auto stride = [](auto s, int rows, int cols) {
      return cutlass::make_cute_packed_stride(s, make_shape(rows, cols, 1));
    };
    typename Kernel::Arguments arguments{
        cutlass::gemm::GemmUniversalMode::kGemm,
        {m, n, k, 1},
        {static_cast<const Element*>(a), stride(typename Kernel::StrideA{}, m, k),
         static_cast<const Element*>(b), stride(typename Kernel::StrideB{}, n, k)},
        {{alpha, beta},
         static_cast<const float*>(c),
         stride(typename Kernel::StrideC{}, m, n),
         static_cast<Element*>(d),
         stride(typename Kernel::StrideD{}, m, n)}};
    arguments.hw_info.sm_count = 4;
    Device gemm;
    if (gemm.can_implement(arguments) != cutlass::Status::kSuccess) return -1;
    if (const auto s = gemm.initialize(arguments); s != cutlass::Status::kSuccess) {
      return 100 + static_cast<int>(s);
    }
    return static_cast<int>(gemm.run());
  }
};

using One = Shape<_1, _1, _1>;
using Two = Shape<_2, _1, _1>;
using Auto = cutlass::epilogue::collective::EpilogueScheduleAuto;

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
