// wgmma: each of the four warps of a group computes its own 16 rows, when the product lands.

#include <algorithm>
#include <cstring>

#include "core/async.h"
#include "core/decode.h"
#include "core/matrix.h"
#include "core/tensor_map.h"
#include "core/traffic.h"

namespace ptxrun {
namespace {

constexpr int kMaxN = 256;

// A matrix in shared memory: 16-byte units, by row and unit of k, or by unit of rows and k.
struct Descriptor {
  uint32_t start, leading, stride;
  int swizzle;  // as in TensorMap

  explicit Descriptor(uint64_t bits)
      : start(static_cast<uint32_t>(bits & 0x3fff) << 4),
        leading(static_cast<uint32_t>(bits >> 16 & 0x3fff) << 4),
        stride(static_cast<uint32_t>(bits >> 32 & 0x3fff) << 4),
        swizzle((4 - static_cast<int>(bits >> 62)) % 4) {}

  uint32_t width() const { return swizzle == 0 ? 16 : 16u << swizzle; }  // bytes of an atom's row

  // 16 bytes of k from unit `k16` on, of row `row`.
  uint32_t k_major(uint32_t row, uint32_t k16) const {
    if (swizzle == 0) return start + row / 8 * stride + k16 * leading + row % 8 * 16;
    return swizzled(start + row / 8 * stride + row % 8 * width() + k16 * 16, swizzle);
  }
  // 16 bytes of rows from unit `row16` on, at k.
  uint32_t row_major(uint32_t row16, uint32_t k) const {
    if (swizzle == 0) return start + row16 * stride + k % 8 * 16 + k / 8 * leading;
    const uint32_t units = width() / 16;
    return swizzled(
        start + row16 % units * 16 + row16 / units * leading + k % 8 * width() + k / 8 * stride,
        swizzle);
  }
};

// Calls f(offset, row, k) for each unit of 16 bytes of rows first .. first + count.
template <class F>
void for_units(const Descriptor& d, uint32_t first, uint32_t count, int k, int unit,
               bool is_row_major, F&& f) {
  const auto in_unit = static_cast<uint32_t>(unit);
  if (is_row_major) {
    for (uint32_t row = 0; row < count; row += in_unit) {
      for (int j = 0; j < k; ++j) {
        f(d.row_major((first + row) / in_unit, static_cast<uint32_t>(j)), row, j);
      }
    }
  } else {
    for (uint32_t row = 0; row < count; ++row) {
      for (int j = 0; j < k; j += unit) {
        f(d.k_major(first + row, static_cast<uint32_t>(j / unit)), row, j);
      }
    }
  }
}

template <class Element>
constexpr int kElements = 16 / sizeof(typename Element::Stored);  // of a unit

// out(row, k) for rows first .. first + count.
template <class Element, class F>
void read_operand(Warp& w, const Instruction& in, const Descriptor& d, uint32_t first,
                  uint32_t count, int k, bool is_row_major, F&& out) {
  constexpr int kUnit = kElements<Element>;
  const std::vector<uint8_t>& shared = w.cta->shared;
  for_units(d, first, count, k, kUnit, is_row_major, [&](uint32_t offset, uint32_t row, int j) {
    if (offset + 16 > shared.size()) {
      return w.cta->grid->report(w, "out of bounds", in.index, 0,
                                 "operand at shared byte " + std::to_string(offset));
    }
    typename Element::Stored elements[kUnit];
    std::memcpy(elements, shared.data() + offset, 16);
    for (int i = 0; i < kUnit; ++i) {
      (is_row_major ? out(row + static_cast<uint32_t>(i), j) : out(row, j + i)) =
          Element::value(elements[i]);
    }
  });
}

// The same bytes are being read from now on.
void mark_operand(Warp& w, const Instruction& in, const Descriptor& d, uint32_t first,
                  uint32_t count, int k, int unit, bool is_row_major) {
  Cta& cta = *w.cta;
  if (!cta.shadow.is_on()) return;
  const auto agent = static_cast<uint32_t>(2 * cta.warps.size()) + 1 + w.id;
  for_units(d, first, count, k, unit, is_row_major, [&](uint32_t offset, uint32_t, int) {
    if (offset + 16 > cta.shared.size()) return;  // the product will say it
    cta.shadow.read_by_proxy(w, offset, 16, agent, cta.reader_clock, in.index);
  });
}

template <bool kHalf>
int num_sums(const Instruction& in) {
  return in.bytes * (kHalf ? 2 : 4);
}

enum Flags : uint8_t {
  kNegatesA = 1,
  kNegatesB = 2,
  kRowMajorA = 4,
  kRowMajorB = 8,
  kFromRegisters = 16
};

// Reads its operands, and the sums that it adds to.
template <class A, class B, int kK, bool kHalf>
void land(Warp& w, const AsyncProduct& product) {
  using T = decltype(A::value({}));
  const Instruction& in = *product.instruction;
  const Options& options = w.cta->grid->options;
  const int n = in.bytes * 8;
  static thread_local T a[16][kK], b[kMaxN / 8][kK][8], c[16][8];
  if ((in.mode & kFromRegisters) != 0) {
    read_a<A, kK>(w, in.refs.data() + num_sums<kHalf>(in), a);
  } else {
    read_operand<A>(w, in, Descriptor(product.a), w.id % 4 * 16, 16, kK,
                    (in.mode & kRowMajorA) != 0,
                    [&](uint32_t row, int k) -> T& { return a[row][k]; });
  }
  read_operand<B>(w, in, Descriptor(product.b), 0, static_cast<uint32_t>(n), kK,
                  (in.mode & kRowMajorB) != 0,
                  [&](uint32_t col, int k) -> T& { return b[col / 8][k][col % 8]; });
  if ((in.mode & kNegatesA) != 0) {
    for (auto& row : a) std::ranges::transform(row, row, std::negate<>());
  }
  for (int block = 0; block < n / 8; ++block) {
    const Ref* sums = in.refs.data() + block * (kHalf ? 2 : 4);
    if (product.adds) {
      read_sums<kHalf>(w, sums, c);
    } else {
      std::memset(c, 0, sizeof c);
    }
    if ((in.mode & kNegatesB) != 0) {
      for (auto& row : b[block]) std::ranges::transform(row, row, std::negate<>());
    }
    if constexpr (std::is_same_v<T, float>) {
      multiply_block<kK>(a, b[block], c, options.mma,
                         options.seed ^ static_cast<uint32_t>(in.value));
    } else {
      multiply_integers<kK>(a, b[block], c, in.flag);
    }
    write_sums<kHalf>(w, sums, c);
  }
}

// refs: sums, a (descriptor or 4 registers), b, scale-d
template <class A, class B, int kK, bool kHalf>
void multiply(Warp& w, const Instruction& in, uint32_t mask) {
  Grid& grid = *w.cta->grid;
  if (mask != kAllLanes) return grid.report(w, "divergence", in.index, 0, "wgmma on some lanes");
  const auto n = static_cast<uint32_t>(in.bytes) * 8;
  const Ref* refs = in.refs.data() + num_sums<kHalf>(in);
  const bool from_registers = (in.mode & kFromRegisters) != 0;
  ++w.cta->reader_clock;
  AsyncProduct product{&in, land<A, B, kK, kHalf>};
  if (from_registers) {
    hold_operand(w, in, {refs, 4});
    refs += 4;
  } else {
    product.a = w.lanes<uint64_t>(*refs++)[0];
    mark_operand(w, in, Descriptor(product.a), w.id % 4 * 16, 16, kK, kElements<A>,
                 (in.mode & kRowMajorA) != 0);
  }
  product.b = w.lanes<uint64_t>(refs[0])[0];
  mark_operand(w, in, Descriptor(product.b), 0, n, kK, kElements<B>, (in.mode & kRowMajorB) != 0);
  product.adds = (w.bits(refs[1]) & 1) != 0;
  // 32 bytes of k: each warp's own rows of A; B once for the four warps.
  count_shared_run(w, in, ((from_registers ? 0 : 16) + (w.id % 4 == 0 ? n : 0)) * 32);
  grid.num_matrix += n / 8;
  issue_product(w, product, num_sums<kHalf>(in));
}

template <int kK>
Handler with_fp8(const std::string& a, const std::string& b) {
  using X = Fp8Element<E4M3>;
  using Y = Fp8Element<E5M2>;
  if (a == "e4m3") return b == "e4m3" ? multiply<X, X, kK, false> : multiply<X, Y, kK, false>;
  return b == "e4m3" ? multiply<Y, X, kK, false> : multiply<Y, Y, kK, false>;
}

template <class A>
Handler with_result(const std::string& d) {
  return d == "f32" ? multiply<A, A, 16, false> : nullptr;
}

Handler handler(const std::string& d, const std::string& a, const std::string& b) {
  if (a == "bf16" && b == "bf16") return with_result<Bf16Element>(d);
  if (a == "f16" && b == "f16" && d == "f16") return multiply<F16Element, F16Element, 16, true>;
  if (a == "f16" && b == "f16") return with_result<F16Element>(d);
  if (a == "tf32" && d == "f32") return multiply<Tf32Element, Tf32Element, 8, false>;
  if (a.starts_with('e') && d == "f32") return with_fp8<32>(a, b);
  using S = ByteElement<int8_t>;
  using U = ByteElement<uint8_t>;
  if (a == "s8" && d == "s32")
    return b == "s8" ? multiply<S, S, 32, false> : multiply<S, U, 32, false>;
  if (a == "u8" && d == "s32")
    return b == "s8" ? multiply<U, S, 32, false> : multiply<U, U, 32, false>;
  return nullptr;
}

// wgmma.mma_async.sync.aligned.m64nNkK.d.a.b
void decode_multiply(Decoder& d) {
  Instruction& out = d.out();
  const std::vector<std::string>& p = d.parts();
  const std::string& shape = p[4];
  const size_t n = shape.find('n');
  out.bytes = static_cast<uint8_t>(std::stoi(shape.substr(n + 1)) / 8);
  for (const Operand& item : d.operand(0).items) d.ref(item, {Kind::kBits, 4}, false);
  const Operand& a = d.operand(1);
  if (a.form == Operand::Form::kVector) {
    for (const Operand& item : a.items) d.ref(item, {Kind::kBits, 4}, false);
    out.mode |= kFromRegisters;
  } else {
    d.ref(a, {Kind::kBits, 8}, false);
  }
  d.source(2, {Kind::kBits, 8});
  d.predicate_in(d.operand(3));
  if (d.count() > 5) {
    if (d.integer(4) == -1) out.mode |= kNegatesA;
    if (d.integer(5) == -1) out.mode |= kNegatesB;
  }
  if (d.count() > 6) {
    const bool has_a = d.count() > 7;
    if (has_a && d.integer(6) == 1) out.mode |= kRowMajorA;
    if (d.integer(has_a ? 7 : 6) == 1) out.mode |= kRowMajorB;
  }
  out.flag = d.has("satfinite");
  out.is_matrix = true;
  out.value = kind_of(d.statement().opcode);
  const size_t last = p.size() - (out.flag && p.back() == "satfinite" ? 1 : 0);
  out.run = handler(p[last - 3], p[last - 2], p[last - 1]);
}

void decode_wgmma(Decoder& d) {
  const std::string& what = d.parts()[1];
  Instruction& out = d.out();
  out.is_matrix = true;
  if (what == "mma_async") {
    if (d.parts().size() < 8 || d.has("sp")) return;
    decode_multiply(d);
  } else if (what == "fence") {
    out.run = fence_products;
  } else if (what == "commit_group") {
    out.run = commit_products;
  } else if (what == "wait_group") {
    out.value = d.integer(0);
    out.run = wait_for_products;
  }
}

}  // namespace

void add_wgmma(InstructionTable& table) { table["wgmma"] = table["wgmma.half"] = decode_wgmma; }

}  // namespace ptxrun
