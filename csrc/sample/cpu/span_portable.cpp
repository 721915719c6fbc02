#include "sample/cpu/span_loops.h"

namespace dflash {
namespace {

struct NoiseWords {
  const NoiseKey& key;

  void block(uint32_t first_group, uint32_t* words) const {
    for (int i = 0; i < kLseBlock / 4; ++i) {
      const Words group = noise_words(key, first_group + i, false);
      for (int j = 0; j < 4; ++j) words[4 * i + j] = group.word[j];
    }
  }
};

}  // namespace

constinit const SpanKernels kSpanPortable = span_loops<NoiseWords>();

}  // namespace dflash
