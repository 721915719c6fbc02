// Products of wgmma between their issue and the wait for their group: when they land, and what must
// leave their sums and operands alone.

#include <algorithm>

#include "core/async.h"
#include "core/grid.h"

namespace ptxrun {
namespace {

ProductGroup& open_group(Warp& w) {
  if (w.products.empty()) w.products.emplace_back();
  return w.products.back();
}

ProductGroup& group_of(Warp& w, uint32_t number) {
  return w.products[w.products.size() - 1 - (w.matrix_group - number)];
}

void land(Warp& w, ProductGroup& group) {
  for (const AsyncProduct& p : group.products) {
    p.land == nullptr ? p.instruction->run(w, *p.instruction, p.mask) : p.land(w, p);
  }
  group.products.clear();
}

void land_all(Warp& w) {
  for (ProductGroup& group : w.products) land(w, group);
}

void report(Warp& w, const Instruction& in, uint32_t mask, const char* what) {
  w.cta->grid->report(w, "wgmma not waited for", in.index, std::countr_zero(mask), what);
}

// A name for sums under way. It becomes one when they land; until then it is under way itself.
void move_sums(Warp& w, const Instruction& in, uint32_t mask, uint32_t group) {
  w.in_flight[in.refs[0].offset] = group;
  std::vector<AsyncProduct>& products = group_of(w, group).products;
  products.empty() ? in.run(w, in, mask) : products.push_back({&in, nullptr, mask});
}

}  // namespace

void issue_product(Warp& w, const AsyncProduct& product, int num_sums) {
  const Instruction& in = *product.instruction;
  if (!w.has_matrix_fence) {
    w.cta->grid->report(w, "no wgmma.fence", in.index, 0,
                        "the first wgmma after other accesses needs one");
    w.has_matrix_fence = true;
  }
  ProductGroup& group = open_group(w);
  group.clock = w.cta->reader_clock;
  group.products.push_back(product);
  for (int i = 0; i < num_sums; ++i) {
    w.in_flight[in.refs[static_cast<size_t>(i)].offset] = w.matrix_group;
  }
  if (lands_early(*w.cta->grid)) land_all(w);  // in their order
}

void hold_operand(Warp& w, const Instruction& in, std::span<const Ref> registers) {
  for (const Ref& r : registers) {
    if (w.in_flight.contains(r.offset)) report(w, in, 1, "an operand is a sum under way");
    w.being_read[r.offset] = w.matrix_group;
  }
}

void fence_products(Warp& w, const Instruction&, uint32_t) { w.has_matrix_fence = true; }

void commit_products(Warp& w, const Instruction&, uint32_t) {
  open_group(w);
  ++w.matrix_group;
  w.products.emplace_back();
}

void wait_for_products(Warp& w, const Instruction& in, uint32_t) {
  const auto may_pend = static_cast<size_t>(in.value);
  const size_t reader = 2 * w.cta->warps.size() + 1 + w.id;
  while (w.products.size() > may_pend + 1) {
    ProductGroup& group = w.products.front();
    land(w, group);
    w.view.clocks[reader] = std::max(w.view.clocks[reader], group.clock);
    w.products.pop_front();
  }
  const auto is_over = [&](const auto& entry) { return entry.second + may_pend < w.matrix_group; };
  std::erase_if(w.in_flight, is_over);
  std::erase_if(w.being_read, is_over);
  w.has_matrix_fence = false;
}

void finish_products(Warp& w) {
  if (w.in_flight.empty()) return;
  const Instruction& last = w.cta->grid->kernel.code.back();
  report(w, last, 1, "the warp ends while sums are under way");
  w.in_flight.clear();
}

bool puts_off(Warp& w, const Instruction& in, uint32_t mask) {
  if (in.is_matrix) return false;
  for (size_t i = 0; i < in.refs.size() && i < 64; ++i) {
    if ((in.written >> i & 1) != 0 && w.being_read.contains(in.refs[i].offset)) {
      report(w, in, mask, "an operand in a register is written");
      return false;
    }
  }
  const auto source = in.is_move ? w.in_flight.find(in.refs[1].offset) : w.in_flight.end();
  if (source != w.in_flight.end()) {
    const auto old = w.in_flight.find(in.refs[0].offset);
    const bool has_old = old != w.in_flight.end();
    move_sums(w, in, mask, std::max(source->second, has_old ? old->second : 0));
    return true;
  }
  for (const Ref& r : in.refs) {
    if (r.bytes == 4 && w.in_flight.contains(r.offset)) {
      report(w, in, mask, "a sum under way is read or written");
      break;
    }
  }
  return false;
}

}  // namespace ptxrun
