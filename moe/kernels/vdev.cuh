// vdev.cuh: what an exchange by splits knows: its arguments, the splits of all ranks, where rows go.
//
// A split is the rows that one rank has for another, and for one of that rank's bins. Indices, order and
// padding are those of the crate's `Shape`, sums those of its `place`: every block of every rank computes the
// same.

#ifndef SYMMEM_VDEV_CUH
#define SYMMEM_VDEV_CUH

#include "lines.cuh"
#include "messages.cuh"

namespace symmem {

// The argument block. Addresses are this rank's, lengths in bytes unless they are rows.
struct alignas(16) Vdev {
  Lane lane;
  u64 input, output;
  u64 in_splits;    // array: i64, of each split
  u64 in_offsets;   // array: i64, where the rows of each split begin in the input; 0 where they follow each other
  u64 out_splits;   // array: i64 of each split received, then where the rows of each begin in the output
  u64 status;       // this lane's Status, in host memory
  u64 peers;        // array: by rank, where its allocation of the output is mapped
  u64 peer_offset;  // where the output begins in that, on every rank
  u64 row;
  u64 input_rows;
  u64 capacity;     // rows of the output
  u64 align;        // what bins of the output are padded to a multiple of, in rows; 0 for no padding
  u32 minor;        // bins of each rank
  u32 by_bin;       // whether splits are by bin, then by rank
  u32 drop;         // whether rows that do not fit are dropped
  u32 group_completion;
  u64 most_lines;   // rows of one rank for another that go in lines, at most; 0 for none
  u64 reserved;
};

namespace vdev {

using namespace messages;

// Rows for one bin of one rank.
struct alignas(16) Entry {
  u64 from;   // where they begin in the input
  u64 to;     // and in the output
  u64 bytes;  // of those that are kept
  u64 first;  // pieces of the bins before; vectors, of rows that go in lines
};

// Rows for one of this rank's bins that come in lines.
struct Run {
  u64 to;     // where they begin in the output
  u32 first;  // vectors of the bins before,
  u32 end;    // and of the last row that is kept, and all before
};

// What a block has at hand of messages and of what follows from them, where all of it fits: of at most so many ranks.
constexpr u32 SHARED_WORDS = 2112, SHARED_ENTRIES = 392, SHARED_RANKS = 64;

// Of rows that do not go in lines.
constexpr u32 DIRECT = ~0u;

// Quotients by one number, of at most as many as there are entries, as it is too: a multiplication.
struct Divisor {
  u32 inverse;

  SYMMEM_FN explicit Divisor(u32 by) : inverse((1u << 20) / by + 1) {}
  SYMMEM_FN u32 quotient(u32 of) const { return of * inverse >> 20; }
};
static_assert(SHARED_ENTRIES * SHARED_ENTRIES < 1 << 20, "where it is exact");

struct Shared {
  Entry entries[SHARED_ENTRIES];  // by target and bin, and one for the end of each target's
  Run runs[SHARED_ENTRIES];       // the same by source
  // What is before each, and the sum of all after the last: rows of this rank by target and bin, rows for this rank by
  // source and bin, rows that outputs are long by target and major bin.
  u64 sent[SHARED_ENTRIES], received[SHARED_ENTRIES], lengths[SHARED_ENTRIES];
  u64 totals[SHARED_ENTRIES];     // rows, by target and major bin; until those are known, pieces before, as `sent`
  u64 sums[2][SHARED_ENTRIES / 32 + 1];
  u64 words[SHARED_WORDS];
  // By rank: vectors that go there in lines, and that come from there.
  u32 out[SHARED_RANKS], in[SHARED_RANKS];
  u32 direct;  // whether rows for some peer, or of some peer, do not go in lines
};
static_assert(sizeof(Shared) <= 48 << 10, "what every device has");

// --------------------------------------------------------------------------------- messages

// What the ranks have told each other: capacities and findings, then splits. AT_HAND: with the entries that come of
// them, in memory of the block.
template <bool AT_HAND> struct Matrix : Messages<Matrix<AT_HAND>, AT_HAND> {
  using Base = Messages<Matrix<AT_HAND>, AT_HAND>;
  using Base::me, Base::parity, Base::word, Base::words, Base::world;

  const Vdev& p;
  Shared& shared;
  u32 minor;
  u32 splits;      // of a rank
  u64 most_lines;  // in this epoch
  Finding wrong;
  Divisor by_minor, by_majors;

  SYMMEM_FN Matrix(const Vdev& p, Shared& shared)
      : Base(p.lane, HEAD + p.lane.world * p.minor, shared.words), p(p), shared(shared), minor(p.minor), splits(words - HEAD), most_lines(0), wrong{}, by_minor(p.minor), by_majors(majors()) {}

  // Of rows of some bytes no rank has as many, nor of padding, that sums overflow.
  static SYMMEM_FN bool fits(const Vdev& p) {
    const u32 world = p.lane.world, splits = world * p.minor, majors = p.by_bin ? world : p.minor;
    return world <= SHARED_RANKS && fit_at_hand(p.lane, HEAD + splits, SHARED_WORDS) && splits + world <= SHARED_ENTRIES && world * majors < SHARED_ENTRIES &&
           p.row != 0 && p.align >> 32 == 0;
  }

  SYMMEM_FN void begin(const Step& step) {
    parity = step.parity;
    // They leave nothing for `scrub` to know of.
    if (AT_HAND && !scrub_due(step.epoch)) most_lines = p.most_lines;
  }
  SYMMEM_FN bool goes_in_lines(u32 target) const { return AT_HAND && shared.out[target] != DIRECT; }
  SYMMEM_FN bool comes_in_lines(u32 source) const { return AT_HAND && shared.in[source] != DIRECT; }
  SYMMEM_FN bool is_direct() const { return AT_HAND ? shared.direct != 0 : world > 1; }

  SYMMEM_FN u64 own_split(u32 i) const { return load_element<u64>(pointer<u64>(p.in_splits) + i); }
  SYMMEM_FN u64 own_offset(u32 i) const { return load_element<u64>(pointer<u64>(p.in_offsets) + i); }

  // Of this rank's message. Splits are at hand since they were looked at, if any are.
  SYMMEM_FN u64 own_word(u32 i) const {
    if (i >= HEAD) return AT_HAND ? shared.words[me * words + i] : own_split(i - HEAD);
    return i == 0 ? p.capacity : i == 1 ? wrong.what : i == 2 ? wrong.value : wrong.limit;
  }

  SYMMEM_FN u64 capacity(u32 rank) const { return word(rank, 0); }
  SYMMEM_FN u32 input(u32 target, u32 bin) const { return p.by_bin ? bin * world + target : target * minor + bin; }
  // Of the split that is so many by target and bin, of those at hand.
  SYMMEM_FN u32 input_of(u32 c) const {
    const u32 target = by_minor.quotient(c);
    return input(target, c - target * minor);
  }
  SYMMEM_FN u64 rows(u32 source, u32 target, u32 bin) const { return word(source, HEAD + input(target, bin)); }

  // The output of a rank is by major, then by minor bins: either are sources, the others bins.
  SYMMEM_FN u32 majors() const { return p.by_bin ? world : minor; }
  SYMMEM_FN u32 minors() const { return p.by_bin ? minor : world; }
  SYMMEM_FN u64 rows_at(u32 target, u32 major, u32 minor) const {
    return p.by_bin ? rows(major, target, minor) : rows(minor, target, major);
  }

  // The entries of a target, and after them how many pieces it has: at hand, or in this rank's own staging, after the
  // messages: no rank has one for itself, so that some have two targets' entries.
  SYMMEM_FN u64 entry_at(u32 target, u32 bin) const {
    const u32 places = world > 1 ? world - 1 : 1, place = target < places ? target : target - places;
    const u64 messages = ((u64)words * 8 + 31) / 32 * 32, slot = target < places ? 0 : minor + 1;
    return p.lane.own + p.lane.staging + (parity * places + place) * p.lane.staging_unit + messages + (slot + bin) * sizeof(Entry);
  }
  // Of those in staging.
  SYMMEM_FN void set_entry(u32 target, u32 bin, const Entry& entry) const {
    u64* at = pointer<u64>(entry_at(target, bin));
    store_element<u64>(at, entry.from), store_element<u64>(at + 1, entry.to);
    store_element<u64>(at + 2, entry.bytes), store_element<u64>(at + 3, entry.first);
  }
  SYMMEM_FN Entry entry(u32 target, u32 bin) const {
    if constexpr (AT_HAND) return shared.entries[target * (minor + 1) + bin];
    const u64* at = pointer<u64>(entry_at(target, bin));
    return Entry{load_element<u64>(at), load_element<u64>(at + 1), load_element<u64>(at + 2), load_element<u64>(at + 3)};
  }
  SYMMEM_FN u64 first_piece(u32 target, u32 bin) const {
    if constexpr (AT_HAND) return shared.entries[target * (minor + 1) + bin].first;
    else return load_element<u64>(pointer<u64>(entry_at(target, bin)) + 3);
  }

  // One past the last row of a split that an offset says the beginning of.
  SYMMEM_FN u64 end(u32 i, u64 split) const {
    const u64 offset = own_offset(i);
    return offset >> 63 ? ~0ull : add(offset, split);
  }
};

// What is wrong with this rank's own splits, if anything is: by every thread alike.
template <bool AT_HAND> __device__ __attribute__((noinline)) inline Finding find_wrong(const Matrix<AT_HAND> m) {
  u64 sum = 0;
  Finding found{};
#pragma unroll 1
  for (u32 i = 0; i < m.splits; i++) {
    const u64 split = m.own_split(i);
    if (split >> 63) return finding(NEGATIVE, i, split, m.p.input_rows);
    if (m.p.in_offsets == 0) sum = add(sum, split);
    // Where a split has no rows, its offset means nothing.
    else if (found.what == 0 && split != 0 && m.end(i, split) > m.p.input_rows) found = finding(OUTSIDE_INPUT, i, m.end(i, split), m.p.input_rows);
  }
  return sum > m.p.input_rows ? finding(PAST_INPUT, 0, sum, m.p.input_rows) : found;
}

// Rows of the output from the beginning of a bin to that of the next one.
SYMMEM_FN u64 length_of(const Vdev& p, u64 rows) {
  if (p.align == 0) return rows;
  // A bin without rows is as long as one of the multiples.
  rows = most(rows, 1);
  return p.align == 1 ? rows : add(rows, p.align - 1 - remainder(rows - 1, p.align));
}

// -------------------------------------------------------------------------- placement, at hand

// Sums over values that the block's warps have, 32 at a time: a step for each power of two, where threads that add up
// what is before would each wait for one word after the other.

// Chunks of 32, of so many values and of what comes after the last.
SYMMEM_FN u32 chunks_of(u32 count) { return count / 32 + 1; }

// By a warp: of the values of a chunk, the sum of those before each; of all of them.
SYMMEM_FN void sum_chunk(u64* before, u64* sums, u32 chunk, u32 count, u64 mine) {
  u64 sum = mine;
#pragma unroll
  for (u32 step = 1; step < 32; step *= 2) {
    const u64 lower = warp_read(sum, warp_thread() - (warp_thread() < step ? 0 : step));
    sum += warp_thread() < step ? 0 : lower;
  }
  const u32 i = chunk * 32 + warp_thread();
  if (i <= count) before[i] = sum - mine;
  if (warp_thread() == 31) sums[chunk] = sum;
}
// By the block, once all chunks are there: adds the chunks before.
SYMMEM_FN void join_chunks(u64* before, const u64* sums, u32 count) {
#pragma unroll 1
  for (u32 i = 32 + thread_index(); i <= count; i += block_size()) {
    u64 sum = 0;
#pragma unroll 1
    for (u32 chunk = 0; chunk < i / 32; chunk++) sum += sums[chunk];
    before[i] += sum;
  }
}

// The split of a thread's index, by target and bin, and where its rows begin if an offset says so: on their way
// before the kernel knows that it is to go on.
struct Ahead {
  u64 rows, from;

  SYMMEM_FN Ahead(const Matrix<false>&) : rows(0), from(0) {}
  SYMMEM_FN Ahead(const Matrix<true>& m) : rows(0), from(0) {
    if (thread_index() >= m.splits) return;
    const u32 i = m.input_of(thread_index());
    rows = m.own_split(i);
    if (m.p.in_offsets != 0) from = m.own_offset(i);
  }
};

// Where this rank's rows for each bin of each rank begin in the input, and which go in lines. Every thread of the
// block calls it; whether this thread has found something wrong with the splits, or with where they begin.
SYMMEM_FN bool begin_rows(const Matrix<true>& m, const Ahead& ahead) {
  const Vdev& p = m.p;
  Shared& s = m.shared;
  const u32 chunks = chunks_of(m.splits);
  if (thread_index() == 0) s.direct = 0;
#pragma unroll 1
  for (u32 c = thread_index(); c < 32 * chunks; c += block_size()) {
    u64 rows = 0;
    if (c < m.splits) {
      const u32 i = m.input_of(c);
      rows = c == thread_index() ? ahead.rows : m.own_split(i);
      m.keep(m.me, HEAD + i, rows);
    }
    sum_chunk(s.sent, s.sums[0], c / 32, m.splits, rows);
    sum_chunk(s.totals, s.sums[1], c / 32, m.splits, pieces_of(rows * p.row));
  }
  block_sync();
  if (SYMMEM_UNLIKELY(chunks > 1)) {
    join_chunks(s.sent, s.sums[0], m.splits);
    join_chunks(s.totals, s.sums[1], m.splits);
    block_sync();
  }
  bool wrong = false;
#pragma unroll 1
  for (u32 c = thread_index(); c < m.splits; c += block_size()) {
    const u32 target = m.by_minor.quotient(c), first = target * m.minor, end = first + m.minor;
    const u64 total = s.sent[end] - s.sent[first], vectors = p.row / 16, rows = s.sent[c + 1] - s.sent[c];
    u64 from = s.sent[c];
    if (p.in_offsets != 0) from = c == thread_index() ? ahead.from : m.own_offset(m.input_of(c));
    // Where a split has no rows, its offset means nothing. A negative one of either is past any input.
    wrong |= rows > p.input_rows || (rows != 0 && from > p.input_rows - rows);
    const bool lines = m.most_lines != 0 && target != m.me && total <= m.most_lines;
    Entry* entries = s.entries + first + target;
    auto before = [&](u32 i) { return lines ? (s.sent[i] - s.sent[first]) * vectors : s.totals[i] - s.totals[first]; };
    entries[c - first] = Entry{from * p.row, 0, rows * p.row, before(c)};
    if (c + 1 != end) continue;
    entries[m.minor] = Entry{0, 0, 0, before(end)};
    s.out[target] = lines ? (u32)(total * vectors) : DIRECT;
    if (!lines && target != m.me) s.direct = 1;
  }
  return wrong;
}

// A sum over words of messages `stride` apart: those of several under way at once.
SYMMEM_FN u64 sum_words(const u64* words, u32 stride, u32 count) {
  u64 sum = 0;
#pragma unroll 1
  for (u32 first = 0; first < count; first += 4) {
    u64 some[4];
#pragma unroll
    for (u32 k = 0; k < 4; k++) some[k] = first + k < count ? words[(first + k) * stride] : 0;
    sum += some[0] + some[1] + (some[2] + some[3]);
  }
  return sum;
}

// Where this rank's rows for a bin go, and how many of them; by one thread.
SYMMEM_FN void place_sent(const Matrix<true>& m, u32 c) {
  Shared& s = m.shared;
  const u32 target = m.by_minor.quotient(c), first = target * m.minor, majors = m.majors();
  const u32 major = m.p.by_bin ? m.me : c - first;
  Entry& entry = s.entries[c + target];
  const u64 before = m.p.by_bin ? s.sent[c] - s.sent[first] : sum_words(s.words + HEAD + c, m.words, m.me);
  const u64 at = s.lengths[target * majors + major] - s.lengths[target * majors] + before;
  entry.to = at * m.p.row, entry.bytes = kept_rows(s.sent[c + 1] - s.sent[c], at, m.capacity(target)) * m.p.row;
}

// Where rows for this rank's bin come from a source, which block 0 tells; by one thread. Whether some are dropped.
SYMMEM_FN bool place_received(const Matrix<true>& m, u32 c) {
  const Vdev& p = m.p;
  Shared& s = m.shared;
  const u32 source = m.by_minor.quotient(c), first = source * m.minor, bin = c - first, majors = m.majors();
  const u32 major = p.by_bin ? source : bin, minor = p.by_bin ? bin : source;
  Run* runs = s.runs + first + source;
  const u64 rows = s.received[c + 1] - s.received[c], before = s.received[c] - s.received[first], vectors = p.row / 16;
  const u64 at = s.lengths[m.me * majors + major] - s.lengths[m.me * majors] + (p.by_bin ? before : sum_words(s.words + HEAD + m.me * m.minor + bin, m.words, source));
  const u64 kept = kept_rows(rows, at, m.capacity(m.me));
  if (block_index() == 0) {
    u64* out = pointer<u64>(p.out_splits) + major * m.minors() + minor;
    store_element<u64>(out, kept);
    store_element<u64>(out + m.splits, at);
  }
  runs[bin] = Run{at * p.row, (u32)(before * vectors), (u32)((before + kept) * vectors)};
  if (bin == m.minor - 1) {
    const u64 total = before + rows;
    const bool lines = m.most_lines != 0 && source != m.me && total <= m.most_lines;
    runs[m.minor] = Run{0, (u32)(total * vectors), (u32)(total * vectors)};
    s.in[source] = lines ? (u32)(total * vectors) : DIRECT;
    if (!lines && source != m.me) s.direct = 1;
  }
  return kept != rows;
}

// How many rows an output needs up to a major bin's last, if it has any: of what `place_rows` has summed.
SYMMEM_FN u64 needed_by(const Matrix<true>& m, u32 target, u32 major) {
  const u32 first = target * m.majors(), c = first + major;
  return m.shared.totals[c] != 0 ? m.shared.lengths[c] - m.shared.lengths[first] + m.shared.totals[c] : 0;
}

// Where rows go, of this rank and to this rank, and whether all fit; tells what this rank receives. Every thread of
// the block calls it, once all messages are at hand; whether this thread has found that some do not, or that a
// rank's splits are wrong: of that nothing that has been summed means anything.
SYMMEM_FN bool place_rows(const Matrix<true>& m) {
  const Vdev& p = m.p;
  Shared& s = m.shared;
  const u32 majors = m.majors(), cells = m.world * majors, warps = block_size() / 32;
  const u32 of_cells = chunks_of(cells), of_splits = chunks_of(m.splits);
#pragma unroll 1
  for (u32 chunk = warp_index(); chunk < of_cells + of_splits; chunk += warps) {
    const bool is_cell = chunk < of_cells;
    const u32 c = (is_cell ? chunk : chunk - of_cells) * 32 + warp_thread();
    u64 rows = 0;
    if (is_cell && c < cells) {
      const u32 target = m.by_majors.quotient(c), major = c - target * majors;
      const u64* words = s.words + HEAD + (p.by_bin ? major * m.words + target : c);
      const u64 total = s.totals[c] = sum_words(words, p.by_bin ? m.world : m.words, m.minors());
      rows = length_of(p, total);
    } else if (!is_cell && c < m.splits) {
      const u32 source = m.by_minor.quotient(c);
      rows = m.rows(source, m.me, c - source * m.minor);
    }
    sum_chunk(is_cell ? s.lengths : s.received, s.sums[!is_cell], c / 32, is_cell ? cells : m.splits, rows);
  }
  block_sync();
  if (SYMMEM_UNLIKELY(of_cells > 1 || of_splits > 1)) {
    join_chunks(s.lengths, s.sums[0], cells);
    join_chunks(s.received, s.sums[1], m.splits);
    block_sync();
  }
  bool trouble = false;
#pragma unroll 1
  for (u32 chunk = warp_index(); chunk < 2 * of_splits + of_cells; chunk += warps) {
    const u32 kind = chunk < of_splits ? 0 : chunk < 2 * of_splits ? 1 : 2, c = (chunk - kind * of_splits) * 32 + warp_thread();
    if (kind == 0 && c < m.splits) place_sent(m, c);
    if (kind == 1 && c < m.splits) trouble |= place_received(m, c);
    if (kind == 2 && c < cells) {
      const u32 target = m.by_majors.quotient(c);
      trouble |= m.word(target, 1) != 0 || needed_by(m, target, c - target * majors) > m.capacity(target);
    }
  }
  return trouble;
}

// The verdict where there is trouble: the first rank whose splits are wrong; else the first whose output has no
// room, unless rows are dropped then, which are counted. Every thread of the block calls it, and all blocks of all
// ranks get the same.
__device__ __attribute__((noinline)) inline Verdict settle(const Matrix<true> m) {
  const Verdict found = first_finding(m);
  if (found.rank != 0) return found;
#pragma unroll 1
  for (u32 r = 0; r < m.world && !m.p.drop; r++) {
    u64 needed = 0;
#pragma unroll 1
    for (u32 major = 0; major < m.majors(); major++) needed = most(needed, needed_by(m, r, major));
    if (needed > m.capacity(r)) return Verdict{r + 1, finding(OVERFLOW, 0, needed, m.capacity(r))};
  }
  if (block_index() != 0 || thread_index() != 0) return Verdict{};
  u64 dropped = 0;
#pragma unroll 1
  for (u32 major = 0; major < m.majors(); major++)
    for (u32 minor = 0; minor < m.minors(); minor++)
      dropped = add(dropped, m.rows_at(m.me, major, minor) - load_element<u64>(pointer<u64>(m.p.out_splits) + major * m.minors() + minor));
  count_dropped(m.p.status, dropped);
  return Verdict{};
}

// --------------------------------------------------------------------------- placement, of many

// Goes over the bins of a target in the order of its output, by one warp: enters where this rank's rows go; or tells
// what this rank receives, which is the target then. How many rows the output needs.
__device__ __attribute__((noinline)) inline u64 walk(const Matrix<false> m, u32 target, bool tells) {
  const Vdev& p = m.p;
  const bool by_bin = p.by_bin != 0;
  const u32 majors = m.majors(), minors = m.minors();
  const u64 capacity = m.capacity(target);
  u64 from = 0, pieces = 0, dropped = 0;
  if (p.in_offsets == 0) {
    // Of splits that are by rank, those of the ranks before.
#pragma unroll 1
    for (u32 i = warp_thread(); i < target * m.minor; i += 32) from = add(from, m.own_split(i));
    from = of_warp(from, add);
  }
  // Each thread's bin, if it has one, whose rows begin at `at` in the output.
  auto put = [&](u32 bin, u64 rows, u64 at) {
    u64 begin = 0, all;
    if (p.in_offsets == 0) {
      begin = from + sum_before(rows, all);
      from += all;
    } else if (bin < m.minor) {
      begin = m.own_offset(m.input(target, bin));
    }
    // The caller may have changed splits and offsets since they were looked at: no row past the input is read.
    const u64 bytes = kept_rows(kept_rows(rows, at, capacity), begin, p.input_rows) * p.row;
    const u64 first = pieces + sum_before(pieces_of(bytes), all);
    if (bin < m.minor) m.set_entry(target, bin, Entry{begin * p.row, at * p.row, bytes, first});
    pieces += all;
  };
  u64 next = 0, needed = 0, begin = 0;
#pragma unroll 1
  for (u32 base = 0; base < majors; base += 32) {
    const u32 major = base + warp_thread();
    u64 total = 0, before = 0;
#pragma unroll 1
    for (u32 minor = 0; major < majors && minor < minors; minor++) {
      if (minor == m.me) before = total;
      total = add(total, m.rows_at(target, major, minor));
    }
    u64 all;
    u64 at = add(next, sum_before(major < majors ? length_of(p, total) : 0, all));
    next = add(next, all);
    if (total != 0) needed = most(needed, add(at, total));
    if (tells) {
      u64* out = pointer<u64>(p.out_splits) + (u64)major * minors;
#pragma unroll 1
      for (u32 minor = 0; major < majors && minor < minors; minor++) {
        const u64 rows = m.rows_at(target, major, minor), kept = kept_rows(rows, at, capacity);
        store_element<u64>(out + minor, kept);
        store_element<u64>(out + m.splits + minor, least(at, ~0ull >> 1));
        at = add(at, rows), dropped = add(dropped, rows - kept);
      }
    } else if (by_bin) {
      const u64 found = warp_read(at, m.me % 32);
      if (base / 32 == m.me / 32) begin = found;
    } else {
      put(major, major < majors ? m.rows(m.me, target, major) : 0, add(at, before));
    }
  }
  if (tells) {
    dropped = of_warp(dropped, add);
    if (warp_thread() == 0) count_dropped(p.status, dropped);
    return 0;
  }
#pragma unroll 1
  for (u32 base = 0; by_bin && base < m.minor; base += 32) {
    const u32 bin = base + warp_thread();
    const u64 rows = bin < m.minor ? m.rows(m.me, target, bin) : 0;
    u64 all;
    const u64 at = add(begin, sum_before(rows, all));
    put(bin, rows, at);
    begin = add(begin, all);
  }
  if (warp_thread() == 0) m.set_entry(target, m.minor, Entry{0, 0, 0, pieces});
  return of_warp(needed, most);
}

}  // namespace vdev
}  // namespace symmem

#endif  // SYMMEM_VDEV_CUH
