// mma.sync, ldmatrix, stmatrix, movmatrix.

#include <algorithm>
#include <cstring>

#include "core/decode.h"
#include "core/matrix.h"
#include "core/numeric.h"
#include "core/traffic.h"

namespace ptxrun {
namespace {

// Registers of B: 4 words of k of each column, then the next 4.
template <class Element, int kK, class T>
void read_b(Warp& w, const Ref* refs, T (*b)[8]) {
  constexpr int kN = kPerWord<Element>;
  for (int reg = 0; reg < kK / (4 * kN); ++reg) {
    uint32_t words[4][8];
    transpose(w.lanes<uint32_t>(refs[reg]), words[0]);
    for (int t = 0; t < 4; ++t) {
      T(*to)[8] = b + (reg * 4 + t) * kN;
      for (int i = 0; i < kN; ++i) {
        for (int col = 0; col < 8; ++col) {
          const auto element = words[t][col] >> (32 / kN * i);
          to[i][col] = Element::value(static_cast<typename Element::Stored>(element));
        }
      }
    }
  }
}

bool is_whole(Warp& w, const Instruction& in, uint32_t mask) {
  if (mask == kAllLanes) return true;
  w.cta->grid->report(w, "divergence", in.index, std::countr_zero(~mask),
                      "a matrix instruction needs all lanes of the warp");
  return false;
}

// refs: d, a, b, c. `kHalf`: d and c are pairs of f16.
template <class A, class B, int kK, bool kHalf>
void multiply(Warp& w, const Instruction& in, uint32_t mask) {
  if (!is_whole(w, in, mask)) return;
  constexpr int kWords = kHalf ? 2 : 4, kWordsA = 2 * kK / (4 * kPerWord<A>);
  using T = decltype(A::value({}));
  alignas(64) T a[16][kK], b[kK][8], c[16][8];
  const Ref *refs_a = in.refs.data() + kWords, *refs_b = refs_a + kWordsA;
  read_a<A, kK>(w, refs_a, a);
  read_b<B, kK>(w, refs_b, b);
  read_sums<kHalf>(w, refs_b + kWordsA / 2, c);
  if constexpr (std::is_same_v<T, float>) {
    const Options& options = w.cta->grid->options;
    multiply_block<kK>(a, b, c, options.mma, options.seed ^ static_cast<uint32_t>(in.value));
  } else {
    multiply_integers<kK>(a, b, c, in.flag);
  }
  write_sums<kHalf>(w, in.refs.data(), c);
  ++w.cta->grid->num_matrix;
}

template <class A, class B, int kK>
Handler with_result(const std::string& d, const std::string& c) {
  if (d == "f32" && c == "f32") return multiply<A, B, kK, false>;
  if constexpr (std::is_same_v<A, F16Element>) {
    if (d == "f16" && c == "f16") return multiply<A, B, kK, true>;
  }
  return nullptr;
}

template <int kK>
Handler with_bytes(const std::string& a, const std::string& b) {
  using S = ByteElement<int8_t>;
  using U = ByteElement<uint8_t>;
  if (a == "s8" && b == "s8") return multiply<S, S, kK, false>;
  if (a == "s8" && b == "u8") return multiply<S, U, kK, false>;
  if (a == "u8" && b == "s8") return multiply<U, S, kK, false>;
  if (a == "u8" && b == "u8") return multiply<U, U, kK, false>;
  return nullptr;
}

template <int kK>
Handler with_fp8(const std::string& a, const std::string& b) {
  using X = Fp8Element<E4M3>;
  using Y = Fp8Element<E5M2>;
  if (a == "e4m3") return b == "e4m3" ? multiply<X, X, kK, false> : multiply<X, Y, kK, false>;
  return b == "e4m3" ? multiply<Y, X, kK, false> : multiply<Y, Y, kK, false>;
}

// mma.sync.aligned.shape.row.col[.satfinite].d.a.b.c
void decode_mma(Decoder& d) {
  if (!d.has("row") || !d.has("col")) return;
  const size_t n = d.parts().size() - (d.parts().back() == "satfinite" ? 1 : 0);
  const std::string &dt = d.parts()[n - 4], &at = d.parts()[n - 3], &bt = d.parts()[n - 2];
  const std::string& ct = d.parts()[n - 1];
  Handler& run = d.out().run;
  if (at == "bf16" && d.has("m16n8k16")) run = with_result<Bf16Element, Bf16Element, 16>(dt, ct);
  if (at == "bf16" && d.has("m16n8k8")) run = with_result<Bf16Element, Bf16Element, 8>(dt, ct);
  if (at == "f16" && d.has("m16n8k16")) run = with_result<F16Element, F16Element, 16>(dt, ct);
  if (at == "f16" && d.has("m16n8k8")) run = with_result<F16Element, F16Element, 8>(dt, ct);
  if (at == "tf32" && d.has("m16n8k8")) run = with_result<Tf32Element, Tf32Element, 8>(dt, ct);
  if (at == "tf32" && d.has("m16n8k4")) run = with_result<Tf32Element, Tf32Element, 4>(dt, ct);
  if (ct == "s32" && d.has("m16n8k32")) run = with_bytes<32>(at, bt);
  if (ct == "s32" && d.has("m16n8k16")) run = with_bytes<16>(at, bt);
  if (at.starts_with('e') && ct == "f32" && d.has("m16n8k32")) run = with_fp8<32>(at, bt);
  d.out().flag = d.has("satfinite");
  d.out().value = kind_of(d.statement().opcode);
  for (size_t i = 0; i < 4; ++i) {
    for (const Operand& item : d.operand(i).items) d.ref(item, {Kind::kBits, 4}, false);
  }
}

// ---- ldmatrix and stmatrix: lane 8m + r holds the address of row r of matrix m
// A lane's word of an 8 x 8 matrix: row lane / 4 and two columns; transposed, the other way round.
void transpose_halves(const uint32_t* rows, uint32_t* lanes) {
  uint16_t halves[8][8];
  std::memcpy(halves, rows, sizeof halves);
  uint32_t words[4][8];
  for (int t = 0; t < 4; ++t) {
    for (int col = 0; col < 8; ++col) {
      words[t][col] = halves[2 * t][col] | uint32_t{halves[2 * t + 1][col]} << 16;
    }
  }
  transpose_back(words[0], lanes);
}

// Where the rows of an instruction's matrices start, and a lane each for them.
uint32_t rows_of(Warp& w, const Instruction& in, uint64_t* addresses, Touch touch) {
  addresses_of(w, in, in.refs[0], addresses);
  for (int i = 0; i < kLanes; ++i) addresses[i] &= 0xffffffff;
  const uint32_t rows = in.vector == 4 ? kAllLanes : (1u << (8 * in.vector)) - 1;
  count_access(w, in, Space::kShared, addresses, 16, rows, touch);
  return rows;
}

// Calls f(lane, bytes) for each row that may be touched.
template <class F>
void for_rows(Warp& w, const Instruction& in, Touch touch, F&& f) {
  uint64_t addresses[kLanes];
  const uint32_t rows = rows_of(w, in, addresses, touch);
  uint8_t* all = reach_all(w, in, Space::kShared, addresses, 16, rows, touch);
  for_lanes(rows, [&](int lane) {
    uint8_t* p = all != nullptr ? all + addresses[lane]
                                : reach(w, in, Space::kShared, addresses[lane], 16, lane, touch);
    if (p != nullptr) f(lane, p);
  });
}

void load_matrix(Warp& w, const Instruction& in, uint32_t mask) {
  if (!is_whole(w, in, mask)) return;
  uint32_t rows[kLanes][4] = {};
  for_rows(w, in, Touch::kRead,
           [&](int lane, const uint8_t* p) { std::memcpy(rows[lane], p, sizeof rows[lane]); });
  for (size_t m = 0; m < in.vector; ++m) {
    const Ref r = in.refs[1 + m];
    if (r.offset == 0) continue;
    uint32_t* to = w.lanes<uint32_t>(r);
    if (in.flag) {
      transpose_halves(rows[8 * m], to);
    } else {
      std::memcpy(to, rows[8 * m], 8 * sizeof rows[0]);
    }
  }
}

void store_matrix(Warp& w, const Instruction& in, uint32_t mask) {
  if (!is_whole(w, in, mask)) return;
  uint32_t rows[kLanes][4];
  for (size_t m = 0; m < in.vector; ++m) {
    const uint32_t* words = w.lanes<uint32_t>(in.refs[1 + m]);
    if (in.flag) {
      transpose_halves(words, rows[8 * m]);
    } else {
      std::memcpy(rows[8 * m], words, 8 * sizeof rows[0]);
    }
  }
  for_rows(w, in, Touch::kWrite,
           [&](int lane, uint8_t* p) { std::memcpy(p, rows[lane], sizeof rows[lane]); });
}

void decode_matrix_access(Decoder& d, bool is_load) {
  if (!d.has("m8n8") || !d.has("b16")) return;
  const Operand& values = d.operand(is_load ? 0 : 1);
  d.address(d.operand(is_load ? 1 : 0));
  for (const Operand& item : values.items) {
    if (is_load) d.writes();
    d.ref(item, {Kind::kBits, 4}, false);
  }
  d.out().vector = static_cast<uint8_t>(values.items.size());
  d.out().flag = d.has("trans");
  d.out().run = is_load ? load_matrix : store_matrix;
}

void transpose(Warp& w, const Instruction& in, uint32_t mask) {
  if (!is_whole(w, in, mask)) return;
  uint32_t result[kLanes];
  transpose_halves(w.lanes<uint32_t>(in.refs[1]), result);
  set_lanes<uint32_t>(w, in.refs[0], mask, [&](int lane) { return result[lane]; });
}

}  // namespace

void add_matrix(InstructionTable& table) {
  table["mma"] = table["mma.float"] = table["mma.half"] = decode_mma;
  table["ldmatrix"] = [](Decoder& d) { decode_matrix_access(d, true); };
  table["stmatrix"] = [](Decoder& d) { decode_matrix_access(d, false); };
  table["movmatrix"] = [](Decoder& d) {
    d.destination(0, {Kind::kBits, 4});
    d.source(1, {Kind::kBits, 4});
    d.out().run = transpose;
  };
}

}  // namespace ptxrun
