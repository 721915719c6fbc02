// What lanes of a warp tell each other: shfl, vote, match, redux, elect, activemask.

#include "core/access.h"
#include "core/decode.h"

namespace ptxrun {
namespace {

enum Shuffle : uint8_t { kUp, kDown, kButterfly, kIndexed };

struct Peer {
  int lane;
  bool is_valid;
};

Peer peer_of(uint8_t mode, int lane, uint32_t b, uint32_t c) {
  const int clamp = static_cast<int>(c & 31), segment = static_cast<int>(c >> 8 & 31);
  const int least = lane & segment, most = least | (clamp & ~segment);
  const int step = static_cast<int>(b & 31);
  int from = 0;
  bool is_valid = false;
  switch (mode) {
    case kUp:
      from = lane - step;
      is_valid = from >= most;
      break;
    case kDown:
      from = lane + step;
      is_valid = from <= most;
      break;
    case kButterfly:
      from = lane ^ step;
      is_valid = from <= most;
      break;
    default:
      from = least | (step & ~segment);
      is_valid = from <= most;
      break;
  }
  return {is_valid ? from : lane, is_valid};
}

// refs: d, p, a, b, c, members
void shuffle(Warp& w, const Instruction& in, uint32_t mask) {
  if (!meet(w, in, in.refs[5], mask)) return;
  uint32_t a[kLanes], from[kLanes], valid = 0;
  std::copy_n(w.lanes<uint32_t>(in.refs[2]), kLanes, a);
  const uint32_t *b = w.lanes<uint32_t>(in.refs[3]), *c = w.lanes<uint32_t>(in.refs[4]);
  for (int i = 0; i < kLanes; ++i) {
    const Peer peer = peer_of(in.mode, i, b[i], c[i]);
    from[i] = static_cast<uint32_t>(peer.lane);
    valid |= static_cast<uint32_t>(peer.is_valid ? 1 : 0) << i;
  }
  for_lanes(mask, [&](int i) {  // reading a lane that is not here is undefined
    if ((mask >> from[i] & 1) == 0) a[from[i]] = 0xdeadbeef;
  });
  set_lanes<uint32_t>(w, in.refs[0], mask, [&](int i) { return a[from[i]]; });
  w.set_mask(in.refs[1], valid, mask);
}

void decode_shuffle(Decoder& d) {
  if (!d.has("sync")) return;
  d.ref(d.operand(0), {Kind::kBits, 4}, false);
  d.predicate_out(d.operand(0).second);
  for (size_t i = 1; i <= 4; ++i) d.source(i, {Kind::kBits, 4});
  d.out().mode = d.has("up") ? kUp : d.has("down") ? kDown : d.has("bfly") ? kButterfly : kIndexed;
  d.out().run = shuffle;
}

enum Vote : uint8_t { kBallot, kAny, kAll, kUniform };

// refs: d, p, members
void vote(Warp& w, const Instruction& in, uint32_t mask) {
  if (!meet(w, in, in.refs[2], mask)) return;
  const uint32_t yes = w.bits(in.refs[1]) & mask;
  const bool answer = in.mode == kAny   ? yes != 0
                      : in.mode == kAll ? yes == mask
                                        : yes == 0 || yes == mask;
  if (in.mode == kBallot) {
    set_lanes<uint32_t>(w, in.refs[0], mask, [&](int) { return yes; });
  } else {
    w.set_mask(in.refs[0], answer ? ~0u : 0, mask);
  }
}

void decode_vote(Decoder& d) {
  if (!d.has("sync")) return;
  Instruction& out = d.out();
  out.mode = d.has("ballot") ? kBallot : d.has("any") ? kAny : d.has("all") ? kAll : kUniform;
  if (out.mode == kBallot) {
    d.destination(0, {Kind::kBits, 4});
  } else {
    d.predicate_out(d.operand(0).name);
  }
  d.predicate_in(d.operand(1));
  d.source(2, {Kind::kBits, 4});
  out.run = vote;
}

// refs: d, p, a, members
template <class T, bool kAllMode>
void match(Warp& w, const Instruction& in, uint32_t mask) {
  if (!meet(w, in, in.refs[3], mask)) return;
  const T* a = w.lanes<T>(in.refs[2]);
  uint32_t same[kLanes] = {};
  for_lanes(mask,
            [&](int i) { for_lanes(mask, [&](int j) { same[i] |= a[i] == a[j] ? 1u << j : 0; }); });
  const bool is_whole = same[std::countr_zero(mask) % kLanes] == mask;
  set_lanes<uint32_t>(w, in.refs[0], mask,
                      [&](int i) { return kAllMode && !is_whole ? 0 : same[i]; });
  w.set_mask(in.refs[1], is_whole ? ~0u : 0, mask);
}

void decode_match(Decoder& d) {
  d.ref(d.operand(0), {Kind::kBits, 4}, false);
  d.predicate_out(d.operand(0).second);
  d.source(1, d.type());
  d.source(2, {Kind::kBits, 4});
  const bool is_wide = d.type().bytes == 8;
  if (d.has("all")) {
    d.out().run = is_wide ? match<uint64_t, true> : match<uint32_t, true>;
  } else {
    d.out().run = is_wide ? match<uint64_t, false> : match<uint32_t, false>;
  }
}

// refs: d, a, members
template <class T, auto kOp>
void reduce(Warp& w, const Instruction& in, uint32_t mask) {
  if (!meet(w, in, in.refs[2], mask)) return;
  const T* a = w.lanes<T>(in.refs[1]);
  T result = a[std::countr_zero(mask)];
  for_lanes(mask & (mask - 1), [&](int i) { result = static_cast<T>(kOp(result, a[i])); });
  set_lanes<T>(w, in.refs[0], mask, [&](int) { return result; });
}

constexpr auto kAdd = [](auto a, auto b) {
  return static_cast<uint32_t>(a) + static_cast<uint32_t>(b);
};
constexpr auto kMin = [](auto a, auto b) { return a < b ? a : b; };
constexpr auto kMax = [](auto a, auto b) { return a > b ? a : b; };
constexpr auto kAnd = [](auto a, auto b) { return a & b; };
constexpr auto kOr = [](auto a, auto b) { return a | b; };
constexpr auto kXor = [](auto a, auto b) { return a ^ b; };

void decode_reduce(Decoder& d) {
  const Type type = d.type();
  if (type.bytes != 4 || type.is_float()) return;
  d.destination(0, type);
  d.source(1, type);
  d.source(2, {Kind::kBits, 4});
  with_integer(type, [&]<class T>() {
    if constexpr (sizeof(T) == 4) {
      Handler& run = d.out().run;
      if (d.has("add")) run = reduce<T, kAdd>;
      if (d.has("min")) run = reduce<T, kMin>;
      if (d.has("max")) run = reduce<T, kMax>;
      if (d.has("and")) run = reduce<T, kAnd>;
      if (d.has("or")) run = reduce<T, kOr>;
      if (d.has("xor")) run = reduce<T, kXor>;
    }
  });
}

// refs: d, p, members
void elect(Warp& w, const Instruction& in, uint32_t mask) {
  if (!meet(w, in, in.refs[2], mask)) return;
  const int leader = std::countr_zero(mask);
  set_lanes<uint32_t>(w, in.refs[0], mask, [&](int) { return static_cast<uint32_t>(leader); });
  w.set_mask(in.refs[1], 1u << leader, mask);
}

}  // namespace

void add_exchange(InstructionTable& table) {
  table["shfl"] = decode_shuffle;
  table["vote"] = decode_vote;
  table["match"] = decode_match;
  table["redux"] = decode_reduce;
  table["elect"] = [](Decoder& d) {
    d.ref(d.operand(0), {Kind::kBits, 4}, false);
    d.predicate_out(d.operand(0).second);
    d.source(1, {Kind::kBits, 4});
    d.out().run = elect;
  };
  table["activemask"] = [](Decoder& d) {
    d.destination(0, {Kind::kBits, 4});
    d.out().run = [](Warp& w, const Instruction& in, uint32_t mask) {
      set_lanes<uint32_t>(w, in.refs[0], mask, [&](int) { return mask; });
    };
  };
}

}  // namespace ptxrun
