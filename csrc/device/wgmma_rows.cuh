// wgmma on rows of 128 bytes: 64 elements, swizzled by 128.
#pragma once

#include "device/sm90.cuh"

namespace dflash {

// A matrix of 16-bit elements in rows of 128 bytes, one under the other; units of 16 bytes of a row
// are swizzled: unit u of row r stands at u ^ (r % 8). 8 rows start at a multiple of 1024 bytes. A
// step of 16 along k is 32 bytes more in `address`; where k goes down the rows, 2048.
__device__ inline uint64_t matrix_of_128_byte_rows(uint32_t address) {
  constexpr uint64_t kSwizzle128 = 1, kEightRows = 1024;
  return kSwizzle128 << 62 | kEightRows >> 4 << 32 | 1 << 16 | (address & 0x3ffff) >> 4;
}

// sums[64][64] += a[64][16] b[16][64], with a in registers, as mma_m16n8k16 has it, and b in shared
// memory with k down its rows. kAdds as for wgmma.
template <class T, bool kAdds>
__device__ inline void wgmma_of_registers(float (&sums)[8][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.%37.%37 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
      "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, "
      "%28, %29, %30, %31}, {%32, %33, %34, %35}, %36, %38, 1, 1, 1;"
      : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]), "+f"(sums[1][0]),
        "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]), "+f"(sums[2][0]), "+f"(sums[2][1]),
        "+f"(sums[2][2]), "+f"(sums[2][3]), "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]),
        "+f"(sums[3][3]), "+f"(sums[4][0]), "+f"(sums[4][1]), "+f"(sums[4][2]), "+f"(sums[4][3]),
        "+f"(sums[5][0]), "+f"(sums[5][1]), "+f"(sums[5][2]), "+f"(sums[5][3]), "+f"(sums[6][0]),
        "+f"(sums[6][1]), "+f"(sums[6][2]), "+f"(sums[6][3]), "+f"(sums[7][0]), "+f"(sums[7][1]),
        "+f"(sums[7][2]), "+f"(sums[7][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "C"(WgmmaType<T>::kName), "n"(kAdds));
}

}  // namespace dflash
