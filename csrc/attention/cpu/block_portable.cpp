// Block arithmetic without vector instructions: the bits that the others must give.

#include "attention/cpu/block_impl.h"

namespace dflash {
namespace {

struct Portable {
  static constexpr int kWidth = 4;
  static constexpr int kRows = 2;
  static constexpr int kVecs = 4;

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
  static Reg mul(const Reg& a, const Reg& b) {
    return each([&](int i) { return a.lanes[i] * b.lanes[i]; });
  }
  static Reg fma(const Reg& a, const Reg& b, const Reg& c) {
    return each([&](int i) { return __builtin_fmaf(a.lanes[i], b.lanes[i], c.lanes[i]); });
  }
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
  static constexpr BlockOps kOps = block_ops<Portable>();
  return kOps;
}

}  // namespace dflash
