// Global-memory shadow of a launch: who touched each word last, and whether that is ordered before
// an access; between warps, of one CTA or of several. A word that only its own warp touches costs
// one comparison.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "core/order.h"

namespace ptxrun {

struct Grid;

class GlobalShadow {
 public:
  struct Access {
    bool is_write = false;
    Strength strength = Strength::kWeak;
    bool is_wide = true;  // of the GPU's scope; else of the CTA's
    int lane = 0;
    uint32_t index = 0;
  };

  void access(Warp& w, uint64_t address, uint64_t bytes, const Access& a);
  // CTAs that ran beside each other, each share with a shadow of its own and with no means to order
  // anything: what both have touched is a race. Reports go to `grid`, `other` being of the same.
  void compare(Grid& grid, const GlobalShadow& other) const;
  // Takes over the words of another share.
  void merge(GlobalShadow&& other);

  // 0: nobody. The grid is over, and whoever may not wait for it asks.
  bool is_written(uint64_t address, uint64_t bytes) const;
  bool is_touched(uint64_t address, uint64_t bytes) const;

 private:
  // Who, when and where, with which bytes of the word. Clock 0: nobody.
  struct Touch {
    uint64_t clock : 17 = 0;
    uint64_t cta : 21 = 0;
    uint64_t warp : 5 = 0;
    uint64_t index : 14 = 0;
    uint64_t bytes : 4 = 0;
    uint64_t is_strong : 1 = 0;
    uint64_t is_wide : 1 = 0;
    uint64_t is_read_only : 1 = 0;

    bool is_by_same_warp(const Touch& other) const {
      return cta == other.cta && warp == other.warp;
    }
  };
  static_assert(sizeof(Touch) == 8);
  struct Word {
    Touch write;
    std::array<Touch, 2> reads;  // the newest, of two CTAs if there are
  };
  static constexpr uint64_t kPageBytes = 4096;
  using Page = std::array<Word, kPageBytes / 4>;

  Page& page(uint64_t number);
  const Word* find(uint64_t address) const;
  static bool conflict(const Touch& before, const Touch& now);
  static bool is_before(const Warp& w, const Touch& before);
  static void remember(Word& word, const Touch& read);
  static void report(Grid& grid, const Warp* w, const char* what, uint64_t address,
                     const Touch& before, const Touch& now, int lane);
  void check(Warp& w, const Word& word, const Touch& now, uint64_t address, const Access& a);

  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages_;
  uint64_t last_number_ = ~uint64_t{0};
  Page* last_ = nullptr;
};

}  // namespace ptxrun
