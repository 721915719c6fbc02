// Copies and products that complete some time after they were issued.
#pragma once

#include "core/access.h"

namespace ptxrun {

void wait_for_groups(Warp& w, size_t may_pend);  // cp.async.wait_group
void wait_for_bulk(Warp& w, size_t may_pend);    // cp.async.bulk.wait_group
void finish_copies(Warp& w);                     // at the end of the warp

// A shared address as this warp means it: in its own CTA, or in one of the cluster. Null cta: none.
struct Place {
  Cta* cta;
  uint32_t offset;
};
Place place_of(Warp& w, const Instruction& in, uint64_t address, uint64_t bytes, int lane);

// Transactions of a bulk copy arrive at an mbarrier, with what the async proxy has written.
void complete_transactions(Warp& w, const Instruction& in, Cta& cta, uint32_t offset,
                           uint32_t bytes);

// One arrival of each lane at the mbarrier of refs[0]. Bytes that the warp has copied by then count
// as under way until a wait for that mbarrier succeeds.
void arrive_at(Warp& w, const Instruction& in, uint32_t mask, uint64_t copied);

// An instruction between wgmma and its wait must leave the sums alone.
void check_in_flight(Warp& w, const Instruction& in, uint32_t mask);

// barrier.cluster.wait: goes on if the cluster has arrived.
void pass_cluster_barrier(Warp& w);

// Decoding of what shares its first word with others.
void decode_bulk(class Decoder& d);
void decode_cluster_barrier(class Decoder& d);

}  // namespace ptxrun
