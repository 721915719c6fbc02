// An unmodified CUTLASS 3 GEMM for sm_90a: loads, tiles, types and schedules are the caller's.
#pragma once

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

using BF16 = cutlass::bfloat16_t;

template <class Tile, class Cluster, class LayoutA, class LayoutB, class Schedule,
          class EpilogueSchedule, class A = BF16, class B = BF16>
struct Gemm {
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, float, RowMajor, 4, BF16,
      RowMajor, 8, EpilogueSchedule>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, A, LayoutA, 16 / sizeof(A), B, LayoutB,
      16 / sizeof(B), float, Tile, Cluster,
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
        {static_cast<const A*>(a), stride(typename Kernel::StrideA{}, m, k),
         static_cast<const B*>(b), stride(typename Kernel::StrideB{}, n, k)},
        {{alpha, beta},
         static_cast<const float*>(c),
         stride(typename Kernel::StrideC{}, m, n),
         static_cast<BF16*>(d),
         stride(typename Kernel::StrideD{}, m, n)}};
    arguments.hw_info.sm_count = 1;
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
