#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "gemm/cuda/launch.h"
#include "gemm/pack_quant.h"
#include "gemm/pack_weight.h"

namespace dflash {

static void advise_cuda(void*, int64_t) {}  // device memory has large pages as it is

static void pack_cuda(const PackWeightParams& p, int32_t device_idx) {
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_pack_weight(p, scope.stream));
}

static void pack_quant_cuda(const PackQuantParams& p, int32_t device_idx) {
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_pack_quant(p, scope.stream));
}

static std::vector<int64_t> read_cuda(const IndexView& view, int64_t count, int32_t device_idx) {
  const CudaScope scope(device_idx);
  const int64_t span = count == 0 ? 0 : (count - 1) * view.stride + 1;
  std::vector<char> bytes(span * (view.is_int64 ? 8 : 4));
  STD_CUDA_CHECK(
      cudaMemcpyAsync(bytes.data(), view.data, bytes.size(), cudaMemcpyDeviceToHost, scope.stream));
  STD_CUDA_CHECK(cudaStreamSynchronize(scope.stream));
  const IndexView here{bytes.data(), view.stride, view.is_int64};
  std::vector<int64_t> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = here[i];
  return values;
}

static void unpack_cuda(const UnpackParams& p, int32_t device_idx) {
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(p.packed.quant ? launch_unpack_quant(p, scope.stream)
                                : launch_unpack(p, scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("pack_weight", TORCH_BOX((&pack_weight<pack_cuda, advise_cuda>)));
  m.impl("pack_weight.out", TORCH_BOX(&pack_weight_out<pack_cuda>));
  m.impl("pack_w8", TORCH_BOX((&pack_w8<pack_quant_cuda, advise_cuda>)));
  m.impl("pack_w8.out", TORCH_BOX(&pack_w8_out<pack_quant_cuda>));
  m.impl("pack_w4", TORCH_BOX((&pack_w4<pack_quant_cuda, read_cuda, advise_cuda>)));
  m.impl("pack_w4.out", TORCH_BOX((&pack_w4_out<pack_quant_cuda, read_cuda>)));
  m.impl("unpack", TORCH_BOX(&unpack<unpack_cuda>));
  m.impl("unpack.out", TORCH_BOX(&unpack_out<unpack_cuda>));
}

}  // namespace dflash
