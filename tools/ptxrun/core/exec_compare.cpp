// setp, set, slct, and moves between registers.

#include <cmath>

#include "core/decode.h"
#include "core/numeric.h"
#include "core/warp.h"

namespace ptxrun {
namespace {

enum Comparison : uint8_t {
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,  // false if an operand is NaN
  kEqu,
  kNeu,
  kLtu,
  kLeu,
  kGtu,
  kGeu,  // true if an operand is NaN
  kNum,
  kNan,
  kCount
};
constexpr const char* kNames[kCount] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                        "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};

template <class T>
bool is_nan(T x) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(x);
  return false;
}

template <uint8_t kHow, class T>
bool compare(T a, T b) {
  if constexpr (kHow == kNum) return !is_nan(a) && !is_nan(b);
  if constexpr (kHow == kNan) return is_nan(a) || is_nan(b);
  if constexpr (kHow == kNe) return a != b && !is_nan(a) && !is_nan(b);
  if constexpr (kHow >= kEqu) return is_nan(a) || is_nan(b) || compare<kHow - kEqu>(a, b);
  if constexpr (kHow == kEq) return a == b;
  if constexpr (kHow == kLt) return a < b;
  if constexpr (kHow == kLe) return a <= b;
  if constexpr (kHow == kGt) return a > b;
  return a >= b;
}

enum Combination : uint8_t { kPlain, kAnd, kOr, kXor };

void write(Warp& w, const Instruction& in, uint32_t mask, uint32_t bits) {
  uint32_t p = bits, q = ~bits;
  if (in.mode != kPlain) {
    const uint32_t c = w.bits(in.refs[4]);
    p = in.mode == kAnd ? p & c : in.mode == kOr ? p | c : p ^ c;
    q = in.mode == kAnd ? q & c : in.mode == kOr ? q | c : q ^ c;
  }
  w.set_mask(in.refs[0], p, mask);
  w.set_mask(in.refs[1], q, mask);
}

template <class T, uint8_t kHow>
void set_predicate(Warp& w, const Instruction& in, uint32_t mask) {
  const T *a = w.lanes<T>(in.refs[2]), *b = w.lanes<T>(in.refs[3]);
  write(w, in, mask, lane_bits([&](int i) { return compare<kHow>(a[i], b[i]); }));
}

template <class Format, uint8_t kHow>
void set_predicate_half(Warp& w, const Instruction& in, uint32_t mask) {
  const uint16_t *a = w.lanes<uint16_t>(in.refs[2]), *b = w.lanes<uint16_t>(in.refs[3]);
  write(w, in, mask,
        lane_bits([&](int i) { return compare<kHow>(Format::value(a[i]), Format::value(b[i])); }));
}

// set.cmp.dtype.stype: all ones or 1.0f.
template <class T, uint8_t kHow>
void set_value(Warp& w, const Instruction& in, uint32_t mask) {
  const T *a = w.lanes<T>(in.refs[2]), *b = w.lanes<T>(in.refs[3]);
  set_lanes<uint32_t>(w, in.refs[0], mask, [&](int i) {
    return compare<kHow>(a[i], b[i]) ? (in.flag ? 0x3f800000u : ~0u) : 0u;
  });
}

uint8_t how(Decoder& d) {
  std::string name = d.parts()[1];
  if (name == "lo") name = "lt";
  if (name == "ls") name = "le";
  if (name == "hi") name = "gt";
  if (name == "hs") name = "ge";
  for (uint8_t i = 0; i < kCount; ++i) {
    if (name == kNames[i]) return i;
  }
  d.fail("unknown comparison");
}

// Calls f.operator()<T, kHow>() for the comparison at hand.
template <class T, uint8_t kHow = 0, class F>
void with_comparison(uint8_t wanted, F&& f) {
  if constexpr (kHow < kCount) {
    if (wanted == kHow) return f.template operator()<T, kHow>();
    with_comparison<T, kHow + 1>(wanted, f);
  }
}

template <class F>
void with_compared_type(Decoder& d, F&& f) {
  const Type type = d.type();
  if (type.kind == Kind::kFloat && type.bytes == 4) return with_comparison<float>(how(d), f);
  if (type.kind == Kind::kFloat && type.bytes == 8) return with_comparison<double>(how(d), f);
  with_integer(type, [&]<class T>() { with_comparison<T>(how(d), f); });
}

void decode_setp(Decoder& d) {
  const Operand& p = d.operand(0);
  d.predicate_out(p.name);
  d.predicate_out(p.second);
  d.source(1, d.type());
  d.source(2, d.type());
  for (uint8_t i = kAnd; i <= kXor; ++i) {
    if (d.has(std::array{"", "and", "or", "xor"}[i])) d.out().mode = i;
  }
  if (d.out().mode != kPlain) d.predicate_in(d.operand(3));
  Handler& run = d.out().run;
  const Type type = d.type();
  if (type.bytes == 2 && type.kind == Kind::kFloat) {
    with_comparison<Half>(how(d), [&]<class T, uint8_t k>() { run = set_predicate_half<T, k>; });
  } else if (type.kind == Kind::kBFloat) {
    with_comparison<BFloat>(how(d), [&]<class T, uint8_t k>() { run = set_predicate_half<T, k>; });
  } else {
    with_compared_type(d, [&]<class T, uint8_t k>() { run = set_predicate<T, k>; });
  }
}

void decode_set(Decoder& d) {
  if (d.has("and") || d.has("or") || d.has("xor") || d.type(1).bytes != 4) return;
  d.destination(0, d.type(1));
  d.unused();
  d.source(1, d.type());
  d.source(2, d.type());
  d.out().flag = d.type(1).is_float();
  with_compared_type(d, [&]<class T, uint8_t k>() { d.out().run = set_value<T, k>; });
}

// Any width to any width, the low bytes.
void move(Warp& w, const Instruction& in, uint32_t mask) {
  const Ref a = in.refs[1];
  switch (a.bytes) {
    case 2: return set_any(w, in.refs[0], mask, [x = w.lanes<uint16_t>(a)](int i) { return x[i]; });
    case 4: return set_any(w, in.refs[0], mask, [x = w.lanes<uint32_t>(a)](int i) { return x[i]; });
    default:
      return set_any(w, in.refs[0], mask, [x = w.lanes<uint64_t>(a)](int i) { return x[i]; });
  }
}

void move_mask(Warp& w, const Instruction& in, uint32_t mask) {
  w.set_mask(in.refs[0], w.bits(in.refs[1]), mask);
}

// mov.b32 {a, b}, d: refs are the source, then the parts.
void unpack(Warp& w, const Instruction& in, uint32_t mask) {
  const int part_bits = 8 * in.bytes;
  uint64_t whole[kLanes];
  for (int i = 0; i < kLanes; ++i) whole[i] = w.value(in.refs[0], i);
  for (size_t k = 1; k < in.refs.size(); ++k) {
    set_any(w, in.refs[k], mask, [&](int i) { return whole[i] >> (part_bits * (k - 1)); });
  }
}

void pack(Warp& w, const Instruction& in, uint32_t mask) {
  const int part_bits = 8 * in.bytes;
  uint64_t whole[kLanes] = {};
  for (size_t k = 1; k < in.refs.size(); ++k) {
    for (int i = 0; i < kLanes; ++i) {
      const uint64_t part = w.value(in.refs[k], i);
      whole[i] |= (part_bits == 8 ? part & 0xff : part) << (part_bits * (k - 1));
    }
  }
  set_any(w, in.refs[0], mask, [&](int i) { return whole[i]; });
}

void decode_mov(Decoder& d) {
  const Type type = d.type();
  const bool unpacks = d.operand(0).form == Operand::Form::kVector;
  if (unpacks || d.operand(1).form == Operand::Form::kVector) {
    const Operand& vector = d.operand(unpacks ? 0 : 1);
    const auto part = static_cast<uint8_t>(type.bytes / vector.items.size());
    d.source(unpacks ? 1 : 0, type);
    for (const Operand& item : vector.items) d.any(item, {Kind::kBits, part});
    d.out().bytes = part;
    d.out().run = unpacks ? unpack : pack;
  } else if (type.kind == Kind::kPred) {
    d.predicate_out(d.operand(0).name);
    d.predicate_in(d.operand(1));
    d.out().run = move_mask;
  } else {
    d.destination(0, type);
    d.any(d.operand(1), type);
    d.out().is_move = true;
    d.out().run = move;
  }
}

// Generic addresses are the window of the space plus the offset in it.
template <bool kToGeneric>
void convert_address(Warp& w, const Instruction& in, uint32_t mask) {
  const auto window = static_cast<uint64_t>(in.value);
  uint64_t values[kLanes];
  for (int i = 0; i < kLanes; ++i) values[i] = w.value(in.refs[1], i);
  set_any(w, in.refs[0], mask,
          [&](int i) { return kToGeneric ? values[i] + window : values[i] - window; });
}

void decode_cvta(Decoder& d) {
  d.destination(0, d.type());
  d.any(d.operand(1), d.type());
  switch (d.space_of()) {
    case Space::kShared: d.out().value = static_cast<int64_t>(kSharedWindow); break;
    case Space::kLocal: d.out().value = static_cast<int64_t>(kLocalWindow); break;
    default: break;  // the addresses are the same; parameters are generic from the start
  }
  d.out().run = d.has("to") ? convert_address<false> : convert_address<true>;
}

template <class T>
void select_by_sign(Warp& w, const Instruction& in, uint32_t mask) {
  const uint32_t *a = w.lanes<uint32_t>(in.refs[1]), *b = w.lanes<uint32_t>(in.refs[2]);
  const T* c = w.lanes<T>(in.refs[3]);
  set_lanes<uint32_t>(w, in.refs[0], mask, [&](int i) { return c[i] >= 0 ? a[i] : b[i]; });
}

void decode_slct(Decoder& d) {
  const Type type = d.type(1);
  if (type.bytes != 4) return;
  d.destination(0, type);
  for (size_t i = 1; i <= 2; ++i) d.source(i, type);
  d.source(3, d.type());
  d.out().run = d.type().is_float() ? select_by_sign<float> : select_by_sign<int32_t>;
}

}  // namespace

void add_compare(InstructionTable& table) {
  table["setp"] = decode_setp;
  table["set"] = decode_set;
  table["slct"] = decode_slct;
  table["mov"] = decode_mov;
  table["cvta"] = decode_cvta;
}

}  // namespace ptxrun
