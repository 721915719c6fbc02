// Tables of a module, printf and assert.

#include <cassert>
#include <cstdio>

__constant__ int squares[8] = {0, 1, 4, 9, 16, 25, 36, 49};
__device__ short odd[2][3] = {{1, 3, 5}, {7, 9, -11}};
__device__ const float halves[4] = {0.5f, 1.5f, -2.5f};  // the last is zero
__device__ const short* const rows[3] = {odd[1], odd[0] + 1, nullptr};
__device__ int count = 40;

extern "C" __global__ void tables(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  out[i] = squares[i] + rows[i % 2][i % 3] * 100 + static_cast<int>(2 * halves[i % 4]) * 10000 +
           (rows[2] == nullptr ? 0 : 1);
}

extern "C" __global__ void past_a_table(int* out) { out[threadIdx.x] = squares[threadIdx.x + 1]; }

// Keeps its value until the next launch.
extern "C" __global__ void counts(int* out) {
  if (threadIdx.x == 0) out[0] = ++count;
}

extern "C" __global__ void prints(const int* in) {
  const int i = static_cast<int>(threadIdx.x);
  if (i % 4 == 3) {
    printf("%s %d: %+.2f, %5u%% of 0x%llx %c\n", i == 3 ? "lane" : "thread", i, in[i] / 4.0, i,
           1ull << (30 + i), 'a' + i);
  }
}

extern "C" __global__ void asserts(const int* in) { assert(in[threadIdx.x] < 5); }
