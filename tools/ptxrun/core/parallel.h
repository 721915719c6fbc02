// A launch, its CTAs spread over threads where they cannot tell each other anything.
#pragma once

#include <memory>

#include "core/grid.h"

namespace ptxrun {

// Everything a launch leaves behind: counters, reports, what it touched. The same for any number of
// threads, but for which of two racing CTAs a report names.
std::unique_ptr<Grid> run_launch(const Module& module, const Kernel& kernel, Memory& memory,
                                 const Launch& launch, const Options& options,
                                 const void* parameters,
                                 const std::shared_ptr<const GlobalShadow>& before);

}  // namespace ptxrun
