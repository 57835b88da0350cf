// random.h: numbers that a seed decides.

#pragma once

#include <cstdint>
#include <initializer_list>

namespace sim {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  // splitmix64.
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  uint32_t below(uint32_t end) { return (uint32_t)((next() >> 32) * end >> 32); }
  uint32_t between(uint32_t first, uint32_t last) { return first + below(last - first + 1); }
  // Never for 0.
  bool one_in(uint32_t n) { return n != 0 && below(n) == 0; }
  template <class T> T of(std::initializer_list<T> choices) { return choices.begin()[below((uint32_t)choices.size())]; }

 private:
  uint64_t state_;
};

}  // namespace sim
