// Block arithmetic without vector instructions: the bits that the others must give.

#include "attention/cpu/block_table.h"

namespace dflash {
namespace {

struct Portable {
  static constexpr int kWidth = 4;

  struct Reg {
    float lanes[kWidth];
  };

  template <class F>
  static Reg each(F f) {
    Reg r;
    for (int i = 0; i < kWidth; ++i) r.lanes[i] = f(i);
    return r;
  }
  static Reg load(const float* x) { return widen(x); }
  template <class T>
  static Reg widen(const T* x) {
    return each([&](int i) { return to_float(x[i]); });
  }
  static void store(float* x, const Reg& r) {
    for (int i = 0; i < kWidth; ++i) x[i] = r.lanes[i];
  }
  static Reg broadcast(float x) {
    return each([&](int) { return x; });
  }
  static Reg add(const Reg& a, const Reg& b) {
    return each([&](int i) { return a.lanes[i] + b.lanes[i]; });
  }
  static Reg max(const Reg& a, const Reg& b) {
    return each([&](int i) { return max_f32(a.lanes[i], b.lanes[i]); });
  }
  static Reg sub(const Reg& a, const Reg& b) {
    return each([&](int i) { return a.lanes[i] - b.lanes[i]; });
  }
  static Reg mul(const Reg& a, const Reg& b) {
    return each([&](int i) { return a.lanes[i] * b.lanes[i]; });
  }
  static Reg fma(const Reg& a, const Reg& b, const Reg& c) {
    return each([&](int i) { return __builtin_fmaf(a.lanes[i], b.lanes[i], c.lanes[i]); });
  }
  static Reg low_half(const Reg& words) {
    return each([&](int i) { return std::bit_cast<float>(bits(words, i) << 16); });
  }
  static Reg high_half(const Reg& words) {
    return each([&](int i) { return std::bit_cast<float>(bits(words, i) & 0xffff0000); });
  }
  static Reg round_to_bf16(const Reg& x) {
    return each([&](int i) { return to_float(from_float<BF16>(x.lanes[i])); });
  }
  static void interleave(const BF16* even, const BF16* odd, float* words) {
    for (int i = 0; i < kLaneMultiple; ++i) {
      words[i] = std::bit_cast<float>(static_cast<uint32_t>(odd[i].bits) << 16 | even[i].bits);
    }
  }
  // 2^n, if x is n + 1.5 * 2^23.
  static Reg power_of_two(const Reg& x) {
    return each([&](int i) { return std::bit_cast<float>((bits(x, i) << 23) + 0x3f800000); });
  }
  static Reg zero_below(const Reg& value, const Reg& x, const Reg& limit) {
    return each([&](int i) { return x.lanes[i] < limit.lanes[i] ? 0.0f : value.lanes[i]; });
  }
  static Reg choose(const int32_t* mask, const Reg& yes, const Reg& no) {
    return each([&](int i) { return mask[i] != 0 ? yes.lanes[i] : no.lanes[i]; });
  }
  static uint32_t bits(const Reg& x, int i) { return std::bit_cast<uint32_t>(x.lanes[i]); }

  static void transpose(Reg (&tile)[kWidth]) {
    for (int i = 0; i < kWidth; ++i) {
      for (int j = 0; j < i; ++j) {
        const float upper = tile[j].lanes[i];
        tile[j].lanes[i] = tile[i].lanes[j];
        tile[i].lanes[j] = upper;
      }
    }
  }
};

}  // namespace

const BlockOps& block_ops_portable() {
  static constexpr BlockOps kOps =
      block_ops<Portable, Floats<Portable, 2, 4>, Bf16Words<Portable, 2, 4>>();
  return kOps;
}

}  // namespace dflash
