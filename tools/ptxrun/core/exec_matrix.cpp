// mma.sync, ldmatrix, stmatrix, movmatrix.

#include <algorithm>
#include <cstring>

#include "core/decode.h"
#include "core/matrix.h"
#include "core/numeric.h"
#include "core/traffic.h"

namespace ptxrun {
namespace {

template <class Element, int kK, class T>
void read_b(Warp& w, const Ref* refs, T (*b)[8]) {
  constexpr int kN = Element::kPerWord;
  for (int reg = 0; reg < kK / (4 * kN); ++reg) {
    const uint32_t* words = w.lanes<uint32_t>(refs[reg]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int k = lane % 4 * kN + reg * 4 * kN;
      for (int i = 0; i < kN; ++i) b[k + i][lane / 4] = Element::value(words[lane], i);
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
  constexpr int kWords = kHalf ? 2 : 4, kWordsA = 2 * kK / (4 * A::kPerWord);
  using T = decltype(A::value(0, 0));
  alignas(64) T a[16][kK], b[kK][8], c[16][8];
  const Ref *refs_a = in.refs.data() + kWords, *refs_b = refs_a + kWordsA;
  const Ref* refs_c = refs_b + kWordsA / 2;
  read_a<A, kK>(w, refs_a, a);
  read_b<B, kK>(w, refs_b, b);
  for (int reg = 0; reg < kWords; ++reg) {
    const uint32_t* words = w.lanes<uint32_t>(refs_c[reg]);
    for (int lane = 0; lane < kLanes; ++lane) {
      T* at = &c[lane / 4 + 8 * (kHalf ? reg : reg >> 1)][lane % 4 * 2];
      if constexpr (kHalf) {
        for (int i = 0; i < 2; ++i) at[i] = F16Element::value(words[lane], i);
      } else {
        at[reg & 1] = std::bit_cast<T>(words[lane]);
      }
    }
  }
  if constexpr (std::is_same_v<T, float>) {
    const Options& options = w.cta->grid->options;
    multiply_block<kK>(a, b, c, options.mma, options.seed ^ static_cast<uint32_t>(in.value));
  } else {
    multiply_integers<kK>(a, b, c, in.flag);
  }
  for (int reg = 0; reg < kWords; ++reg) {
    uint32_t* words = w.lanes<uint32_t>(in.refs[reg]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const T* at = &c[lane / 4 + 8 * (kHalf ? reg : reg >> 1)][lane % 4 * 2];
      if constexpr (kHalf) {
        words[lane] = Half::rounded(at[0]) | uint32_t{Half::rounded(at[1])} << 16;
      } else {
        words[lane] = std::bit_cast<uint32_t>(at[reg & 1]);
      }
    }
  }
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
uint16_t* element(uint16_t (*matrix)[8], int lane, int i, bool is_transposed) {
  const int row = lane / 4, col = lane % 4 * 2 + i;
  return is_transposed ? &matrix[col][row] : &matrix[row][col];
}

void load_matrix(Warp& w, const Instruction& in, uint32_t mask) {
  if (!is_whole(w, in, mask)) return;
  uint64_t addresses[kLanes];
  addresses_of(w, in, in.refs[0], addresses);
  const int count = in.vector;
  const uint32_t rows = count == 4 ? kAllLanes : (1u << (8 * count)) - 1;
  count_access(w, in, Space::kShared, addresses, 16, rows, Touch::kRead);
  uint16_t matrices[4][8][8] = {};
  for_lanes(rows, [&](int lane) {
    const uint64_t at = addresses[lane] & 0xffffffff;
    const uint8_t* p = reach(w, in, Space::kShared, at, 16, lane, Touch::kRead);
    if (p != nullptr) std::memcpy(matrices[lane / 8][lane % 8], p, 16);
  });
  for (int m = 0; m < count; ++m) {
    set_lanes<uint32_t>(w, in.refs[1 + static_cast<size_t>(m)], mask, [&](int lane) {
      return *element(matrices[m], lane, 0, in.flag) |
             static_cast<uint32_t>(*element(matrices[m], lane, 1, in.flag)) << 16;
    });
  }
}

void store_matrix(Warp& w, const Instruction& in, uint32_t mask) {
  if (!is_whole(w, in, mask)) return;
  uint64_t addresses[kLanes];
  addresses_of(w, in, in.refs[0], addresses);
  const int count = in.vector;
  const uint32_t rows = count == 4 ? kAllLanes : (1u << (8 * count)) - 1;
  count_access(w, in, Space::kShared, addresses, 16, rows, Touch::kWrite);
  uint16_t matrices[4][8][8];
  for (int m = 0; m < count; ++m) {
    const uint32_t* words = w.lanes<uint32_t>(in.refs[1 + static_cast<size_t>(m)]);
    for (int lane = 0; lane < kLanes; ++lane) {
      *element(matrices[m], lane, 0, in.flag) = static_cast<uint16_t>(words[lane]);
      *element(matrices[m], lane, 1, in.flag) = static_cast<uint16_t>(words[lane] >> 16);
    }
  }
  for_lanes(rows, [&](int lane) {
    const uint64_t at = addresses[lane] & 0xffffffff;
    uint8_t* p = reach(w, in, Space::kShared, at, 16, lane, Touch::kWrite);
    if (p != nullptr) std::memcpy(p, matrices[lane / 8][lane % 8], 16);
  });
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
  uint16_t matrix[8][8];
  const uint32_t* words = w.lanes<uint32_t>(in.refs[1]);
  for (int lane = 0; lane < kLanes; ++lane) {
    *element(matrix, lane, 0, false) = static_cast<uint16_t>(words[lane]);
    *element(matrix, lane, 1, false) = static_cast<uint16_t>(words[lane] >> 16);
  }
  set_lanes<uint32_t>(w, in.refs[0], mask, [&](int lane) {
    return *element(matrix, lane, 0, true) | static_cast<uint32_t>(*element(matrix, lane, 1, true))
                                                 << 16;
  });
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
