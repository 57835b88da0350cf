// main.cpp: `PROGRAM SCENARIO SEED RUNS` runs a scenario with the seeds from SEED on. Ends with 1 and says
// with which seed, where one fails.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "group.h"

namespace sim {
extern const Named SCENARIOS[];
}

int main(int count, char** arguments) {
  if (count != 4) return std::fprintf(stderr, "usage: %s SCENARIO SEED RUNS\n", arguments[0]), 2;
  const sim::Named* scenario = sim::SCENARIOS;
  while (scenario->name && std::strcmp(scenario->name, arguments[1]) != 0) scenario++;
  if (!scenario->name) return std::fprintf(stderr, "no scenario %s\n", arguments[1]), 2;
  const unsigned long long seed = std::strtoull(arguments[2], nullptr, 0), runs = std::strtoull(arguments[3], nullptr, 0);
  for (unsigned long long i = 0; i < runs; i++) {
    sim::Random random(seed + i);
    const sim::Schedule schedule = sim::Schedule::drawn(random);
    try {
      scenario->run(random, schedule);
    } catch (const sim::Failed& failed) {
      std::printf("%s\n  with %s\n  again: %s %s %llu 1\n", failed.what(), schedule.text().c_str(), arguments[0], arguments[1], seed + i);
      return 1;
    }
  }
  return 0;
}
