// Rarer integer instructions: sums with a carry, bit masks, absolute differences, address spaces.

#include "core/access.h"
#include "core/decode.h"

namespace ptxrun {
namespace {

// add.cc, addc[.cc], sub.cc, subc[.cc]: the carry (of sub: the borrow) is a register of the warp.
template <class T, bool kSubtracts>
void sum_with_carry(Warp& w, const Instruction& in, uint32_t mask) {
  const T *a = w.lanes<T>(in.refs[1]), *b = w.lanes<T>(in.refs[2]);
  T result[kLanes];
  uint32_t carries = 0;
  for (int i = 0; i < kLanes; ++i) {
    const T carry = in.flag ? static_cast<T>(w.carry >> i & 1) : T{0};
    T sum = 0;
    bool overflows = false;
    if (kSubtracts) {
      overflows = __builtin_sub_overflow(a[i], b[i], &sum);
      overflows |= __builtin_sub_overflow(sum, carry, &sum);
    } else {
      overflows = __builtin_add_overflow(a[i], b[i], &sum);
      overflows |= __builtin_add_overflow(sum, carry, &sum);
    }
    result[i] = sum;
    carries |= static_cast<uint32_t>(overflows ? 1 : 0) << i;
  }
  set_lanes<T>(w, in.refs[0], mask, [&](int i) { return result[i]; });
  if (in.mode != 0) w.carry = (w.carry & ~mask) | (carries & mask);
}

template <bool kSubtracts>
void decode_carry(Decoder& d) {
  d.destination(0, d.type());
  d.source(1, d.type());
  d.source(2, d.type());
  d.out().flag = d.parts()[0].ends_with('c');
  d.out().mode = d.has("cc") ? 1 : 0;
  const bool is_wide = d.type().bytes == 8;
  d.out().run =
      is_wide ? sum_with_carry<uint64_t, kSubtracts> : sum_with_carry<uint32_t, kSubtracts>;
}

// b ones from bit a on; flag: clamped rather than taken mod 32.
void bit_mask(Warp& w, const Instruction& in, uint32_t mask) {
  const uint32_t *a = w.lanes<uint32_t>(in.refs[1]), *b = w.lanes<uint32_t>(in.refs[2]);
  set_lanes<uint32_t>(w, in.refs[0], mask, [&](int i) {
    const uint32_t from = a[i] & 31, end = from + (b[i] & 31);
    const bool is_past = in.flag && a[i] >= 32, is_long = in.flag && b[i] >= 32;
    const uint32_t low = is_past ? 0 : ~0u << from;
    return low & (end >= 32 || is_past || is_long ? ~0u : ~(~0u << end));
  });
}

template <class T>
void absolute_difference(Warp& w, const Instruction& in, uint32_t mask) {
  const T *a = w.lanes<T>(in.refs[1]), *b = w.lanes<T>(in.refs[2]);
  const auto* c = w.lanes<uint32_t>(in.refs[3]);
  set_lanes<uint32_t>(w, in.refs[0], mask, [&](int i) {
    const auto x = static_cast<uint32_t>(a[i]), y = static_cast<uint32_t>(b[i]);
    return c[i] + (a[i] < b[i] ? y - x : x - y);
  });
}

void is_in_space(Warp& w, const Instruction& in, uint32_t mask) {
  const uint64_t* a = w.lanes<uint64_t>(in.refs[1]);
  w.set_mask(in.refs[0], lane_bits([&](int i) {
               const Space space = space_at(a[i]);
               return space == in.space || (space == Space::kGlobal && in.space == Space::kConst);
             }),
             mask);
}

}  // namespace

void add_extended(InstructionTable& table) {
  table["addc"] = table["add.cc"] = decode_carry<false>;
  table["subc"] = table["sub.cc"] = decode_carry<true>;
  table["bmsk"] = [](Decoder& d) {
    d.destination(0, d.type());
    d.source(1, d.type());
    d.source(2, d.type());
    d.out().flag = d.has("clamp");
    d.out().run = bit_mask;
  };
  table["sad"] = [](Decoder& d) {
    for (size_t i = 0; i < 4; ++i) d.source(i, d.type());
    if (d.type().bytes != 4) return;
    d.out().run =
        d.type().is_signed() ? absolute_difference<int32_t> : absolute_difference<uint32_t>;
  };
  table["isspacep"] = [](Decoder& d) {
    d.predicate_out(d.operand(0).name);
    d.source(1, {Kind::kBits, 8});
    d.out().space = d.space_of();
    d.out().run = is_in_space;
  };
}

}  // namespace ptxrun
