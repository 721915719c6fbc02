// The product on sm_90a: sums[token][weight row] of one CTA. The weight is the left operand of
// wgmma (64 rows), the tokens the right one (n columns); both come from shared memory.
//
// Four warps bring operands into a ring of stages, the other four multiply. Where whole blocks of a
// packed weight are wanted, bulk copies bring them as they lie: 16 rows of a chunk, 1 KB each. All
// else, tokens, plain weights and ends of k, comes by cp.async in pieces of 16 bytes.
//
//   reads  the weight once per tile of tokens, in runs of 1 KB (packed) or 128 bytes (plain);
//          the tokens once per CTA
#pragma once

#include "device/ring.cuh"
#include "device/sm90.cuh"
#include "gemm/cuda/plan_sm90.h"
#include "gemm/cuda/product.cuh"

namespace dflash {

template <WgmmaShape kShape>
struct WgmmaStorage {
  alignas(1024) char stages[kShape.stages * kShape.stage_bytes()];
  alignas(16) float sums[kShape.plane_floats()];
  uint64_t full[kShape.stages];
  uint64_t empty[kShape.stages];
};

// The barriers of the ring: full counts the producer's threads, and one more that tells what bulk
// copies bring; empty the consumer's warps.
template <WgmmaShape kShape>
__device__ void init_ring(WgmmaStorage<kShape>& shared) {
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kShape.stages; ++stage) {
      mbarrier_init(shared_address(&shared.full[stage]), WgmmaShape::kGroup + 1);
      mbarrier_init(shared_address(&shared.empty[stage]), WgmmaShape::kGroup / kWarpSize);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
}

// A group of four warps that brings the operands.
template <class T, WgmmaShape kShape>
struct WgmmaProducer {
  static constexpr int kPiece = WeightRow<T>::kPiece, kChunk = WeightRow<T>::kChunk;
  static constexpr int kStep = kStepChunks * kChunk, kUnits = kStep / kPiece;
  static constexpr int kRowsAtOnce = WgmmaShape::kGroup / kUnits;
  static constexpr int kRows = kShape.weight_rows() / kRowsAtOnce;
  static constexpr int kBlockBytes = kTileRows * kChunkRowBytes;
  static constexpr int kBulkCopies = kShape.weight_bytes() / kBlockBytes;
  static_assert(kRowsAtOnce % 8 == 0);  // a thread's rows are turned alike

  const ProductParams& p;
  const WeightLayout layout;
  WgmmaStorage<kShape>& shared;
  Ring<kShape.stages> ring{1};  // the phase before the first is over
  const int thread = threadIdx.x % WgmmaShape::kGroup;
  // A warp has 4 rows at a time; 8 lanes have 2 rows of a chunk, which meet no bank twice.
  const int first_row = thread / kUnits / 4 * 4 + thread / 16 % 2 * 2 + thread / 4 % 2;
  const int unit = thread / 8 % 2 * 4 + thread % 4;
  const bool x_is_aligned, weight_is_aligned;
  WeightRow<T> rows[kRows];  // this thread's: first_row, first_row + kRowsAtOnce, ..
  const T* tokens;           // first_row, its unit in the first step
  int64_t num_tokens;        // from first_row on
  const T* bulk;             // this thread's block in the first step
  int64_t bulk_steps;        // that bulk copies bring: the first ones

  __device__ WgmmaProducer(const ProductParams& params, WgmmaStorage<kShape>& storage)
      : p(params),
        layout(params.weight),
        shared(storage),
        x_is_aligned(is_aligned_16(p.x.data, p.x.strides[0] * sizeof(T))),
        weight_is_aligned(is_aligned_16(
            p.weight.data,
            (p.weight.is_packed ? layout.pitch(layout.num_chunks - 1) : p.weight.row_stride) *
                sizeof(T))) {}

  // What to bring next. place_of as in Product; first_place: place_of(0), if the tile's places are
  // in order, else -1.
  template <class PlaceOf>
  __device__ void take(PlaceOf place_of, int64_t first_place, int64_t first_token) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      rows[i].find(p.weight, layout, place_of(first_row + i * kRowsAtOnce));
    }
    tokens = p.x.template at<T>(first_token + first_row) + unit * kPiece;
    num_tokens = p.num_tokens - first_token - first_row;
    const int64_t block = first_place / kTileRows, last = block + kShape.weight_rows() / kTileRows;
    const bool is_whole = p.weight.is_packed && first_place >= 0 && first_place % kTileRows == 0 &&
                          last <= layout.num_blocks && is_aligned_16(p.weight.data, 0);
    bulk_steps = is_whole ? layout.depth / kStep : 0;
    bulk =
        static_cast<const T*>(p.weight.data) +
        ((block + thread / kStepChunks) * layout.depth + thread % kStepChunks * kChunk) * kTileRows;
  }

  __device__ uint32_t full(int stage) const { return shared_address(&shared.full[stage]); }
  __device__ uint32_t weight_at(int stage) const {
    return shared_address(shared.stages) + stage * kShape.stage_bytes();
  }
  // Where the unit of first_row goes, in a matrix of `num_rows` rows for each chunk of the step.
  __device__ uint32_t slot(int num_rows) const {
    return (unit / 4 * num_rows + first_row) * kChunkRowBytes +
           16 * turned_unit(first_row, unit % 4);
  }
  // Elements of the unit that there are in a step.
  __device__ int valid_elements(int64_t step) const {
    const int64_t left = p.weight.depth - step * kStep - unit * kPiece;
    return static_cast<int>(max(int64_t{0}, min(left, int64_t{kPiece})));
  }

  __device__ void load_weight(int stage, int64_t step) const {
    if (step < bulk_steps) {
      if (thread == 0) mbarrier_arrive_expect(full(stage), kShape.weight_bytes());
      if (thread >= kBulkCopies) return;
      const int in_stage = thread % kStepChunks * (kShape.weight_bytes() / kStepChunks) +
                           thread / kStepChunks * kBlockBytes;
      bulk_copy(weight_at(stage) + in_stage, bulk + step * kStep * kTileRows, kBlockBytes,
                full(stage));
      return;
    }
    if (thread == 0) mbarrier_arrive(full(stage));
    const int valid = valid_elements(step);
    const int64_t chunk = step * kStepChunks + unit / 4, pitch = layout.pitch(chunk);
    const uint32_t to = weight_at(stage) + slot(kShape.weight_rows());
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      copy_piece(to + i * kRowsAtOnce * kChunkRowBytes,
                 rows[i].piece(p.weight.is_packed, chunk, pitch, unit % 4),
                 rows[i].start == nullptr ? 0 : valid, weight_is_aligned, p.weight.data);
    }
  }

  // Behind the weight of the stage, which is full once this and that have landed.
  __device__ void load_tokens(int stage, int64_t step) const {
    const int valid = valid_elements(step);
    const uint32_t to = weight_at(stage) + kShape.weight_bytes() + slot(kShape.tokens);
    const T* from = tokens + step * kStep;
#pragma unroll
    for (int row = 0; row < kShape.tokens; row += kRowsAtOnce) {
      if (kShape.tokens < kRowsAtOnce && first_row >= kShape.tokens) break;
      copy_piece(to + row * kChunkRowBytes, from + row * p.x.strides[0],
                 row < num_tokens ? valid : 0, x_is_aligned, p.x.data);
    }
    if (x_is_aligned && weight_is_aligned) {
      mbarrier_arrive_after_copies(full(stage));
    } else {  // some were stores
      cp_async_commit();
      cp_async_wait<0>();
      mbarrier_arrive(full(stage));
    }
  }

  // Weights of as many steps as there are stages, into a ring that is empty as yet. They may be on
  // their way before x is there.
  __device__ int64_t load_ahead(int64_t first, int64_t last) const {
    const int64_t end = min(first + kShape.stages, last);
    for (int64_t step = first; step < end; ++step) {
      load_weight(static_cast<int>(step - first), step);
    }
    return end;
  }

  // Steps first .. last of k; the weights of those before `ahead` are on their way.
  __device__ void run(int64_t first, int64_t last, int64_t ahead) {
#pragma unroll 1
    for (int64_t step = first; step < last; ++step) {
      if (step >= ahead) {
        mbarrier_wait(shared_address(&shared.empty[ring.stage]), ring.parity);
        load_weight(ring.stage, step);
      }
      load_tokens(ring.stage, step);
      ring.advance();
    }
  }
};

// A group of four warps that multiplies.
template <class T, WgmmaShape kShape>
struct WgmmaConsumer {
  static constexpr int kBlocks = kShape.blocks, kTiles = kShape.tokens / 8;

  WgmmaStorage<kShape>& shared;
  const int64_t num_steps;
  Ring<kShape.stages> ring{0};

  __device__ WgmmaConsumer(const WeightLayout& layout, WgmmaStorage<kShape>& storage)
      : shared(storage), num_steps(dflash::num_steps(layout)) {}

  __device__ static void clear(float (&values)[kBlocks][kTiles][4]) {
#pragma unroll
    for (int i = 0; i < kBlocks * kTiles * 4; ++i)
      values[i / 4 / kTiles][i / 4 % kTiles][i % 4] = 0;
  }

  __device__ void multiply(float (&sums)[kBlocks][kTiles][4]) {
    const uint32_t weight = shared_address(shared.stages) + ring.stage * kShape.stage_bytes();
    const uint32_t tokens = weight + kShape.weight_bytes();
    mbarrier_wait(shared_address(&shared.full[ring.stage]), ring.parity);
    fence_proxy_async();  // of what cp.async and stores have brought
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) keep_sums(sums[block]);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 2 * kStepChunks; ++i) {  // 16 of k, 32 bytes, at a time
      const int chunk = i / 2, in_row = i % 2 * 32;
      const uint32_t x = tokens + chunk * kShape.token_bytes() / kStepChunks + in_row;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const uint32_t w = weight + chunk * kShape.weight_bytes() / kStepChunks +
                           block * kWgmmaRows * kChunkRowBytes + in_row;
        wgmma<T>(sums[block], matrix_of_64_byte_rows(w), matrix_of_64_byte_rows(x));
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) keep_sums(sums[block]);
    __syncwarp();
    if (lane_index() == 0) mbarrier_arrive(shared_address(&shared.empty[ring.stage]));
    ring.advance();
  }

  // The sums of splits first .. last, in the plane; whoever reads them waits for all four warps.
  template <class BeforeStore>
  __device__ void run(int first, int last, BeforeStore before_store) {
#pragma unroll 1
    for (int split = first; split < last; ++split) {
      float sums[kBlocks][kTiles][4];
      clear(sums);
      const int64_t end = split_step(num_steps, split + 1);
#pragma unroll 1
      for (int64_t step = split_step(num_steps, split); step < end; ++step) multiply(sums);
      if (split == first) {
        before_store();
        for_each_sum(sums, [](float& place, float sum) { place = sum; });
      } else {
        for_each_sum(sums, [](float& place, float sum) { place += sum; });
      }
    }
  }

  template <class F>
  __device__ void for_each_sum(const float (&sums)[kBlocks][kTiles][4], F f) const {
    const int g = lane_index() / 4, t = lane_index() % 4, warp = warp_index() % 4;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = block * kWgmmaRows + warp * kTileRows + g + 8 * (i / 2);
          f(shared.sums[(8 * tile + 2 * t + i % 2) * kShape.sum_stride() + row],
            sums[block][tile][i]);
        }
      }
    }
  }
};

// The product of a cluster whose CTAs take a split each, or of a CTA that takes all. The sums are
// then read by sum_in_cluster, until the cluster meets again. loads_ahead: the weight may be read
// before the grid that comes first is over.
template <class T, WgmmaShape kShape, class PlaceOf>
__device__ void compute_in_cluster(const ProductParams& p, WgmmaStorage<kShape>& shared,
                                   int cluster, PlaceOf place_of, int64_t first_place,
                                   int64_t first_token, bool loads_ahead) {
  init_ring(shared);
  const int first_split = cluster == 1 ? 0 : cluster_rank();
  const int last_split = cluster == 1 ? kWgmmaSplits : first_split + 1;
  if (threadIdx.x < WgmmaShape::kGroup) {
    WgmmaConsumer<T, kShape> consumer(WeightLayout(p.weight), shared);
    consumer.run(first_split, last_split, [] {});
  } else {
    WgmmaProducer<T, kShape> producer(p, shared);
    producer.take(place_of, first_place, first_token);
    const int64_t steps = num_steps(producer.layout);
    const int64_t first = split_step(steps, first_split), last = split_step(steps, last_split);
    const int64_t ahead = loads_ahead ? producer.load_ahead(first, last) : first;
    grid_wait();
    producer.run(first, last, ahead);
  }
  grid_wait();
  cluster_sync();
}

template <WgmmaShape kShape>
__device__ inline float sum_in_cluster(const WgmmaStorage<kShape>& shared, int cluster, int token,
                                       int row) {
  const uint32_t at = shared_address(&shared.sums[token * kShape.sum_stride() + row]);
  float sum = load_cluster(cluster_address(at, 0));
  for (int split = 1; split < cluster; ++split) sum += load_cluster(cluster_address(at, split));
  return sum;
}

}  // namespace dflash
