// ld, st, and atomics.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <type_traits>

#include "core/decode.h"
#include "core/numeric.h"
#include "core/traffic.h"

namespace ptxrun {

void addresses_of(Warp& w, const Instruction& in, Ref base, uint64_t* addresses) {
  const auto offset = static_cast<uint64_t>(in.value);
  if (base.bytes == 8) {
    const uint64_t* a = w.lanes<uint64_t>(base);
    for (int i = 0; i < kLanes; ++i) addresses[i] = a[i] + offset;
  } else {
    const uint32_t *a = w.lanes<uint32_t>(base), o = static_cast<uint32_t>(offset);
    for (int i = 0; i < kLanes; ++i) addresses[i] = a[i] + o;
  }
}

namespace {

template <class T>
void write_lane(Warp& w, Ref r, int lane, T value) {
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  const auto wide = static_cast<uint64_t>(static_cast<Wide>(value));
  switch (r.bytes) {
    case 2: w.lanes<uint16_t>(r)[lane] = static_cast<uint16_t>(wide); break;
    case 4: w.lanes<uint32_t>(r)[lane] = static_cast<uint32_t>(wide); break;
    case 8: w.lanes<uint64_t>(r)[lane] = wide; break;
  }
}

template <class T>
void write_lanes(Warp& w, Ref r, uint32_t mask, const T* values) {
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  if (r.offset == 0) return;
  set_any(w, r, mask, [&](int i) { return static_cast<Wide>(values[i]); });
}

// Parameters: mostly the same address for all lanes.
template <class T>
void load_parameter(Warp& w, const Instruction& in, const uint64_t* addresses, uint32_t mask) {
  const uint64_t bytes = sizeof(T) * in.vector;
  T values[8][kLanes];
  uint64_t last = ~uint64_t{0};
  T found[8] = {};
  for_lanes(mask, [&](int lane) {
    if (addresses[lane] != last) {
      last = addresses[lane];
      const uint8_t* p = reach(w, in, Space::kParam, last, bytes, lane, Touch::kRead);
      std::fill_n(found, in.vector, static_cast<T>(-1));
      if (p != nullptr) std::memcpy(found, p, bytes);
    }
    for (uint32_t v = 0; v < in.vector; ++v) values[v][lane] = found[v];
  });
  for (uint32_t v = 0; v < in.vector; ++v) write_lanes(w, in.refs[1 + v], mask, values[v]);
}

// refs: address, values.
template <class T>
void load(Warp& w, const Instruction& in, uint32_t mask) {
  uint64_t addresses[kLanes];
  addresses_of(w, in, in.refs[0], addresses);
  const uint64_t bytes = sizeof(T) * in.vector;
  if (in.space == Space::kParam) return load_parameter<T>(w, in, addresses, mask);
  count_access(w, in, in.space, addresses, bytes, mask, Touch::kRead);
  if (const uint8_t* all = reach_all(w, in, in.space, addresses, bytes, mask, Touch::kRead)) {
    for (uint32_t v = 0; v < in.vector; ++v) {
      T values[kLanes];
      for_lanes(mask, [&](int lane) {
        std::memcpy(&values[lane], all + addresses[lane] + v * sizeof(T), sizeof(T));
      });
      write_lanes(w, in.refs[1 + v], mask, values);
    }
    return;
  }
  for_lanes(mask, [&](int lane) {
    const uint8_t* p = reach(w, in, in.space, addresses[lane], bytes, lane, Touch::kRead);
    for (uint32_t v = 0; v < in.vector; ++v) {
      auto value = static_cast<T>(-1);
      if (p != nullptr) std::memcpy(&value, p + v * sizeof(T), sizeof(T));
      write_lane(w, in.refs[1 + v], lane, value);
    }
  });
}

template <class T>
void store(Warp& w, const Instruction& in, uint32_t mask) {
  uint64_t addresses[kLanes];
  addresses_of(w, in, in.refs[0], addresses);
  const uint64_t bytes = sizeof(T) * in.vector;
  count_access(w, in, in.space, addresses, bytes, mask, Touch::kWrite);
  uint8_t* all = reach_all(w, in, in.space, addresses, bytes, mask, Touch::kWrite);
  w.cta->grid->last_progress = w.cta->grid->num_instructions;
  for_lanes(mask, [&](int lane) {
    uint8_t* p = all != nullptr
                     ? all + addresses[lane]
                     : reach(w, in, in.space, addresses[lane], bytes, lane, Touch::kWrite);
    for (uint32_t v = 0; p != nullptr && v < in.vector; ++v) {
      const auto value = static_cast<T>(w.value(in.refs[1 + v], lane));
      std::memcpy(p + v * sizeof(T), &value, sizeof(T));
    }
  });
}

// ld.param and st.param of a call's arguments mean local memory; all other parameters are the
// grid's.
Space space_of_access(Decoder& d, const Operand& address) {
  const Space space = d.space_of();
  return space == Space::kParam && d.is_local(address.name) ? Space::kLocal : space;
}

// .acquire, .relaxed.gpu, .volatile, .nc, ..; `usual` if it does not say.
void decode_strength(Decoder& d, Strength usual) {
  Instruction& out = d.out();
  out.strength = usual;
  out.is_wide = !d.has("cta") && !d.has("cluster");
  if (d.has("nc") || d.parts()[0] == "ldu") out.strength = Strength::kReadOnly;
  if (d.has("ca") && usual == Strength::kWeak) out.strength = Strength::kCached;
  if (d.has("volatile") || d.has("relaxed") || d.has("mmio")) out.strength = Strength::kRelaxed;
  if (d.has("acquire")) out.strength = Strength::kAcquire;
  if (d.has("release")) out.strength = Strength::kRelease;
  if (d.has("acq_rel")) out.strength = Strength::kAcquireRelease;
}

void decode_access(Decoder& d, bool is_load) {
  const Operand& address = d.operand(is_load ? 1 : 0);
  const Operand& value = d.operand(is_load ? 0 : 1);
  Type type = d.type();
  if (type.is_float() && type.bytes <= 8) type.kind = Kind::kBits;
  d.address(address);
  Instruction& out = d.out();
  decode_strength(d, Strength::kWeak);
  if (value.form == Operand::Form::kVector) {
    for (const Operand& item : value.items) {
      if (is_load) d.writes();
      d.any(item, type);
    }
    out.vector = static_cast<uint8_t>(value.items.size());
  } else {
    if (is_load) d.writes();
    d.any(value, type);
  }
  d.touches(space_of_access(d, address), type.bytes * out.vector);
  with_integer(type,
               [&]<class T>() { out.run = is_load ? load<T> : store<std::make_unsigned_t<T>>; });
}

// CTAs on several threads add to the same words.
std::unique_lock<std::mutex> atomics_lock() {
  static std::mutex mutex;
  return std::unique_lock(mutex);
}

template <class T, auto kOp>
void atomic(Warp& w, const Instruction& in, uint32_t mask) {
  uint64_t addresses[kLanes];
  addresses_of(w, in, in.refs[0], addresses);
  count_access(w, in, in.space, addresses, sizeof(T), mask, Touch::kAtomic);
  std::unique_lock<std::mutex> alone;
  if (w.cta->grid->num_shares > 1 && in.space != Space::kShared) alone = atomics_lock();
  uint8_t* all = reach_all(w, in, in.space, addresses, sizeof(T), mask, Touch::kAtomic);
  for_lanes(mask, [&](int lane) {
    uint8_t* p = all != nullptr
                     ? all + addresses[lane]
                     : reach(w, in, in.space, addresses[lane], sizeof(T), lane, Touch::kAtomic);
    if (p == nullptr) return;
    T old;
    std::memcpy(&old, p, sizeof(T));
    const T b = w.lanes<T>(in.refs[2])[lane];
    const T c = in.refs.size() > 3 ? w.lanes<T>(in.refs[3])[lane] : T{};
    const T result = kOp(old, b, c);
    if (std::memcmp(&old, &result, sizeof(T)) != 0) {
      w.cta->grid->last_progress = w.cta->grid->num_instructions;
    }
    std::memcpy(p, &result, sizeof(T));
    if (in.refs[1].offset != 0) w.lanes<T>(in.refs[1])[lane] = old;
  });
}

constexpr auto kAdd = []<class T>(T a, T b, T) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return canonical(a + b);
  }
};
constexpr auto kMin = []<class T>(T a, T b, T) { return b < a ? b : a; };
constexpr auto kMax = []<class T>(T a, T b, T) { return b > a ? b : a; };
constexpr auto kInc = []<class T>(T a, T b, T) { return static_cast<T>(a >= b ? 0 : a + 1); };
constexpr auto kDec = []<class T>(T a, T b, T) {
  return static_cast<T>(a == 0 || a > b ? b : a - 1);
};
constexpr auto kAnd = []<class T>(T a, T b, T) { return static_cast<T>(a & b); };
constexpr auto kOr = []<class T>(T a, T b, T) { return static_cast<T>(a | b); };
constexpr auto kXor = []<class T>(T a, T b, T) { return static_cast<T>(a ^ b); };
constexpr auto kExchange = []<class T>(T, T b, T) { return b; };
constexpr auto kCompareAndSwap = []<class T>(T a, T b, T c) { return a == b ? c : a; };

// Two numbers of 16 bits side by side, or one.
template <class Format>
constexpr auto kAddHalf = [](auto a, auto b, auto) {
  decltype(a) r = 0;
  for (size_t k = 0; k < sizeof(a) / 2; ++k) {
    const float x = Format::value(static_cast<uint16_t>(a >> (16 * k)));
    const float y = Format::value(static_cast<uint16_t>(b >> (16 * k)));
    r |= static_cast<decltype(a)>(static_cast<decltype(a)>(Format::rounded(x + y)) << (16 * k));
  }
  return r;
};

template <class T>
Handler integer_atomic(const Decoder& d) {
  if (d.has("add")) return atomic<T, kAdd>;
  if (d.has("min")) return atomic<T, kMin>;
  if (d.has("max")) return atomic<T, kMax>;
  if (d.has("inc")) return atomic<T, kInc>;
  if (d.has("dec")) return atomic<T, kDec>;
  if (d.has("and")) return atomic<T, kAnd>;
  if (d.has("or")) return atomic<T, kOr>;
  if (d.has("xor")) return atomic<T, kXor>;
  if (d.has("exch")) return atomic<T, kExchange>;
  if (d.has("cas")) return atomic<T, kCompareAndSwap>;
  return nullptr;
}

void decode_atomic(Decoder& d) {
  const bool returns = d.parts()[0] == "atom";
  const Type type = d.type();
  const size_t address = returns ? 1 : 0;
  if (d.operand(address + 1).form == Operand::Form::kVector) d.fail("vector atomics");
  d.address(d.operand(address));
  if (returns) {
    d.destination(0, type);
  } else {
    d.unused();
  }
  d.source(address + 1, type);
  if (d.has("cas")) d.source(address + 2, type);
  Instruction& out = d.out();
  d.touches(d.space_of(), type.bytes);
  decode_strength(d, Strength::kRelaxed);
  if (type.kind == Kind::kFloat && type.bytes >= 4 && d.has("add")) {
    out.run = type.bytes == 4 ? atomic<float, kAdd> : atomic<double, kAdd>;
  } else if (type.is_float() && d.has("add")) {
    const std::string& name = d.parts().back();
    if (name == "f16") out.run = atomic<uint16_t, kAddHalf<Half>>;
    if (name == "bf16") out.run = atomic<uint16_t, kAddHalf<BFloat>>;
    if (name == "f16x2") out.run = atomic<uint32_t, kAddHalf<Half>>;
    if (name == "bf16x2") out.run = atomic<uint32_t, kAddHalf<BFloat>>;
  } else {
    with_integer(type, [&]<class T>() {
      if constexpr (sizeof(T) >= 2) out.run = integer_atomic<T>(d);
    });
  }
}

}  // namespace

void add_memory(InstructionTable& table) {
  table["ld"] = table["ldu"] = [](Decoder& d) { decode_access(d, true); };
  table["st"] = [](Decoder& d) { decode_access(d, false); };
  table["ld.float"] = table["ld.half"] = table["ld"];
  table["st.float"] = table["st.half"] = table["st"];
  table["atom"] = table["red"] = decode_atomic;
}

}  // namespace ptxrun
