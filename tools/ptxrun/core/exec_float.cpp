// f32 and f64 arithmetic. The host's rounding is to nearest even; other modes are computed from it.

#include <cmath>
#include <cstring>

#include "core/approx.h"
#include "core/decode.h"
#include "core/grid.h"
#include "core/numeric.h"

namespace ptxrun {
namespace {

constexpr uint8_t kFtz = 1, kSat = 2;

template <class T>
T flushed(uint8_t mode, T x) {
  if constexpr (sizeof(T) == 4) {
    const bool is_tiny = (std::bit_cast<uint32_t>(x) & 0x7f800000) == 0;
    return ((mode & kFtz) != 0) & is_tiny ? std::copysign(T{0}, x) : x;
  }
  return x;
}

template <class T>
T finish(uint8_t mode, T x) {
  if constexpr (sizeof(T) == 4) {
    x = flushed(mode, x);
    const T upper = x > 0 ? x : T{0};  // and NaN
    const T within = upper < 1 ? upper : T{1};
    x = (mode & kSat) != 0 ? within : x;
  }
  return canonical(x);
}

template <class T, auto kOp>
void unary(Warp& w, const Instruction& in, uint32_t mask) {
  const T* a = w.lanes<T>(in.refs[1]);
  set_lanes<T>(w, in.refs[0], mask,
               [a, m = in.mode](int i) { return finish(m, kOp(flushed(m, a[i]))); });
}

template <class T, auto kOp>
void binary(Warp& w, const Instruction& in, uint32_t mask) {
  const T *a = w.lanes<T>(in.refs[1]), *b = w.lanes<T>(in.refs[2]);
  if (in.mode == 0) {  // the usual case, free of branches
    return set_lanes<T>(w, in.refs[0], mask, [&](int i) { return canonical(kOp(a[i], b[i])); });
  }
  set_lanes<T>(w, in.refs[0], mask, [a, b, m = in.mode](int i) {
    return finish(m, kOp(flushed(m, a[i]), flushed(m, b[i])));
  });
}

template <class T>
void fused(Warp& w, const Instruction& in, uint32_t mask) {
  const T *a = w.lanes<T>(in.refs[1]), *b = w.lanes<T>(in.refs[2]), *c = w.lanes<T>(in.refs[3]);
  if (in.mode == 0) {
    return set_lanes<T>(w, in.refs[0], mask,
                        [&](int i) { return canonical(std::fma(a[i], b[i], c[i])); });
  }
  set_lanes<T>(w, in.refs[0], mask, [a, b, c, m = in.mode](int i) {
    return finish(m, std::fma(flushed(m, a[i]), flushed(m, b[i]), flushed(m, c[i])));
  });
}

constexpr auto kAdd = [](auto a, auto b) { return a + b; };
constexpr auto kSub = [](auto a, auto b) { return a - b; };
constexpr auto kMul = [](auto a, auto b) { return a * b; };
constexpr auto kDiv = [](auto a, auto b) { return a / b; };
constexpr auto kMin = [](auto a, auto b) { return lesser(a, b, false); };
constexpr auto kMax = [](auto a, auto b) { return greater(a, b, false); };
constexpr auto kMinNan = [](auto a, auto b) { return lesser(a, b, true); };
constexpr auto kMaxNan = [](auto a, auto b) { return greater(a, b, true); };
constexpr auto kSqrt = [](auto a) { return std::sqrt(a); };
constexpr auto kReciprocal = [](auto a) { return 1 / a; };

// Towards zero, down or up, of one operation: the exact result against the nearest one. fma finds
// the sign of the rounding error for sums and products in twice the precision.
template <class T, auto kExact>
void directed(Warp& w, const Instruction& in, uint32_t mask) {
  const float *a = w.lanes<float>(in.refs[1]), *b = w.lanes<float>(in.refs[2]);
  const float* c = w.lanes<float>(in.refs[in.refs.size() > 3 ? 3 : 2]);
  set_lanes<float>(w, in.refs[0], mask, [&](int i) {
    const T exact = kExact(static_cast<T>(a[i]), static_cast<T>(b[i]), static_cast<T>(c[i]));
    auto x = static_cast<float>(exact);
    const char way = static_cast<char>(in.vector);
    const bool down = way == 'm' || (way == 'z' && exact > 0);
    const bool up = way == 'p' || (way == 'z' && exact < 0);
    if (down && static_cast<T>(x) > exact) x = std::nextafter(x, -INFINITY);
    if (up && static_cast<T>(x) < exact) x = std::nextafter(x, INFINITY);
    return finish(in.mode, x);
  });
}

constexpr auto kExactAdd = [](auto a, auto b, auto) { return a + b; };
constexpr auto kExactSub = [](auto a, auto b, auto) { return a - b; };
constexpr auto kExactMul = [](auto a, auto b, auto) { return a * b; };
constexpr auto kExactDiv = [](auto a, auto b, auto) { return a / b; };
constexpr auto kExactFma = [](auto a, auto b, auto c) { return a * b + c; };

void modes(Decoder& d) {
  Instruction& out = d.out();
  if (d.has("ftz")) out.mode |= kFtz;
  if (d.has("sat")) out.mode |= kSat;
}

// 'n' nearest, 'z' to zero, 'm' down, 'p' up.
char rounding(const Decoder& d) {
  return d.has("rz") ? 'z' : d.has("rm") ? 'm' : d.has("rp") ? 'p' : 'n';
}

void operands(Decoder& d, size_t sources) {
  d.destination(0, d.type());
  for (size_t i = 1; i <= sources; ++i) d.source(i, d.type());
  modes(d);
}

template <auto kOp, auto kExact>
void decode_binary(Decoder& d) {
  operands(d, 2);
  const char way = rounding(d);
  d.out().vector = static_cast<uint8_t>(way);
  if (d.type().bytes == 8) {
    if (way == 'n') d.out().run = binary<double, kOp>;
  } else {
    d.out().run = way == 'n' ? binary<float, kOp> : directed<long double, kExact>;
  }
}

void decode_fma(Decoder& d) {
  operands(d, 3);
  const char way = rounding(d);
  d.out().vector = static_cast<uint8_t>(way);
  if (d.type().bytes == 8) {
    if (way == 'n') d.out().run = fused<double>;
  } else {
    d.out().run = way == 'n' ? fused<float> : directed<__float128, kExactFma>;
  }
}

template <auto kOp>
void decode_unary(Decoder& d) {
  operands(d, 1);
  if (rounding(d) != 'n') return;
  d.out().run = d.type().bytes == 8 ? unary<double, kOp> : unary<float, kOp>;
}

template <auto kOp, auto kNanOp>
void decode_extreme(Decoder& d) {
  operands(d, 2);
  if (d.has("xorsign") || d.count() > 3) return;
  if (d.type().bytes == 8) {
    d.out().run = binary<double, kOp>;
  } else {
    d.out().run = d.has("NaN") ? binary<float, kNanOp> : binary<float, kOp>;
  }
}

// Sign bits only: NaN keeps its payload.
template <class T, auto kOp>
void on_bits(Warp& w, const Instruction& in, uint32_t mask) {
  const T* a = w.lanes<T>(in.refs[1]);
  set_lanes<T>(w, in.refs[0], mask, [&](int i) { return static_cast<T>(kOp(a[i])); });
}
constexpr auto kAbsBits = []<class T>(T a) { return a & ~(T{1} << (8 * sizeof(T) - 1)); };
constexpr auto kNegBits = []<class T>(T a) { return a ^ (T{1} << (8 * sizeof(T) - 1)); };

template <auto kOp>
void decode_sign(Decoder& d) {
  operands(d, 1);
  if (d.has("ftz")) return;
  d.out().run = d.type().bytes == 8 ? on_bits<uint64_t, kOp> : on_bits<uint32_t, kOp>;
}

template <class T>
void copy_sign(Warp& w, const Instruction& in, uint32_t mask) {
  const T *a = w.lanes<T>(in.refs[1]), *b = w.lanes<T>(in.refs[2]);
  set_lanes<T>(w, in.refs[0], mask, [&](int i) { return std::copysign(b[i], a[i]); });
}

template <auto kOp>
[[gnu::flatten]] void approximate(Warp& w, const Instruction& in, uint32_t mask) {
  const float* a = w.lanes<float>(in.refs[1]);
  const bool perturbs = w.cta->grid->options.perturb_approx;
  set_lanes<float>(w, in.refs[0], mask, [a, perturbs, m = in.mode](int i) {
    return finish(m, kOp(flushed(m, a[i]), perturbs));
  });
}

template <auto kOp>
void decode_approx(Decoder& d) {
  operands(d, 1);
  if (d.type().bytes == 4) d.out().run = approximate<kOp>;
}

void approximate_division(Warp& w, const Instruction& in, uint32_t mask) {
  const float *a = w.lanes<float>(in.refs[1]), *b = w.lanes<float>(in.refs[2]);
  const bool perturbs = w.cta->grid->options.perturb_approx;
  set_lanes<float>(w, in.refs[0], mask, [a, b, perturbs, m = in.mode](int i) {
    return finish(m, approx::divide(a[i], b[i], perturbs));
  });
}

void decode_div(Decoder& d) {
  if (!d.has("approx") && !d.has("full")) return decode_binary<kDiv, kExactDiv>(d);
  operands(d, 2);
  d.out().run = approximate_division;
}

void test(Warp& w, const Instruction& in, uint32_t mask) {
  const float* a = w.lanes<float>(in.refs[1]);
  w.set_mask(in.refs[0], lane_bits([&](int i) {
               switch (in.vector) {
                 case 0: return std::isfinite(a[i]);
                 case 1: return std::isinf(a[i]);
                 case 2: return !std::isnan(a[i]);
                 case 3: return std::isnan(a[i]);
                 case 4: return std::isnormal(a[i]);
                 default: return std::fpclassify(a[i]) == FP_SUBNORMAL;
               }
             }),
             mask);
}

void decode_test(Decoder& d) {
  static constexpr const char* kNames[] = {"finite",     "infinite", "number",
                                           "notanumber", "normal",   "subnormal"};
  if (d.type().bytes != 4) return;
  d.predicate_out(d.operand(0).name);
  d.source(1, d.type());
  for (uint8_t i = 0; i < 6; ++i) {
    if (d.has(kNames[i])) d.out().vector = i;
  }
  d.out().run = test;
}

}  // namespace

void add_float(InstructionTable& table) {
  table["add.float"] = decode_binary<kAdd, kExactAdd>;
  table["sub.float"] = decode_binary<kSub, kExactSub>;
  table["mul.float"] = decode_binary<kMul, kExactMul>;
  table["div.float"] = decode_div;
  table["fma.float"] = table["mad.float"] = decode_fma;
  table["min.float"] = decode_extreme<kMin, kMinNan>;
  table["max.float"] = decode_extreme<kMax, kMaxNan>;
  table["abs.float"] = decode_sign<kAbsBits>;
  table["neg.float"] = decode_sign<kNegBits>;
  table["copysign.float"] = [](Decoder& d) {
    operands(d, 2);
    d.out().run = d.type().bytes == 8 ? copy_sign<double> : copy_sign<float>;
  };
  table["sqrt.float"] = [](Decoder& d) {
    d.has("approx") ? decode_approx<approx::square_root>(d) : decode_unary<kSqrt>(d);
  };
  table["rcp.float"] = [](Decoder& d) {
    d.has("approx") ? decode_approx<approx::reciprocal>(d) : decode_unary<kReciprocal>(d);
  };
  table["rsqrt.float"] = decode_approx<approx::reciprocal_root>;
  table["ex2.float"] = decode_approx<approx::exp2>;
  table["lg2.float"] = decode_approx<approx::log2>;
  table["sin.float"] = decode_approx<approx::sine>;
  table["cos.float"] = decode_approx<approx::cosine>;
  table["tanh.float"] = decode_approx<approx::tanh>;
  table["testp.float"] = decode_test;
}

}  // namespace ptxrun
