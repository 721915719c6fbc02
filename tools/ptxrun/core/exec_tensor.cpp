// cp.async.bulk.tensor: copies of tiles by the async proxy.

#include <algorithm>
#include <cstring>
#include <memory>

#include "core/async.h"
#include "core/decode.h"
#include "core/tensor_map.h"
#include "core/traffic.h"

namespace ptxrun {
namespace {

struct Tile {
  TensorMap map;
  int32_t at[5] = {};
  uint32_t bytes = 0;
};

// refs from `first` on: the map, then its coordinates.
bool read_tile(Warp& w, const Instruction& in, size_t first, int64_t offset, int lane, Tile& tile) {
  const uint64_t address = w.value(in.refs[first], lane) + static_cast<uint64_t>(offset);
  const uint8_t* p = reach(w, in, Space::kGeneric, address, 128, lane, Touch::kRead);
  Grid& grid = *w.cta->grid;
  if (p != nullptr) std::memcpy(&tile.map, p, sizeof tile.map);
  if (p == nullptr || tile.map.magic != TensorMap::kMagic) {
    grid.report(w, "tensor map", in.index, lane, "not one that the encode function made");
    return false;
  }
  if (tile.map.rank != in.vector) {
    grid.report(
        w, "tensor map", in.index, lane,
        std::to_string(in.vector) + " coordinates for rank " + std::to_string(tile.map.rank));
    return false;
  }
  tile.bytes = tile.map.element_bytes;
  for (int i = 0; i < tile.map.rank; ++i) {
    tile.at[i] = static_cast<int32_t>(w.value(in.refs[first + 1 + static_cast<size_t>(i)], lane));
    tile.bytes *= tile.map.box[i];
  }
  return true;
}

// Calls f(global bytes or null outside the tensor, shared bytes, size) for each run of a tile,
// which lies in shared memory at `offset`.
template <class Byte, class F>
void for_runs(Warp& w, const Instruction& in, const Tile& tile, Byte* shared, uint32_t offset,
              Touch touch, F&& f) {
  const TensorMap& map = tile.map;
  const uint32_t element = map.element_bytes, row_bytes = map.box[0] * element;
  uint32_t index[5] = {};
  for (uint32_t done = 0; done < tile.bytes; done += row_bytes) {
    bool is_inside = true;
    uint64_t row = map.base;
    for (int d = 1; d < map.rank; ++d) {
      const int64_t at = int64_t{tile.at[d]} + index[d];
      is_inside &= at >= 0 && at < static_cast<int64_t>(map.extents[d]);
      row += static_cast<uint64_t>(at) * map.strides[d - 1];
    }
    for (uint32_t x = 0; x < map.box[0]; ++x) {
      const int64_t at = int64_t{tile.at[0]} + x;
      const bool is_in = is_inside && at >= 0 && at < static_cast<int64_t>(map.extents[0]);
      const uint64_t address = row + static_cast<uint64_t>(at) * element;
      uint8_t* global = is_in ? reach(w, in, Space::kGlobal, address, element, 0, touch) : nullptr;
      f(global, shared + swizzled(offset + done + x * element, map.swizzle) - offset, element);
    }
    for (int d = 1; d < map.rank && ++index[d] == map.box[d]; ++d) index[d] = 0;
  }
}

// The rows of a tile, as far as they lie in the tensor.
void count_tile(Warp& w, const Instruction& in, const Tile& tile, Touch touch) {
  const TensorMap& map = tile.map;
  uint32_t index[5] = {};
  const uint32_t row_bytes = uint32_t{map.box[0]} * map.element_bytes;
  const int64_t begin = std::max(tile.at[0], 0);
  const int64_t end =
      std::min(int64_t{tile.at[0]} + map.box[0], static_cast<int64_t>(map.extents[0]));
  for (uint32_t done = 0; done < tile.bytes && begin < end; done += row_bytes) {
    bool is_inside = true;
    uint64_t row = map.base + static_cast<uint64_t>(begin) * map.element_bytes;
    for (int d = 1; d < map.rank; ++d) {
      const int64_t at = int64_t{tile.at[d]} + index[d];
      is_inside &= at >= 0 && at < static_cast<int64_t>(map.extents[d]);
      row += static_cast<uint64_t>(at) * map.strides[d - 1];
    }
    if (is_inside) {
      count_global_run(w, in, row, static_cast<uint64_t>(end - begin) * map.element_bytes, touch);
    }
    for (int d = 1; d < map.rank && ++index[d] == map.box[d]; ++d) index[d] = 0;
  }
  count_shared_run(w, in, tile.bytes);
}

bool starts_well(Warp& w, const Instruction& in, const Place& place, int lane) {
  if (place.offset % 128 == 0) return true;
  w.cta->grid->report(w, "misaligned", in.index, lane, "a tile must start at 128 bytes");
  return false;
}

// refs: destination, mbarrier, CTA mask, map, coordinates
void tensor_load(Warp& w, const Instruction& in, uint32_t mask) {
  for_lanes(mask, [&](int lane) {
    auto tile = std::make_shared<Tile>();
    if (!read_tile(w, in, 3, in.table[1], lane, *tile)) return;
    const uint64_t at = w.value(in.refs[0], lane) + static_cast<uint64_t>(in.table[0]);
    const uint64_t barrier = w.value(in.refs[1], lane) + static_cast<uint64_t>(in.table[2]);
    Place to = place_of(w, in, at, tile->bytes, lane), signal = place_of(w, in, barrier, 8, lane);
    if (to.cta == nullptr || signal.cta == nullptr) return;
    if (!starts_well(w, in, to, lane)) return;
    uint64_t ctas = 1ull << to.cta->rank;
    if (in.flag) ctas = w.value(in.refs[2], lane);
    for (Cta* cta : w.cta->peers) {
      if ((ctas >> cta->rank & 1) == 0) continue;
      if (in.flag) to.cta = signal.cta = cta;
      check_signal(w, in, signal, lane);
      write_by_proxy(w, in, to, tile->bytes, lane);
      count_issued(to.cta->bulk_in_flight, to.cta->most_bulk_in_flight, tile->bytes);
      w.cta->grid->issue([&w, &in, tile, to, signal] {
        to.cta->bulk_in_flight -= tile->bytes;
        for_runs(w, in, *tile, to.cta->shared.data() + to.offset, to.offset, Touch::kRead,
                 [&](const uint8_t* global, uint8_t* shared, uint32_t bytes) {
                   if (global != nullptr) {
                     std::memcpy(shared, global, bytes);
                   } else {
                     std::memset(shared, tile->map.fills_nan != 0 ? 0xff : 0, bytes);
                   }
                 });
        land_by_proxy(w, in, to, tile->bytes);
        complete_transactions(w, in, *signal.cta, signal.offset, tile->bytes);
      });
    }
    count_tile(w, in, *tile, Touch::kRead);
  });
}

template <class T>
void add(uint8_t* to, const uint8_t* from) {
  T a, b;
  std::memcpy(&a, to, sizeof a);
  std::memcpy(&b, from, sizeof b);
  a = static_cast<T>(a + b);
  std::memcpy(to, &a, sizeof a);
}

// refs: source, map, coordinates; flag: adds instead
void tensor_store(Warp& w, const Instruction& in, uint32_t mask) {
  for_lanes(mask, [&](int lane) {
    auto tile = std::make_shared<Tile>();
    if (!read_tile(w, in, 1, in.table[0], lane, *tile)) return;
    const uint64_t at = w.value(in.refs[0], lane) + static_cast<uint64_t>(in.table[1]);
    const Place from = place_of(w, in, at, tile->bytes, lane);
    if (from.cta == nullptr || !starts_well(w, in, from, lane)) return;
    const uint32_t clock = read_by_proxy(w, in, from.offset, tile->bytes);
    issue_store(w, from.bytes(tile->bytes), clock,
                [&w, &in, tile, offset = from.offset](const uint8_t* source) {
                  for_runs(w, in, *tile, source, offset, Touch::kWrite,
                           [&](uint8_t* global, const uint8_t* shared, uint32_t bytes) {
                             if (global == nullptr) return;
                             in.flag ? add<float>(global, shared)
                                     : static_cast<void>(std::memcpy(global, shared, bytes));
                           });
                });
    count_tile(w, in, *tile, Touch::kWrite);
  });
}

}  // namespace

void decode_tensor(Decoder& d) {
  Instruction& out = d.out();
  // The operand order puts the destination first: a tile of shared memory, or of the tensor.
  const bool is_load = d.operand(0).items.empty();
  const Operand& map = d.operand(is_load ? 1 : 0);
  const Operand& shared = d.operand(is_load ? 0 : 1);
  std::vector<int64_t> offsets;
  const auto address = [&](const Operand& o) {
    d.address(o);
    offsets.push_back(out.value);
  };
  if (is_load) {
    address(shared);
    d.address(d.operand(2));
    const int64_t barrier = out.value;
    out.flag = d.has("multicast::cluster");
    out.flag ? d.any(d.operand(3), {Kind::kBits, 2}) : d.unused();
    address(map);
    offsets.push_back(barrier);
  } else {
    d.address(shared);
    const int64_t source = out.value;
    address(map);
    offsets.push_back(source);
    out.flag = d.parts()[1] == "reduce";
    if (out.flag && !d.has("add")) d.fail("only .add");
  }
  for (const Operand& item : map.items) d.any(item, {Kind::kSigned, 4});
  out.vector = static_cast<uint8_t>(map.items.size());
  out.table = offsets;
  out.run = is_load ? tensor_load : tensor_store;
}

}  // namespace ptxrun
