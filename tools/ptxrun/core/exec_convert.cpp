// cvt: between integers, between floats, and across; pairs and 8-bit floats.

#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/decode.h"
#include "core/numeric.h"
#include "core/warp.h"

namespace ptxrun {
namespace {

// `mode`, one bit each.
constexpr uint8_t kFtz = 1, kSat = 2, kRelu = 4;

// ---- integer to integer; refs: d, a, each of any width at least its type's
template <class D, class S, bool kSaturates>
void int_to_int(Warp& w, const Instruction& in, uint32_t mask) {
  uint64_t a[kLanes];
  for (int i = 0; i < kLanes; ++i) a[i] = w.value(in.refs[1], i);
  using Wide = std::conditional_t<std::is_signed_v<D>, int64_t, uint64_t>;
  set_any(w, in.refs[0], mask, [&](int i) {
    const auto s = static_cast<S>(a[i]);
    if constexpr (kSaturates) {
      using L = std::numeric_limits<D>;
      if (std::cmp_less(s, L::min())) return static_cast<Wide>(L::min());
      if (std::cmp_greater(s, L::max())) return static_cast<Wide>(L::max());
    }
    return static_cast<Wide>(static_cast<D>(s));
  });
}

// ---- float formats as values
struct F32 {
  static double value(uint64_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits)); }
};
struct F64 {
  static double value(uint64_t bits) { return std::bit_cast<double>(bits); }
};
struct F16 {
  static double value(uint64_t bits) { return Half::value(static_cast<uint16_t>(bits)); }
};
struct BF16 {
  static double value(uint64_t bits) { return BFloat::value(static_cast<uint16_t>(bits)); }
};

// 'n' even, 'z' to zero, 'm' down, 'p' up, 'a' away from zero at ties.
double to_integral(double x, char way) {
  switch (way) {
    case 'z': return std::trunc(x);
    case 'm': return std::floor(x);
    case 'p': return std::ceil(x);
    case 'a': return std::round(x);
    default: return std::nearbyint(x);
  }
}

// The nearest number of a narrower format by `nearest`, then one step in the wanted direction.
template <class Nearest, class Value>
auto directed(double x, char way, Nearest nearest, Value value) {
  auto bits = nearest(x);
  const double y = value(bits);
  const bool down = way == 'm' || (way == 'z' && x > 0), up = way == 'p' || (way == 'z' && x < 0);
  if (std::isnan(y) || (way != 'z' && way != 'm' && way != 'p')) return bits;
  if (down && y > x) bits = static_cast<decltype(bits)>(x > 0 ? bits - 1 : bits + 1);
  if (up && y < x) bits = static_cast<decltype(bits)>(x > 0 ? bits + 1 : bits - 1);
  return bits;
}

uint64_t to_f32(double x, char way) {
  const auto nearest = [](double v) {
    return std::bit_cast<uint32_t>(canonical(static_cast<float>(v)));
  };
  return directed(x, way, nearest, [](uint32_t b) { return F32::value(b); });
}
uint64_t to_f64(double x, char) { return std::bit_cast<uint64_t>(canonical(x)); }
uint64_t to_f16(double x, char way) {
  const auto nearest = [](double v) {
    return std::isnan(v) ? uint16_t{0x7fff} : std::bit_cast<uint16_t>(static_cast<_Float16>(v));
  };
  return directed(x, way, nearest, [](uint16_t b) { return F16::value(b); });
}
uint64_t to_bf16(double x, char way) {
  const auto nearest = [](double v) { return BFloat::rounded(v); };
  return directed(x, way, nearest, [](uint16_t b) { return BF16::value(b); });
}
// tf32 has 10 bits after the point; the rest of the word is zero here.
uint64_t to_tf32(double x, char way) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(x));
  if (std::isnan(x)) return 0x7fffffff;
  if (way == 'a') return (bits + 0x1000) & ~0x1fffu;
  return way == 'z' ? bits & ~0x1fffu : (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
}

using ToBits = uint64_t (*)(double, char);
using ToValue = double (*)(uint64_t);

double limited(double x, uint8_t mode) {
  if ((mode & kSat) != 0) x = std::isnan(x) ? 0 : std::fmin(std::fmax(x, 0.0), 1.0);
  if ((mode & kRelu) != 0) x = std::isnan(x) ? x : std::fmax(x, 0.0);
  return x;
}

template <class S, ToBits kTo>
void float_to_float(Warp& w, const Instruction& in, uint32_t mask) {
  const auto way = static_cast<char>(in.vector);
  uint64_t a[kLanes];
  for_lanes(mask, [&](int i) {
    double x = S::value(w.value(in.refs[1], i));
    if ((in.mode & kFtz) != 0 && std::fabs(x) < 0x1p-126) x = std::copysign(0.0, x);
    if (in.flag) x = to_integral(x, way);
    a[i] = kTo(limited(x, in.mode), way);
  });
  set_any(w, in.refs[0], mask, [&](int i) { return a[i]; });
}

// The common ones, straight.
void bf16_to_f32(Warp& w, const Instruction& in, uint32_t mask) {
  const uint16_t* a = w.lanes<uint16_t>(in.refs[1]);
  set_lanes<uint32_t>(w, in.refs[0], mask, [&](int i) { return uint32_t{a[i]} << 16; });
}
void f32_to_bf16(Warp& w, const Instruction& in, uint32_t mask) {
  const float* a = w.lanes<float>(in.refs[1]);
  set_lanes<uint16_t>(w, in.refs[0], mask, [&](int i) { return BFloat::rounded(a[i]); });
}

template <class S, class D>
void float_to_int(Warp& w, const Instruction& in, uint32_t mask) {
  using L = std::numeric_limits<D>;
  D a[kLanes];
  for_lanes(mask, [&](int i) {
    const double x = S::value(w.value(in.refs[1], i));
    const double whole = to_integral(x, static_cast<char>(in.vector));
    // 2^63 and 2^64 are doubles, the largest integers are not: compare with the power.
    const double end = std::ldexp(1.0, L::digits);
    if (std::isnan(x)) {
      a[i] = sizeof(D) == 8 ? static_cast<D>(1ull << 63) : D{0};
    } else {
      a[i] = whole >= end                             ? L::max()
             : whole <= static_cast<double>(L::min()) ? L::min()
                                                      : static_cast<D>(whole);
    }
  });
  using Wide = std::conditional_t<std::is_signed_v<D>, int64_t, uint64_t>;
  set_any(w, in.refs[0], mask, [&](int i) { return static_cast<Wide>(a[i]); });
}

// Integers of 64 bits do not fit a double: round once, from the integer.
template <class S, ToBits kTo>
void int_to_float(Warp& w, const Instruction& in, uint32_t mask) {
  const auto way = static_cast<char>(in.vector);
  uint64_t a[kLanes];
  for_lanes(mask, [&](int i) {
    const auto s = static_cast<S>(w.value(in.refs[1], i));
    if (kTo == to_f32 && way == 'n') {
      a[i] = std::bit_cast<uint32_t>(static_cast<float>(s));
    } else {
      a[i] = kTo(limited(static_cast<double>(s), in.mode), way);
    }
  });
  set_any(w, in.refs[0], mask, [&](int i) { return a[i]; });
}

// d = (a << 16) | b
template <ToBits kTo>
void pair_from_f32(Warp& w, const Instruction& in, uint32_t mask) {
  const float *a = w.lanes<float>(in.refs[1]), *b = w.lanes<float>(in.refs[2]);
  const auto way = static_cast<char>(in.vector);
  set_lanes<uint32_t>(w, in.refs[0], mask, [&](int i) {
    return static_cast<uint32_t>(kTo(limited(a[i], in.mode), way) << 16 |
                                 kTo(limited(b[i], in.mode), way));
  });
}
void bf16x2_from_f32(Warp& w, const Instruction& in, uint32_t mask) {
  const float *a = w.lanes<float>(in.refs[1]), *b = w.lanes<float>(in.refs[2]);
  set_lanes<uint32_t>(w, in.refs[0], mask, [&](int i) {
    return uint32_t{BFloat::rounded(a[i])} << 16 | BFloat::rounded(b[i]);
  });
}

template <class Format>
void fp8_pair_from_f32(Warp& w, const Instruction& in, uint32_t mask) {
  const float *a = w.lanes<float>(in.refs[1]), *b = w.lanes<float>(in.refs[2]);
  set_lanes<uint16_t>(w, in.refs[0], mask, [&](int i) {
    const auto high = to_fp8<Format>(static_cast<float>(limited(a[i], in.mode)));
    const auto low = to_fp8<Format>(static_cast<float>(limited(b[i], in.mode)));
    return static_cast<uint16_t>(high << 8 | low);
  });
}

template <class Format>
void fp8_pair_from_f16x2(Warp& w, const Instruction& in, uint32_t mask) {
  const uint32_t* a = w.lanes<uint32_t>(in.refs[1]);
  set_lanes<uint16_t>(w, in.refs[0], mask, [&](int i) {
    const auto high = to_fp8<Format>(Half::value(static_cast<uint16_t>(a[i] >> 16)));
    return static_cast<uint16_t>(high << 8 |
                                 to_fp8<Format>(Half::value(static_cast<uint16_t>(a[i]))));
  });
}

template <class Format>
void f16x2_from_fp8_pair(Warp& w, const Instruction& in, uint32_t mask) {
  const uint16_t* a = w.lanes<uint16_t>(in.refs[1]);
  set_lanes<uint32_t>(w, in.refs[0], mask, [&](int i) {
    const uint32_t high = Half::rounded(from_fp8<Format>(static_cast<uint8_t>(a[i] >> 8)));
    return high << 16 | Half::rounded(from_fp8<Format>(static_cast<uint8_t>(a[i])));
  });
}

// ---- decoding
void modes(Decoder& d) {
  Instruction& out = d.out();
  char way = 'n';
  for (const auto& [name, c] : {std::pair{"rz", 'z'},
                                {"rm", 'm'},
                                {"rp", 'p'},
                                {"rzi", 'z'},
                                {"rmi", 'm'},
                                {"rpi", 'p'},
                                {"rna", 'a'}}) {
    if (d.has(name)) way = c;
  }
  out.vector = static_cast<uint8_t>(way);
  out.flag = d.has("rni") || d.has("rzi") || d.has("rmi") || d.has("rpi");
  if (d.has("ftz")) out.mode |= kFtz;
  if (d.has("sat")) out.mode |= kSat;
  if (d.has("relu")) out.mode |= kRelu;
}

// Calls f.operator()<S>() for the source format.
template <class F>
bool with_float(Type type, F&& f) {
  if (type.kind == Kind::kBFloat) return f.template operator()<BF16>(), true;
  if (type.kind != Kind::kFloat) return false;
  if (type.bytes == 2) return f.template operator()<F16>(), true;
  if (type.bytes == 4) return f.template operator()<F32>(), true;
  return f.template operator()<F64>(), true;
}

template <class F>
bool with_target(Type type, F&& f) {
  if (type.kind == Kind::kBFloat) return f.template operator()<to_bf16>(), true;
  if (type.kind == Kind::kTF32) return f.template operator()<to_tf32>(), true;
  if (type.kind != Kind::kFloat) return false;
  if (type.bytes == 2) return f.template operator()<to_f16>(), true;
  if (type.bytes == 4) return f.template operator()<to_f32>(), true;
  return f.template operator()<to_f64>(), true;
}

void decode_pair(Decoder& d) {
  const std::string &to = d.parts()[d.parts().size() - 2], &from = d.parts().back();
  d.destination(0, d.type(1));
  for (size_t i = 1; i < d.count(); ++i) d.source(i, d.type());
  Handler& run = d.out().run;
  const bool plain = d.out().mode == 0 && d.out().vector == 'n';
  if (from == "f32" && d.count() == 3) {
    if (to == "bf16x2") run = plain ? bf16x2_from_f32 : pair_from_f32<to_bf16>;
    if (to == "f16x2") run = pair_from_f32<to_f16>;
    if (to == "e4m3x2") run = fp8_pair_from_f32<E4M3>;
    if (to == "e5m2x2") run = fp8_pair_from_f32<E5M2>;
  }
  if (from == "f16x2" && to == "e4m3x2") run = fp8_pair_from_f16x2<E4M3>;
  if (from == "f16x2" && to == "e5m2x2") run = fp8_pair_from_f16x2<E5M2>;
  if (from == "e4m3x2" && to == "f16x2") run = f16x2_from_fp8_pair<E4M3>;
  if (from == "e5m2x2" && to == "f16x2") run = f16x2_from_fp8_pair<E5M2>;
}

void decode_cvt(Decoder& d) {
  const Type to = d.type(1), from = d.type();
  modes(d);
  if (to.kind == Kind::kPacked || from.kind == Kind::kPacked) return decode_pair(d);
  d.any(d.operand(0), to);
  d.any(d.operand(1), from);
  Instruction& out = d.out();
  const bool plain = out.mode == 0 && out.vector == 'n' && !out.flag;
  if (from.is_float() && to.is_float()) {
    if (plain && from.kind == Kind::kBFloat && to.kind == Kind::kFloat && to.bytes == 4) {
      out.run = bf16_to_f32;
    } else if (plain && to.kind == Kind::kBFloat && from.kind == Kind::kFloat && from.bytes == 4) {
      out.run = f32_to_bf16;
    } else {
      with_float(from, [&]<class S>() {
        with_target(to, [&]<ToBits kTo>() { out.run = float_to_float<S, kTo>; });
      });
    }
  } else if (from.is_float()) {
    with_float(from, [&]<class S>() {
      with_integer(to, [&]<class D>() { out.run = float_to_int<S, D>; });
    });
  } else if (to.is_float()) {
    with_integer(from, [&]<class S>() {
      with_target(to, [&]<ToBits kTo>() { out.run = int_to_float<S, kTo>; });
    });
  } else {
    with_integer(from, [&]<class S>() {
      with_integer(to, [&]<class D>() {
        out.run = (out.mode & kSat) != 0 ? int_to_int<D, S, true> : int_to_int<D, S, false>;
      });
    });
  }
}

}  // namespace

void add_convert(InstructionTable& table) { table["cvt"] = decode_cvt; }

}  // namespace ptxrun
