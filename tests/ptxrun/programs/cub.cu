// Block reduce, scan and radix sort, and a warp reduce, of CUB.

#include <cub/cub.cuh>

constexpr int kThreads = 256, kItems = 4;

__global__ void primitives(const int* in, int* sums, int* scans, int* ordered, int* warps) {
  using Reduce = cub::BlockReduce<int, kThreads>;
  using Scan = cub::BlockScan<int, kThreads>;
  using Sort = cub::BlockRadixSort<int, kThreads, kItems>;
  using WarpReduce = cub::WarpReduce<int>;
  __shared__ union {
    Reduce::TempStorage reduce;
    Scan::TempStorage scan;
    Sort::TempStorage sort;
    WarpReduce::TempStorage warp[kThreads / 32];
  } temp;
  const int base = blockIdx.x * kThreads * kItems, t = threadIdx.x;
  int items[kItems], scanned[kItems];
  cub::LoadDirectBlocked(t, in + base, items);
  const int sum = Reduce(temp.reduce).Sum(items);
  if (t == 0) sums[blockIdx.x] = sum;
  __syncthreads();
  Scan(temp.scan).ExclusiveSum(items, scanned);
  cub::StoreDirectBlocked(t, scans + base, scanned);
  __syncthreads();
  for (int i = 0; i < kItems; ++i) {
    const int most =
        WarpReduce(temp.warp[t / 32]).Reduce(in[base + i * kThreads + t], [](int a, int b) {
          return a > b ? a : b;
        });
    if (t % 32 == 0) warps[blockIdx.x * 32 + i * (kThreads / 32) + t / 32] = most;
    __syncwarp();
  }
  __syncthreads();
  Sort(temp.sort).Sort(items);
  cub::StoreDirectBlocked(t, ordered + base, items);
}

extern "C" int run(const int* in, int* sums, int* scans, int* ordered, int* warps, int rows) {
  primitives<<<rows, kThreads>>>(in, sums, scans, ordered, warps);
  return cudaGetLastError();
}
