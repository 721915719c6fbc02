// What every row's token is chosen from, for all rows of a pass over the head.
#pragma once

#include <vector>

#include "sample/cpu/row.h"

namespace dflash {

// laws: of each slot.
class Scans {
 public:
  explicit Scans(const std::vector<RowLaw>& laws) : rows_(laws.size()) {
    const auto is_filtered = [](const RowLaw& law) { return law.is_filtered(); };
    buffers_.resize(static_cast<size_t>(std::ranges::count_if(laws, is_filtered) * kTopCapacity));
    uint64_t* buffer = buffers_.data();
    for (size_t slot = 0; slot < laws.size(); ++slot) {
      if (!laws[slot].is_filtered()) continue;
      rows_[slot].top = TopKeys(buffer, kTopCount, kTopCapacity);
      buffer += kTopCapacity;
    }
  }
  RowScan& operator[](int64_t slot) { return rows_[slot]; }

  void merge(Scans& other) {
    for (size_t slot = 0; slot < rows_.size(); ++slot) {
      rows_[slot].best.offer(other.rows_[slot].best);
      const int64_t count = other.rows_[slot].top.sort();
      for (int64_t i = 0; i < count; ++i) rows_[slot].top.offer(other.rows_[slot].top.keys()[i]);
    }
  }

 private:
  std::vector<RowScan> rows_;
  std::vector<uint64_t> buffers_;
};

}  // namespace dflash
