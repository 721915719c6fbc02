// Arithmetic on f16 and bf16, one or two to a register. Computed in double, rounded once.

#include <cmath>

#include "core/approx.h"
#include "core/decode.h"
#include "core/grid.h"
#include "core/numeric.h"

namespace ptxrun {
namespace {

constexpr uint8_t kRelu = 1, kSat = 2;

template <class Format>
uint16_t finish(const Instruction& in, double x) {
  if ((in.mode & kRelu) != 0 && !std::isnan(x)) x = std::fmax(x, 0.0);
  if ((in.mode & kSat) != 0) x = std::isnan(x) ? 0 : std::fmin(std::fmax(x, 0.0), 1.0);
  return Format::rounded(x);
}

// Word is uint16_t for one number, uint32_t for two.
template <class Word, class Format, auto kOp>
void apply(Warp& w, const Instruction& in, uint32_t mask) {
  const size_t last = in.refs.size() - 1;
  const Word* a = w.lanes<Word>(in.refs[1]);
  const Word* b = w.lanes<Word>(in.refs[last < 2 ? 1 : 2]);
  const Word* c = w.lanes<Word>(in.refs[last < 3 ? 1 : 3]);
  set_lanes<Word>(w, in.refs[0], mask, [&](int i) {
    Word result = 0;
    for (size_t k = 0; k < sizeof(Word); k += 2) {
      const auto part = [&](Word word) -> double {
        return Format::value(static_cast<uint16_t>(word >> (8 * k)));
      };
      const uint16_t bits = finish<Format>(in, kOp(part(a[i]), part(b[i]), part(c[i])));
      result |= static_cast<Word>(static_cast<Word>(bits) << (8 * k));
    }
    return result;
  });
}

constexpr auto kAdd = [](double a, double b, double) { return a + b; };
constexpr auto kSub = [](double a, double b, double) { return a - b; };
constexpr auto kMul = [](double a, double b, double) { return a * b; };
constexpr auto kFma = [](double a, double b, double c) { return a * b + c; };
constexpr auto kMin = [](double a, double b, double) { return lesser(a, b, false); };
constexpr auto kMax = [](double a, double b, double) { return greater(a, b, false); };
constexpr auto kMinNan = [](double a, double b, double) { return lesser(a, b, true); };
constexpr auto kMaxNan = [](double a, double b, double) { return greater(a, b, true); };
constexpr auto kExp2 = [](double a, double, double) -> double {
  return approx::exp2(static_cast<float>(a), true);
};
constexpr auto kTanh = [](double a, double, double) -> double {
  return approx::tanh(static_cast<float>(a), true);
};

template <auto kOp>
Handler handler(const Decoder& d) {
  const std::string& name = d.parts().back();
  if (name == "f16") return apply<uint16_t, Half, kOp>;
  if (name == "bf16") return apply<uint16_t, BFloat, kOp>;
  if (name == "f16x2") return apply<uint32_t, Half, kOp>;
  if (name == "bf16x2") return apply<uint32_t, BFloat, kOp>;
  return nullptr;
}

template <auto kOp, size_t kSources>
void decode_op(Decoder& d) {
  d.destination(0, d.type());
  for (size_t i = 1; i <= kSources; ++i) d.source(i, d.type());
  if (d.has("relu")) d.out().mode |= kRelu;
  if (d.has("sat")) d.out().mode |= kSat;
  if (d.has("rz") || d.has("rm") || d.has("rp")) return;
  d.out().run = handler<kOp>(d);
}

template <auto kOp, auto kNanOp>
void decode_extreme(Decoder& d) {
  if (d.has("xorsign")) return;
  d.has("NaN") ? decode_op<kNanOp, 2>(d) : decode_op<kOp, 2>(d);
}

template <class Word, bool kNegates>
void sign(Warp& w, const Instruction& in, uint32_t mask) {
  const Word* a = w.lanes<Word>(in.refs[1]);
  const auto bits = static_cast<Word>(0x80008000u);
  set_lanes<Word>(w, in.refs[0], mask,
                  [&](int i) { return static_cast<Word>(kNegates ? a[i] ^ bits : a[i] & ~bits); });
}

template <bool kNegates>
void decode_sign(Decoder& d) {
  d.destination(0, d.type());
  d.source(1, d.type());
  d.out().run = d.type().bytes == 2 ? sign<uint16_t, kNegates> : sign<uint32_t, kNegates>;
}

}  // namespace

void add_packed(InstructionTable& table) {
  table["add.half"] = decode_op<kAdd, 2>;
  table["sub.half"] = decode_op<kSub, 2>;
  table["mul.half"] = decode_op<kMul, 2>;
  table["fma.half"] = decode_op<kFma, 3>;
  table["min.half"] = decode_extreme<kMin, kMinNan>;
  table["max.half"] = decode_extreme<kMax, kMaxNan>;
  table["ex2.half"] = decode_op<kExp2, 1>;
  table["tanh.half"] = decode_op<kTanh, 1>;
  table["neg.half"] = decode_sign<true>;
  table["abs.half"] = decode_sign<false>;
}

}  // namespace ptxrun
