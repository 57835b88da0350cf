// exchange.cpp: all-gather, broadcast and all-to-all by every algorithm.

#include "exchanging.h"

namespace sim {

namespace {

template <class Any> void some(Random& random, const Schedule& schedule, Any algorithm) {
  Setting setting = any_setting(random);
  Place place(random, schedule, setting);
  plant_stale(place.group, setting);
  Operations operations(place.group);
  for (u32 i = random.between(3, 7); i != 0; i--)
    operations.add(std::make_unique<Exchanging>(random, setting, algorithm()));
  operations.run();
}

template <Algorithm A> void by(Random& random, const Schedule& schedule) {
  some(random, schedule, [] { return A; });
}
void mixed(Random& random, const Schedule& schedule) {
  some(random, schedule, [&] { return (Algorithm)random.below(4); });
}

void stalls(Random& random, const Schedule& schedule) {
  with_stalls(random, schedule, [&](const Setting& s) { return std::make_unique<Exchanging>(random, s, (Algorithm)random.below(4)); });
}

}  // namespace

extern const Named SCENARIOS[] = {{"packets", by<BY_PACKETS>}, {"staged", by<STAGED>}, {"direct", by<DIRECT>},
                                  {"copies", by<COPIES>},      {"mixed", mixed},       {"stalls", stalls},
                                  {nullptr, nullptr}};

}  // namespace sim
