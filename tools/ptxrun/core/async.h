// Copies and products that complete some time after they were issued.
#pragma once

#include "core/access.h"

namespace ptxrun {

// A shared address as this warp means it: in its own CTA, or in one of the cluster. Null cta: none.
struct Place {
  Cta* cta;
  uint32_t offset;

  std::span<const uint8_t> bytes(uint32_t count) const;
};
Place place_of(Warp& w, const Instruction& in, uint64_t address, uint64_t bytes, int lane);

void wait_for_groups(Warp& w, size_t may_pend);  // cp.async.wait_group
void finish_copies(Warp& w);                     // at the end of the warp

// Shared memory that the async proxy reads for a warp: until the clock that this returns. That it
// may write from now on; that it has written.
uint32_t read_by_proxy(Warp& w, const Instruction& in, uint32_t offset, uint32_t bytes);
void write_by_proxy(Warp& w, const Instruction& in, const Place& to, uint32_t bytes, int lane);
void land_by_proxy(Warp& w, const Instruction& in, const Place& to, uint32_t bytes);

// Bulk stores. `write` gets the bytes of `from`, as they are when the store reads them.
void issue_store(Warp& w, std::span<const uint8_t> from, uint32_t clock,
                 std::function<void(const uint8_t*)> write);
void commit_bulk(Warp& w, const Instruction& in, uint32_t mask);
void wait_for_bulk(Warp& w, size_t may_pend, bool until_read);  // cp.async.bulk.wait_group
void finish_bulk(Warp& w);                                      // at the end of the warp

// mbarrier.init of this warp becomes visible to the async proxy, and to the cluster.
void fence_mbarriers(Warp& w, bool to_cluster);
// Whether a bulk copy may signal there.
void check_signal(Warp& w, const Instruction& in, const Place& place, int lane);
void finish_mbarriers(Warp& w);  // at the end of the CTA, of which it is the last warp

// Transactions of a bulk copy arrive at an mbarrier, with what the async proxy has written.
void complete_transactions(Warp& w, const Instruction& in, Cta& cta, uint32_t offset,
                           uint32_t bytes);

// cp.async.mbarrier.arrive: where each lane of the mask will arrive, once its copies have landed.
std::vector<Place> arrivals_of(Warp& w, const Instruction& in, uint32_t mask);
// They arrive, with what their warp had seen. `bytes` count as under way until a wait succeeds.
void arrive_with(Warp& w, const Instruction& in, const std::vector<Place>& places, const View& seen,
                 uint64_t bytes);

bool lands_early(Grid& grid);  // what is issued now, before the wait for it

// wgmma: the product lands now or when its group is waited for.
void issue_product(Warp& w, const AsyncProduct& product, int num_sums);
void hold_operand(Warp& w, const Instruction& in, std::span<const Ref> registers);
void fence_products(Warp& w, const Instruction& in, uint32_t mask);
void commit_products(Warp& w, const Instruction& in, uint32_t mask);
void wait_for_products(Warp& w, const Instruction& in, uint32_t mask);
void finish_products(Warp& w);  // at the end of the warp

// Between a wgmma and its wait, instructions leave its sums and operands alone; but a move of sums
// is put off until they land, and not to be run now.
bool puts_off(Warp& w, const Instruction& in, uint32_t mask);

// barrier.cluster.wait: goes on if the cluster has arrived.
void pass_cluster_barrier(Warp& w);

// Decoding of what shares its first word with others.
void decode_bulk(class Decoder& d);
void decode_tensor(class Decoder& d);
void decode_cluster_barrier(class Decoder& d);

}  // namespace ptxrun
