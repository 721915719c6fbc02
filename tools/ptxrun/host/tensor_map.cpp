// cuTensorMapEncodeTiled for the emulated device, and how host code finds it.

#include "core/tensor_map.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

using ptxrun::TensorMap;

namespace {

uint8_t bytes_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return 8;
    default: return 4;
  }
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuTensorMapEncodeTiled(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank,
                                        void* base, const cuuint64_t* extents,
                                        const cuuint64_t* strides, const cuuint32_t* box,
                                        const cuuint32_t* element_strides,
                                        CUtensorMapInterleave interleave,
                                        CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                        CUtensorMapFloatOOBfill fill) {
  const auto address = reinterpret_cast<uint64_t>(base);
  if (rank < 1 || rank > 5 || address % 16 != 0 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
      swizzle > CU_TENSOR_MAP_SWIZZLE_128B) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  TensorMap map{};
  map.magic = TensorMap::kMagic;
  map.rank = static_cast<uint8_t>(rank);
  map.element_bytes = bytes_of(type);
  map.swizzle = static_cast<uint8_t>(swizzle);  // 1, 2, 3: 32, 64, 128 bytes
  map.fills_nan = fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
  map.base = address;
  for (cuuint32_t i = 0; i < rank; ++i) {
    if (box[i] == 0 || box[i] > 256 || extents[i] == 0 || element_strides[i] != 1) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    map.extents[i] = extents[i];
    map.box[i] = static_cast<uint16_t>(box[i]);
    if (i + 1 == rank) break;
    if (strides[i] % 16 != 0 || strides[i] >= 1ull << 40) return CUDA_ERROR_INVALID_VALUE;
    map.strides[i] = strides[i];
  }
  const uint32_t inner = box[0] * map.element_bytes;
  if (inner % 16 != 0 || (map.swizzle != 0 && inner > 16u << map.swizzle)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::memset(out, 0, sizeof *out);
  std::memcpy(out, &map, sizeof map);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuTensorMapReplaceAddress(CUtensorMap* out, void* base) {
  TensorMap map;
  std::memcpy(&map, out, sizeof map);
  map.base = reinterpret_cast<uint64_t>(base);
  std::memcpy(out, &map, sizeof map);
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = nullptr;
  if (std::strcmp(name, "cuTensorMapEncodeTiled") == 0) {
    *function = reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
  }
  if (result != nullptr) {
    *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return cudaSuccess;
}

}  // extern "C"
