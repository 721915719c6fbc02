// The law in plain C++, for any architecture; on x86 fmaf is a call, and slow.
#include <cmath>

#include "gemm/cpu/rows.h"

namespace dflash {
namespace {

struct Portable {
  static constexpr int kWidth = 32, kMaxRows = 2, kMaxBusyRows = 2;
  static constexpr bool kHasDot = false;
  static constexpr int vecs(int) { return 1; }

  struct F {
    float lanes[kWidth];
  };
  template <class Function>
  static F each(Function&& f) {
    F result;
    for (int i = 0; i < kWidth; ++i) result.lanes[i] = f(i);
    return result;
  }

  static F zero() { return F{}; }
  static F load(const float* p) {
    return each([&](int i) { return p[i]; });
  }
  static void store(float* p, const F& a) { std::copy_n(a.lanes, kWidth, p); }
  static F set1(const float* p) {
    return each([&](int) { return *p; });
  }
  static F add(const F& a, const F& b) {
    return each([&](int i) { return a.lanes[i] + b.lanes[i]; });
  }
  static F fma(const F& a, const F& b, const F& c) {
    return each([&](int i) { return std::fma(a.lanes[i], b.lanes[i], c.lanes[i]); });
  }
  template <DType kDType>
  static float element(uint32_t bits) {
    const auto half = static_cast<uint16_t>(bits);
    return kDType == DType::kBF16 ? to_float(BF16{half}) : to_float(F16{half});
  }
  template <DType kDType>
  static F high(const uint32_t* words) {
    return each([&](int i) { return element<kDType>(words[i] >> 16); });
  }
  template <DType kDType>
  static F low(const uint32_t* words) {
    return each([&](int i) { return element<kDType>(words[i]); });
  }

  struct Words {
    uint32_t lanes[kWidth];
  };
  template <Codes kCodes, int kShift>
  static F number(const uint32_t* words) {
    constexpr uint32_t kMask = kCodes == Codes::kInt4 ? 15 : 255;
    return each([&](int i) { return code_value(kCodes, words[i] >> kShift & kMask); });
  }

  struct Acc {
    int32_t lanes[kWidth];
  };
  static Acc int8_zero() { return Acc{}; }
  template <Codes kCodes>
  static Words int8_codes(const uint32_t* words, int part) {
    Words codes;
    for (int i = 0; i < kWidth; ++i) {
      codes.lanes[i] = kCodes == Codes::kInt8 ? words[i] : words[i] >> (4 * part) & 0x0f0f0f0f;
    }
    return codes;
  }
  template <Codes kCodes>
  static Acc int8_dot(Acc acc, const Words& codes, const uint32_t* x) {
    for (int i = 0; i < kWidth; ++i) {
      for (int byte = 0; byte < 32; byte += 8) {
        const auto c = static_cast<int>(code_value(kCodes, codes.lanes[i] >> byte & 255));
        acc.lanes[i] += c * static_cast<int8_t>(*x >> byte);
      }
    }
    return acc;
  }
  template <Codes kCodes>
  static F int8_sum(const Acc& acc, const int32_t*) {
    return each([&](int i) { return static_cast<float>(acc.lanes[i]); });
  }
  static F floats(const char* data, DType dtype) {
    F values;
    dflash::load(data, dtype, kWidth, values.lanes);
    return values;
  }
  static void prefetch(const char* p) { __builtin_prefetch(p); }
};

}  // namespace

constinit const GemmKernels kGemmPortable = kernels_of<Portable>();

}  // namespace dflash
