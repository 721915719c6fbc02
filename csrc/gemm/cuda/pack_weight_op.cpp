#include <torch/csrc/stable/library.h>

#include <stdexcept>

#include "common/cuda.h"
#include "gemm/cuda/launch.h"
#include "gemm/pack_weight.h"

namespace dflash {

static void advise_cuda(void*, int64_t) {}  // device memory has large pages as it is

static void pack_cuda(const PackWeightParams& p, int32_t device_idx) {
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_pack_weight(p, scope.stream));
}

static void unpack_cuda(const UnpackParams& p, int32_t device_idx) {
  if (p.packed.quant) throw std::runtime_error("unpack: format must be None on cuda");
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_unpack(p, scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("pack_weight", TORCH_BOX((&pack_weight<pack_cuda, advise_cuda>)));
  m.impl("pack_weight.out", TORCH_BOX(&pack_weight_out<pack_cuda>));
  m.impl("unpack", TORCH_BOX(&unpack<unpack_cuda>));
  m.impl("unpack.out", TORCH_BOX(&unpack_out<unpack_cuda>));
}

}  // namespace dflash
