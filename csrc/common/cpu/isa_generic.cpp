// Architectures without kernels of their own: a device class in which denormals stay.
#include "common/cpu/isa.h"

namespace dflash {

bool has_isa(Isa isa) { return isa == Isa::kPortable; }
uint32_t flush_denormals() { return 0; }
void restore_denormals(uint32_t) {}

}  // namespace dflash
