// What one thread of this machine can do: a plain read loop and multiply-accumulate peaks.
// Measuring only: probe.py builds it with -march=native.
#include <cstdint>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
static constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
static constexpr int kVectorBytes = 32;
#else
static constexpr int kVectorBytes = 16;
#endif

static constexpr int kChains = 12;  // latency 6 or less, two a cycle or fewer

extern "C" uint64_t read_bytes(const void* data, uint64_t num_bytes) {
  const auto* words = static_cast<const uint64_t*>(data);
  uint64_t sums[32] = {};  // independent chains, so that only memory is waited for
  for (uint64_t i = 0; i + 32 <= num_bytes / 8; i += 32) {
    for (int c = 0; c < 32; ++c) sums[c] += words[i + c];
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

// The peaks: each runs `num_steps` instructions a chain and returns the macs of one instruction; 0
// if the machine has none.
extern "C" int peak_f32(uint64_t num_steps) {
  using Vector [[gnu::vector_size(kVectorBytes)]] = float;
  Vector sums[kChains] = {};
  Vector x = Vector{} + 1e-3f;
  for (uint64_t i = 0; i < num_steps; ++i) {
    asm volatile("" : "+v"(x));  // else the product would be taken once for all steps
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      sums[c] = x * x + sums[c];
      asm volatile("" : "+v"(sums[c]));
    }
  }
  return kVectorBytes / 4;
}

extern "C" int peak_bf16([[maybe_unused]] uint64_t num_steps) {
#ifdef __AVX512BF16__
  __m512 sums[kChains] = {};
  const auto x = (__m512bh)_mm512_set1_epi32(0x3f803f80);
  for (uint64_t i = 0; i < num_steps; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      sums[c] = _mm512_dpbf16_ps(sums[c], x, x);
      asm volatile("" : "+v"(sums[c]));
    }
  }
  return 32;
#else
  return 0;
#endif
}

extern "C" int peak_int8([[maybe_unused]] uint64_t num_steps) {
#ifdef __AVX512VNNI__
  __m512i sums[kChains] = {};
  const __m512i x = _mm512_set1_epi32(0x01010101);
  for (uint64_t i = 0; i < num_steps; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      sums[c] = _mm512_dpbusd_epi32(sums[c], x, x);
      asm volatile("" : "+v"(sums[c]));
    }
  }
  return 64;
#else
  return 0;
#endif
}
