// Integer arithmetic, logic and bit fields.

#include <bit>
#include <limits>
#include <type_traits>

#include "core/decode.h"
#include "core/warp.h"

namespace ptxrun {
namespace {

template <class T, auto kOp>
void unary(Warp& w, const Instruction& in, uint32_t mask) {
  const T* a = w.lanes<T>(in.refs[1]);
  set_lanes<T>(w, in.refs[0], mask, [&](int i) { return static_cast<T>(kOp(a[i])); });
}

template <class T, auto kOp>
void binary(Warp& w, const Instruction& in, uint32_t mask) {
  const T *a = w.lanes<T>(in.refs[1]), *b = w.lanes<T>(in.refs[2]);
  set_lanes<T>(w, in.refs[0], mask, [&](int i) { return static_cast<T>(kOp(a[i], b[i])); });
}

template <class T, auto kOp>
void ternary(Warp& w, const Instruction& in, uint32_t mask) {
  const T *a = w.lanes<T>(in.refs[1]), *b = w.lanes<T>(in.refs[2]), *c = w.lanes<T>(in.refs[3]);
  set_lanes<T>(w, in.refs[0], mask, [&](int i) { return static_cast<T>(kOp(a[i], b[i], c[i])); });
}

template <class T>
struct WiderOf;
template <>
struct WiderOf<uint16_t> {
  using Type = uint32_t;
};
template <>
struct WiderOf<int16_t> {
  using Type = int32_t;
};
template <>
struct WiderOf<uint32_t> {
  using Type = uint64_t;
};
template <>
struct WiderOf<int32_t> {
  using Type = int64_t;
};
template <>
struct WiderOf<uint64_t> {
  using Type = unsigned __int128;
};
template <>
struct WiderOf<int64_t> {
  using Type = __int128;
};
template <class T>
using Wider = typename WiderOf<T>::Type;

template <class T>
void multiply_wide(Warp& w, const Instruction& in, uint32_t mask) {
  using W = Wider<T>;
  const T *a = w.lanes<T>(in.refs[1]), *b = w.lanes<T>(in.refs[2]);
  if constexpr (sizeof(W) <= 8) {
    const bool adds = in.refs.size() > 3;
    const W* c = w.lanes<W>(in.refs[adds ? 3 : 0]);
    set_lanes<W>(w, in.refs[0], mask, [&](int i) {
      const auto product = static_cast<std::make_unsigned_t<W>>(static_cast<W>(a[i]) * b[i]);
      return static_cast<W>(adds ? product + static_cast<std::make_unsigned_t<W>>(c[i]) : product);
    });
  }
}

template <class T>
constexpr auto kMulHi =
    [](T a, T b) { return static_cast<T>((static_cast<Wider<T>>(a) * b) >> (8 * sizeof(T))); };

// Two's complement without overflow.
constexpr auto kAdd = [](auto a, auto b) {
  using U = std::make_unsigned_t<decltype(a)>;
  return static_cast<U>(static_cast<U>(a) + static_cast<U>(b));
};
constexpr auto kSub = [](auto a, auto b) {
  using U = std::make_unsigned_t<decltype(a)>;
  return static_cast<U>(static_cast<U>(a) - static_cast<U>(b));
};
constexpr auto kMul = [](auto a, auto b) {
  return static_cast<uint64_t>(a) * static_cast<uint64_t>(b);  // the low bits are the same
};
constexpr auto kMad = [](auto a, auto b, auto c) {
  return static_cast<uint64_t>(a) * static_cast<uint64_t>(b) + static_cast<uint64_t>(c);
};
constexpr auto kMadHi = []<class T>(T a, T b, T c) { return kAdd(kMulHi<T>(a, b), c); };
constexpr auto kMin = [](auto a, auto b) { return a < b ? a : b; };
constexpr auto kMax = [](auto a, auto b) { return a > b ? a : b; };
// Division by zero is unspecified; the hardware gives all ones.
constexpr auto kDiv = []<class T>(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(kSub(T{0}, a));
  return static_cast<T>(a / b);
};
constexpr auto kRem = []<class T>(T a, T b) {
  if (b == 0) return a;
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return T{0};
  return static_cast<T>(a % b);
};
constexpr auto kAbs = []<class T>(T a) { return a < 0 ? static_cast<T>(kSub(T{0}, a)) : a; };
constexpr auto kNeg = []<class T>(T a) { return kSub(T{0}, a); };
constexpr auto kSaturatingAdd = [](int32_t a, int32_t b) {
  int32_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return a < 0 ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int32_t>::max();
};
constexpr auto kSaturatingSub = [](int32_t a, int32_t b) {
  int32_t difference = 0;
  if (!__builtin_sub_overflow(a, b, &difference)) return difference;
  return a < 0 ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int32_t>::max();
};

void registers(Decoder& d, Type type, size_t count) {
  d.destination(0, type);
  for (size_t i = 1; i <= count; ++i) d.source(i, type);
}

template <auto kOp>
void decode_binary(Decoder& d) {
  const Type type = d.type();
  registers(d, type, 2);
  with_integer(type, [&]<class T>() { d.out().run = binary<T, kOp>; });
}

template <auto kOp>
void decode_unary(Decoder& d) {
  const Type type = d.type();
  registers(d, type, 1);
  with_integer(type, [&]<class T>() { d.out().run = unary<T, kOp>; });
}

void decode_multiply(Decoder& d, bool adds) {
  const Type type = d.type();
  const bool is_wide = d.has("wide");
  const Type result = is_wide ? Type{type.kind, static_cast<uint8_t>(type.bytes * 2)} : type;
  d.destination(0, result);
  d.source(1, type);
  d.source(2, type);
  if (adds) d.source(3, result);
  with_integer(type, [&]<class T>() {
    Handler& run = d.out().run;
    if constexpr (sizeof(T) > 1) {
      if (is_wide && sizeof(T) < 8) {
        run = multiply_wide<T>;
      } else if (d.has("hi") && adds) {
        run = ternary<T, kMadHi>;
      } else if (d.has("hi")) {
        run = binary<T, kMulHi<T>>;
      } else if (d.has("lo")) {
        run = adds ? ternary<T, kMad> : binary<T, kMul>;
      }
    }
  });
}

template <auto kOp>
void mask_logic(Warp& w, const Instruction& in, uint32_t mask) {
  w.set_mask(in.refs[0], kOp(w.bits(in.refs[1]), w.bits(in.refs[2])), mask);
}

template <auto kOp>
void decode_logic(Decoder& d) {
  if (d.type().kind != Kind::kPred) return decode_binary<kOp>(d);
  d.predicate_out(d.operand(0).name);
  d.predicate_in(d.operand(1));
  d.predicate_in(d.operand(2));
  d.out().run = mask_logic<kOp>;
}

constexpr auto kAnd = [](auto a, auto b) { return a & b; };
constexpr auto kOr = [](auto a, auto b) { return a | b; };
constexpr auto kXor = [](auto a, auto b) { return a ^ b; };
constexpr auto kNot = [](auto a) { return ~a; };

void mask_not(Warp& w, const Instruction& in, uint32_t mask) {
  w.set_mask(in.refs[0], ~w.bits(in.refs[1]), mask);
}

void decode_not(Decoder& d) {
  if (d.type().kind != Kind::kPred) return decode_unary<kNot>(d);
  d.predicate_out(d.operand(0).name);
  d.predicate_in(d.operand(1));
  d.out().run = mask_not;
}

// Shift counts are clamped at the width: everything, or only the sign, is left.
template <class T, bool kLeft>
void shift(Warp& w, const Instruction& in, uint32_t mask) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  const T* a = w.lanes<T>(in.refs[1]);
  const uint32_t* count = w.lanes<uint32_t>(in.refs[2]);
  set_lanes<T>(w, in.refs[0], mask, [&](int i) {
    const uint32_t n = count[i] < kBits ? count[i] : kBits - 1;
    if (kLeft) return static_cast<T>(count[i] < kBits ? static_cast<uint64_t>(a[i]) << n : 0);
    return static_cast<T>(count[i] < kBits || std::is_signed_v<T> ? a[i] >> n : 0);
  });
}

template <bool kLeft>
void decode_shift(Decoder& d) {
  d.destination(0, d.type());
  d.source(1, d.type());
  d.source(2, {Kind::kUnsigned, 4});
  with_integer(d.type(), [&]<class T>() { d.out().run = shift<T, kLeft>; });
}

template <bool kLeft, bool kWrap>
void funnel(Warp& w, const Instruction& in, uint32_t mask) {
  const uint32_t *a = w.lanes<uint32_t>(in.refs[1]), *b = w.lanes<uint32_t>(in.refs[2]);
  const uint32_t* c = w.lanes<uint32_t>(in.refs[3]);
  set_lanes<uint32_t>(w, in.refs[0], mask, [&](int i) {
    const uint64_t both = static_cast<uint64_t>(b[i]) << 32 | a[i];
    const uint32_t n = kWrap ? c[i] & 31 : (c[i] < 32 ? c[i] : 32);
    return static_cast<uint32_t>(kLeft ? both << n >> 32 : both >> n);
  });
}

void decode_funnel(Decoder& d) {
  registers(d, {Kind::kBits, 4}, 3);
  const bool wraps = d.has("wrap");
  if (d.has("l")) {
    d.out().run = wraps ? funnel<true, true> : funnel<true, false>;
  } else {
    d.out().run = wraps ? funnel<false, true> : funnel<false, false>;
  }
}

template <class T>
void select(Warp& w, const Instruction& in, uint32_t mask) {
  const T *a = w.lanes<T>(in.refs[1]), *b = w.lanes<T>(in.refs[2]);
  const uint32_t chosen = w.bits(in.refs[3]);
  set_lanes<T>(w, in.refs[0], mask, [&](int i) { return (chosen >> i & 1) != 0 ? a[i] : b[i]; });
}

void decode_select(Decoder& d) {
  registers(d, d.type(), 2);
  d.predicate_in(d.operand(3));
  switch (d.type().bytes) {
    case 2: d.out().run = select<uint16_t>; break;
    case 4: d.out().run = select<uint32_t>; break;
    case 8: d.out().run = select<uint64_t>; break;
  }
}

template <class T>
void bit_field_extract(Warp& w, const Instruction& in, uint32_t mask) {
  constexpr int kBits = 8 * sizeof(T);
  using U = std::make_unsigned_t<T>;
  const T* a = w.lanes<T>(in.refs[1]);
  const uint32_t *b = w.lanes<uint32_t>(in.refs[2]), *c = w.lanes<uint32_t>(in.refs[3]);
  set_lanes<T>(w, in.refs[0], mask, [&](int i) {
    const int pos = b[i] & 0xff, len = c[i] & 0xff;
    const int top = pos + len - 1 < kBits - 1 ? pos + len - 1 : kBits - 1;
    const bool sign = std::is_signed_v<T> && len != 0 && (a[i] >> top & 1) != 0;
    U value = sign ? static_cast<U>(~U{0}) : U{0};
    for (int k = 0; k < len && k < kBits; ++k) {
      const bool bit = pos + k < kBits ? (a[i] >> (pos + k) & 1) != 0 : sign;
      value = static_cast<U>((value & ~(U{1} << k)) | (U{bit} << k));
    }
    return static_cast<T>(value);
  });
}

template <class T>
void bit_field_insert(Warp& w, const Instruction& in, uint32_t mask) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  const T *a = w.lanes<T>(in.refs[1]), *b = w.lanes<T>(in.refs[2]);
  const uint32_t *c = w.lanes<uint32_t>(in.refs[3]), *e = w.lanes<uint32_t>(in.refs[4]);
  set_lanes<T>(w, in.refs[0], mask, [&](int i) {
    const uint32_t pos = c[i] & 0xff, len = e[i] & 0xff;
    if (pos >= kBits || len == 0) return b[i];
    const T field = len >= kBits ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << len) - 1);
    return static_cast<T>((b[i] & ~(field << pos)) | ((a[i] & field) << pos));
  });
}

void decode_bfe(Decoder& d) {
  d.destination(0, d.type());
  d.source(1, d.type());
  d.source(2, {Kind::kUnsigned, 4});
  d.source(3, {Kind::kUnsigned, 4});
  with_integer(d.type(), [&]<class T>() { d.out().run = bit_field_extract<T>; });
}

void decode_bfi(Decoder& d) {
  registers(d, d.type(), 2);
  d.source(3, {Kind::kUnsigned, 4});
  d.source(4, {Kind::kUnsigned, 4});
  d.out().run = d.type().bytes == 8 ? bit_field_insert<uint64_t> : bit_field_insert<uint32_t>;
}

// From T to a 32-bit count.
template <class T, auto kOp>
void count_bits(Warp& w, const Instruction& in, uint32_t mask) {
  const T* a = w.lanes<T>(in.refs[1]);
  set_lanes<uint32_t>(w, in.refs[0], mask, [&](int i) { return static_cast<uint32_t>(kOp(a[i])); });
}

constexpr auto kPopc = [](auto a) { return std::popcount(a); };
constexpr auto kClz = [](auto a) { return std::countl_zero(a); };
constexpr auto kFind = []<class T>(T a) {
  if constexpr (std::is_signed_v<T>) a = a < 0 ? static_cast<T>(~a) : a;
  return a == 0 ? -1
                : static_cast<int>(8 * sizeof(T)) - 1 -
                      std::countl_zero(static_cast<std::make_unsigned_t<T>>(a));
};
constexpr auto kFindShift = []<class T>(T a) {
  const int at = kFind(a);
  return at < 0 ? -1 : static_cast<int>(8 * sizeof(T)) - 1 - at;
};
constexpr auto kReverse = []<class T>(T a) {
  T r = 0;
  for (size_t i = 0; i < 8 * sizeof(T); ++i) r |= (a >> i & 1) << (8 * sizeof(T) - 1 - i);
  return r;
};

template <auto kOp>
void decode_count(Decoder& d) {
  d.destination(0, {Kind::kUnsigned, 4});
  d.source(1, d.type());
  with_integer(d.type(), [&]<class T>() {
    if constexpr (sizeof(T) >= 4 && std::is_unsigned_v<T>) d.out().run = count_bits<T, kOp>;
  });
}

void decode_find(Decoder& d) {
  d.destination(0, {Kind::kUnsigned, 4});
  d.source(1, d.type());
  const bool is_shift = d.has("shiftamt");
  with_integer(d.type(), [&]<class T>() {
    if constexpr (sizeof(T) >= 4) {
      d.out().run = is_shift ? count_bits<T, kFindShift> : count_bits<T, kFind>;
    }
  });
}

void logic3(Warp& w, const Instruction& in, uint32_t mask) {
  const uint32_t *a = w.lanes<uint32_t>(in.refs[1]), *b = w.lanes<uint32_t>(in.refs[2]);
  const uint32_t* c = w.lanes<uint32_t>(in.refs[3]);
  const auto truth = static_cast<uint32_t>(in.value);
  set_lanes<uint32_t>(w, in.refs[0], mask, [&](int i) {
    uint32_t r = 0;
    for (uint32_t k = 0; k < 8; ++k) {
      const uint32_t row = ((k & 4) != 0 ? a[i] : ~a[i]) & ((k & 2) != 0 ? b[i] : ~b[i]) &
                           ((k & 1) != 0 ? c[i] : ~c[i]);
      r |= (truth >> k & 1) != 0 ? row : 0;
    }
    return r;
  });
}

void decode_logic3(Decoder& d) {
  registers(d, {Kind::kBits, 4}, 3);
  d.out().value = d.integer(4);
  d.out().run = logic3;
}

uint32_t permuted(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t r = 0;
  for (int k = 0; k < 4; ++k) {
    const uint32_t s = selector >> (4 * k) & 15;
    uint32_t byte = bytes >> (8 * (s & 7)) & 0xff;
    if ((s & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    r |= byte << (8 * k);
  }
  return r;
}

// The selector that a named mode (f4e, b4e, rc8, ecl, ecr, rc16) stands for.
constexpr uint16_t kPermuteModes[6][4] = {
    {0x3210, 0x4321, 0x5432, 0x6543}, {0x5670, 0x6701, 0x7012, 0x0123},
    {0x0000, 0x1111, 0x2222, 0x3333}, {0x3210, 0x3211, 0x3222, 0x3333},
    {0x0000, 0x1110, 0x2210, 0x3210}, {0x1010, 0x3232, 0x1010, 0x3232}};

void permute(Warp& w, const Instruction& in, uint32_t mask) {
  const uint32_t *a = w.lanes<uint32_t>(in.refs[1]), *b = w.lanes<uint32_t>(in.refs[2]);
  const uint32_t* c = w.lanes<uint32_t>(in.refs[3]);
  set_lanes<uint32_t>(w, in.refs[0], mask, [&](int i) {
    return permuted(a[i], b[i], in.mode == 0 ? c[i] : kPermuteModes[in.mode - 1][c[i] & 3]);
  });
}

void decode_permute(Decoder& d) {
  registers(d, {Kind::kBits, 4}, 3);
  static constexpr const char* kNames[] = {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"};
  for (uint8_t i = 0; i < 6; ++i) {
    if (d.has(kNames[i])) d.out().mode = i + 1;
  }
  d.out().run = permute;
}

template <bool kSignedA, bool kSignedB>
void dot4(Warp& w, const Instruction& in, uint32_t mask) {
  const uint32_t *a = w.lanes<uint32_t>(in.refs[1]), *b = w.lanes<uint32_t>(in.refs[2]);
  const uint32_t* c = w.lanes<uint32_t>(in.refs[3]);
  set_lanes<uint32_t>(w, in.refs[0], mask, [&](int i) {
    uint32_t sum = c[i];
    for (int k = 0; k < 4; ++k) {
      const uint32_t x = a[i] >> (8 * k) & 0xff, y = b[i] >> (8 * k) & 0xff;
      const int32_t u = kSignedA ? static_cast<int8_t>(x) : static_cast<int32_t>(x);
      const int32_t v = kSignedB ? static_cast<int8_t>(y) : static_cast<int32_t>(y);
      sum += static_cast<uint32_t>(u * v);
    }
    return sum;
  });
}

void decode_dot4(Decoder& d) {
  registers(d, {Kind::kBits, 4}, 3);
  const bool a = d.type(1).is_signed(), b = d.type().is_signed();
  if (a) {
    d.out().run = b ? dot4<true, true> : dot4<true, false>;
  } else {
    d.out().run = b ? dot4<false, true> : dot4<false, false>;
  }
}

template <auto kOp, auto kSaturating>
void decode_sum(Decoder& d) {
  decode_binary<kOp>(d);
  if (d.has("sat")) d.out().run = binary<int32_t, kSaturating>;
}

}  // namespace

void add_integer(InstructionTable& table) {
  table["add"] = decode_sum<kAdd, kSaturatingAdd>;
  table["sub"] = decode_sum<kSub, kSaturatingSub>;
  table["mul"] = [](Decoder& d) { decode_multiply(d, false); };
  table["mad"] = [](Decoder& d) { decode_multiply(d, true); };
  table["div"] = decode_binary<kDiv>;
  table["rem"] = decode_binary<kRem>;
  table["min"] = decode_binary<kMin>;
  table["max"] = decode_binary<kMax>;
  table["abs"] = decode_unary<kAbs>;
  table["neg"] = decode_unary<kNeg>;
  table["and"] = decode_logic<kAnd>;
  table["or"] = decode_logic<kOr>;
  table["xor"] = decode_logic<kXor>;
  table["not"] = decode_not;
  table["shl"] = decode_shift<true>;
  table["shr"] = decode_shift<false>;
  table["shf"] = decode_funnel;
  table["selp"] = decode_select;
  table["bfe"] = decode_bfe;
  table["bfi"] = decode_bfi;
  table["popc"] = decode_count<kPopc>;
  table["clz"] = decode_count<kClz>;
  table["bfind"] = decode_find;
  table["brev"] = [](Decoder& d) {
    registers(d, d.type(), 1);
    d.out().run = d.type().bytes == 8 ? unary<uint64_t, kReverse> : unary<uint32_t, kReverse>;
  };
  table["lop3"] = decode_logic3;
  table["prmt"] = decode_permute;
  table["dp4a"] = decode_dot4;
}

}  // namespace ptxrun
