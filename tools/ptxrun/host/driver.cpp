// The part of the CUDA driver API that the recorder uses (corpus/gpu.py), on the emulated device.

#include <cuda.h>

#include <cstring>

#include "host/device.h"

using ptxrun::Device;

namespace {

struct DriverFunction {
  std::shared_ptr<ptxrun::Module> module;
  const ptxrun::Kernel* kernel;
};

// A module and its function handles, which live as long.
struct DriverModule {
  std::shared_ptr<ptxrun::Module> module;
  std::vector<std::unique_ptr<DriverFunction>> functions;
};

// No exception may reach a C caller: what it says becomes a report.
template <class F>
CUresult guarded(F&& f) {
  try {
    f();
    return CUDA_SUCCESS;
  } catch (const std::exception& error) {
    Device::get().add_report("driver", error.what());
    return CUDA_ERROR_INVALID_PTX;
  }
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int) { return *device = 0, CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = nullptr;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxSynchronize() {
  Device::get().finish_launches();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::strncpy(name, "ptxrun", static_cast<size_t>(size));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  const int arch = Device::get().arch;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = arch / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = arch % 10; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return guarded([&] {
    auto loaded = std::make_unique<DriverModule>();
    const auto* ptx = static_cast<const char*>(image);
    loaded->module = std::make_shared<ptxrun::Module>(ptx, Device::get().memory());
    *module = reinterpret_cast<CUmodule>(loaded.release());
  });
}
CUresult cuModuleUnload(CUmodule module) {
  delete reinterpret_cast<DriverModule*>(module);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return guarded([&] {
    auto& owner = *reinterpret_cast<DriverModule*>(module);
    owner.functions.push_back(std::make_unique<DriverFunction>(
        DriverFunction{owner.module, &owner.module->kernel(name)}));
    *function = reinterpret_cast<CUfunction>(owner.functions.back().get());
  });
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                        CUstream, void** arguments, void**) {
  const auto& f = *reinterpret_cast<DriverFunction*>(function);
  const ptxrun::Launch launch{
      {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, {1, 1, 1}, shared};
  const std::string wrong = Device::get().launch(f.module, *f.kernel, launch, arguments);
  return wrong.empty() ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  *address = Device::get().allocate(bytes, "cuMemAlloc");
  return CUDA_SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr address) {
  Device::get().release(address);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  std::memcpy(Device::get().data(to, bytes), from, bytes);
  Device::get().mark_written(to, bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  std::memcpy(to, Device::get().data(from, bytes), bytes);
  return CUDA_SUCCESS;
}

}  // extern "C"
