#include "memory.h"

#include <algorithm>
#include <cstring>

namespace sim {

namespace {

// Of one word; more would be older than any thread's last acquisition.
constexpr size_t MOST_VERSIONS = 6;

bool overlap(const Pending& a, const Pending& b) { return a.at < b.at + b.bytes && b.at < a.at + a.bytes; }

bool knows(const Actor& actor, const Pending& store) { return store.actor == actor.id || store.known != NEVER; }

}  // namespace

void Memory::begin(Actor& actor, Buffer& buffer) {
  actor.id = ++last_actor_;
  actor.buffer = &buffer;
  actor.horizon = now_;
}

// The first moment of which this thread may still see the word.
uint64_t Memory::earliest(const Actor& actor, uint64_t word, const Versions& versions) const {
  uint64_t time = actor.horizon;
  if (auto read = actor.read.find(word); read != actor.read.end()) time = std::max(time, read->second);
  for (const Version& v : versions) {
    bool knew = v.actor == actor.id || (v.buffer == actor.buffer->id && v.meetings < actor.meetings);
    if (knew) time = std::max(time, v.until);
  }
  return time;
}

void Memory::load(Actor& actor, uint64_t at, void* into, uint32_t bytes, bool acquires) {
  uint64_t first = at & ~7ull, words = (at + bytes - first + 7) / 8;
  uint64_t values[16];
  std::memcpy(values, reinterpret_cast<void*>(first), words * 8);
  const Versions* versions[16] = {};
  bool old = false;
  for (uint64_t i = 0; i < words && !words_.empty(); i++)
    if (auto found = words_.find(first + 8 * i); found != words_.end()) versions[i] = &found->second, old = true;
  if (old) {
    uint64_t moment = now_;
    if (random_.one_in(weakness_.stale)) {
      uint64_t from = 0;
      for (uint64_t i = 0; i < words; i++)
        if (versions[i]) from = std::max(from, earliest(actor, first + 8 * i, *versions[i]));
      std::vector<uint64_t> moments;
      for (uint64_t i = 0; i < words; i++)
        for (size_t v = 0; versions[i] && v < versions[i]->size(); v++)
          if ((*versions[i])[v].until > from) moments.push_back((*versions[i])[v].until - 1);
      if (!moments.empty()) moment = moments[random_.below((uint32_t)moments.size())];
    }
    uint64_t newest = 0;
    for (uint64_t i = 0; i < words; i++) {
      if (!versions[i]) continue;
      uint64_t written = 0;
      for (const Version& v : *versions[i]) {
        if (v.until > moment) {
          values[i] = v.value;
          break;
        }
        written = v.until;
      }
      uint64_t& read = actor.read[first + 8 * i];
      read = std::max(read, written);
      newest = std::max(newest, written);
    }
    actor.newest = std::max(actor.newest, newest);
    if (acquires) actor.horizon = std::max(actor.horizon, newest);
  }
  std::memcpy(into, reinterpret_cast<char*>(values) + (at - first), bytes);
  for (const Pending& p : actor.buffer->pending) {
    if (p.at + p.bytes <= at || at + bytes <= p.at || !knows(actor, p)) continue;
    uint64_t from = std::max(at, p.at), to = std::min(at + bytes, p.at + p.bytes);
    std::memcpy(static_cast<char*>(into) + (from - at), p.data + (from - p.at), to - from);
  }
}

void Memory::store(Actor& actor, uint64_t at, const void* from, uint32_t bytes, bool releases) {
  Buffer& buffer = *actor.buffer;
  uint64_t id = ++last_id_;
  Pending p{id, NEVER, releases ? id : actor.fence, actor.id, actor.meetings, at, bytes, {}};
  std::memcpy(p.data, from, bytes);
  buffer.pending.push_back(p);
  while (buffer.pending.size() > weakness_.capacity) drain_one(buffer);
}

void Memory::fence(Actor& actor) {
  actor.fence = ++last_id_;
  actor.horizon = std::max(actor.horizon, actor.newest);
}

void Memory::meet(Buffer& buffer, const std::vector<Actor*>& actors) {
  uint64_t now = ++last_id_, horizon = 0;
  for (Pending& p : buffer.pending)
    if (p.known == NEVER) p.known = now;
  for (const Actor* actor : actors) horizon = std::max(horizon, actor->horizon);
  for (Actor* actor : actors) {
    actor->horizon = horizon;
    actor->meetings++;
  }
}

bool Memory::may_drain(const Buffer& buffer, const Pending& store) const {
  for (const Pending& p : buffer.pending) {
    if (p.id >= store.id) break;
    if (p.id < store.after && (p.actor == store.actor || p.known < store.after)) return false;
    if (overlap(p, store) && (p.actor == store.actor || p.known < store.id)) return false;
  }
  return true;
}

// Drains all that the thread knows of.
void Memory::release(const Actor& actor) {
  auto known = [&](const Pending& p) { return knows(actor, p); };
  std::vector<Pending>& pending = actor.buffer->pending;
  while (std::any_of(pending.begin(), pending.end(), known)) drain_one(*actor.buffer);
}

void Memory::drain_one(Buffer& buffer) {
  std::vector<Pending>& pending = buffer.pending;
  size_t at = random_.below((uint32_t)pending.size());
  // The oldest always may.
  while (!may_drain(buffer, pending[at])) at--;
  Pending p = pending[at];
  pending.erase(pending.begin() + at);
  write(p.actor, buffer.id, p.meetings, p.at, p.data, p.bytes);
}

void Memory::write(uint64_t actor, uint64_t buffer, uint64_t meetings, uint64_t at, const void* from, uint32_t bytes) {
  now_++;
  if (weakness_.stale != 0) {
    for (uint64_t word = at & ~7ull; word < at + bytes; word += 8) {
      Versions& versions = words_[word];
      if (versions.size() == MOST_VERSIONS) versions.erase(versions.begin());
      Version v{now_, actor, buffer, meetings, 0};
      std::memcpy(&v.value, reinterpret_cast<void*>(word), 8);
      versions.push_back(v);
    }
  }
  std::memcpy(reinterpret_cast<void*>(at), from, bytes);
}

}  // namespace sim
