// The functions of torch's C shim that concern CUDA. The op library defines them itself: its
// tensors are CPU tensors whose addresses stand for device memory.

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <cstdlib>
#include <cstring>

#include "host/device.h"

extern "C" {

AOTITorchError aoti_torch_create_device_guard(int32_t, DeviceGuardHandle* guard) {
  *guard = reinterpret_cast<DeviceGuardHandle>(1);
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_delete_device_guard(DeviceGuardHandle) { return AOTI_TORCH_SUCCESS; }

AOTITorchError aoti_torch_get_current_cuda_stream(int32_t, void** stream) {
  *stream = nullptr;
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError torch_c10_cuda_check_msg(int32_t error, const char*, const char*, uint32_t, bool,
                                        char** message) {
  *message = error == 0 ? nullptr : strdup("error of the emulated device; see ptxrun's reports");
  return AOTI_TORCH_SUCCESS;
}

void torch_c10_cuda_free_error_msg(char* message) { std::free(message); }

// A new tensor: unwritten device memory.
AOTITorchError aoti_torch_empty_strided(int64_t ndim, const int64_t* sizes, const int64_t* strides,
                                        int32_t dtype, int32_t device_type, int32_t device_index,
                                        AtenTensorHandle* tensor) {
  uint64_t last = 0;
  bool is_empty = false;
  for (int64_t i = 0; i < ndim; ++i) {
    is_empty |= sizes[i] == 0;
    last += static_cast<uint64_t>((sizes[i] - 1) * strides[i]);
  }
  const uint64_t bytes = is_empty ? 0 : (last + 1) * aoti_torch_dtype_element_size(dtype);
  const uint64_t base = ptxrun::Device::get().allocate_temporary(bytes);
  return aoti_torch_create_tensor_from_blob(reinterpret_cast<void*>(base), ndim, sizes, strides, 0,
                                            dtype, device_type, device_index, tensor);
}

}  // extern "C"
