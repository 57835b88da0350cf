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
  u64 first;  // vectors of the bins before,
  u64 end;    // and of the last row that is kept, and all before
};

// What a block has at hand of messages and entries, where all of them fit.
constexpr u32 SHARED_WORDS = 2304, SHARED_ENTRIES = 512;

// Ranks of which some rows may go in lines.
constexpr u32 LINE_RANKS = 64;

// Bytes of a rank's rows for others that go in lines, at most: without waiting for anybody, to whoever has yet to
// say where they belong. More rows are faster stored there at once.
constexpr u64 LINE_BYTES = 4 << 20;

// Of rows that do not go in lines.
constexpr u32 DIRECT = ~0u;

struct Shared {
  Entry entries[SHARED_ENTRIES];
  Run runs[SHARED_ENTRIES];
  u64 words[SHARED_WORDS];
  // By rank: vectors that go there in lines, and that come from there.
  u32 out[LINE_RANKS], in[LINE_RANKS];
  // By warp.
  u64 negative[MOST_WARPS], outside[MOST_WARPS], sum[MOST_WARPS];
  u64 overflow[MOST_WARPS], needed[MOST_WARPS];
};
static_assert(sizeof(Shared) <= 48 << 10, "what every device has");

// --------------------------------------------------------------------------------- messages

// What the ranks have told each other: capacities and findings, then splits.
struct Matrix : Messages<Matrix> {
  const Vdev& p;
  Shared& shared;
  u32 minor;
  u32 splits;      // of a rank
  u64 most_lines;  // rows of one rank for another that go in lines, at most; 0 for none
  Finding wrong;

  SYMMEM_FN Matrix(const Vdev& p, Shared& shared)
      : Messages(p.lane, HEAD + p.lane.world * p.minor, shared.words, SHARED_WORDS), p(p), shared(shared), minor(p.minor),
        splits(words - HEAD), most_lines(0), wrong{} {}

  // Whether rows may go in lines is the same everywhere. They leave nothing for `scrub` to know of.
  SYMMEM_FN void begin(const Step& step) {
    parity = step.parity;
#ifdef SYMMEM_HAS_LINES
    if (!cached || !has_shared_entries() || world > LINE_RANKS || p.row == 0 || p.row % 16 != 0 || scrub_due(step.epoch)) return;
    const u64 room = (u64)p.lane.line_count / 16 * Lines::VECTORS * 16;
    most_lines = quotient(least(room, LINE_BYTES / (world > 1 ? world - 1 : 1)), p.row);
#endif
  }
  SYMMEM_FN bool goes_in_lines(u32 target) const { return most_lines != 0 && target != me && shared.out[target] != DIRECT; }
  SYMMEM_FN bool comes_in_lines(u32 source) const { return most_lines != 0 && source != me && shared.in[source] != DIRECT; }

  SYMMEM_FN u64 own_split(u32 i) const { return load_element<u64>(pointer<u64>(p.in_splits) + i); }

  // Of this rank's message. Of wrong splits none counts.
  SYMMEM_FN u64 own_word(u32 i) const {
    if (i >= HEAD) return own_split(i - HEAD);
    return i == 0 ? p.capacity : i == 1 ? wrong.what : i == 2 ? wrong.value : wrong.limit;
  }

  SYMMEM_FN u64 capacity(u32 rank) const { return word(rank, 0); }
  SYMMEM_FN u32 input(u32 target, u32 bin) const { return p.by_bin ? bin * world + target : target * minor + bin; }
  SYMMEM_FN u64 rows(u32 source, u32 target, u32 bin) const { return word(source, HEAD + input(target, bin)); }

  // The output of a rank is by major, then by minor bins: either are sources, the others bins.
  SYMMEM_FN u32 majors() const { return p.by_bin ? world : minor; }
  SYMMEM_FN u32 minors() const { return p.by_bin ? minor : world; }
  SYMMEM_FN u64 rows_at(u32 target, u32 major, u32 minor) const {
    return p.by_bin ? rows(major, target, minor) : rows(minor, target, major);
  }

  // The entries of a target, and after them how many pieces it has. Without room in `shared` they are in this
  // rank's own staging, after the messages: no rank has one for itself, so that some have two targets' entries.
  SYMMEM_FN u64 entry_at(u32 target, u32 bin) const {
    const u32 places = world > 1 ? world - 1 : 1, place = target < places ? target : target - places;
    const u64 messages = ((u64)words * 8 + 31) / 32 * 32, slot = target < places ? 0 : minor + 1;
    return p.lane.own + p.lane.staging + (parity * places + place) * p.lane.staging_unit + messages + (slot + bin) * sizeof(Entry);
  }
  SYMMEM_FN bool has_shared_entries() const { return splits + world <= SHARED_ENTRIES; }
  SYMMEM_FN void set_entry(u32 target, u32 bin, const Entry& entry) const {
    if (has_shared_entries()) {
      shared.entries[target * (minor + 1) + bin] = entry;
      return;
    }
    u64* at = pointer<u64>(entry_at(target, bin));
    store_element<u64>(at, entry.from), store_element<u64>(at + 1, entry.to);
    store_element<u64>(at + 2, entry.bytes), store_element<u64>(at + 3, entry.first);
  }
  SYMMEM_FN Entry entry(u32 target, u32 bin) const {
    if (has_shared_entries()) return shared.entries[target * (minor + 1) + bin];
    const u64* at = pointer<u64>(entry_at(target, bin));
    return Entry{load_element<u64>(at), load_element<u64>(at + 1), load_element<u64>(at + 2), load_element<u64>(at + 3)};
  }
  SYMMEM_FN u64 first_piece(u32 target, u32 bin) const {
    if (has_shared_entries()) return shared.entries[target * (minor + 1) + bin].first;
    return load_element<u64>(pointer<u64>(entry_at(target, bin)) + 3);
  }
};

// Looks at this rank's own splits, which are at hand then, if any are. Every thread of the block calls it, `ahead`
// with the split of its index, and all get the same.
SYMMEM_FN Finding check(const Matrix& m, u64 ahead) {
  const Vdev& p = m.p;
  Shared& s = m.shared;
  auto end = [&](u64 i) {
    const u64 offset = load_element<u64>(pointer<u64>(p.in_offsets) + i);
    return offset >> 63 ? ~0ull : add(offset, m.own_split((u32)i));
  };
  u64 negative = NOTHING, outside = NOTHING, sum = 0;
  for (u32 i = thread_index(); i < m.splits; i += block_size()) {
    const u64 split = i == thread_index() ? ahead : m.own_split(i);
    if (m.cached) m.keep(m.me, HEAD + i, split);
    if (split >> 63) negative = least(negative, i);
    else if (p.in_offsets == 0) sum = add(sum, split);
    // Where a split has no rows, its offset means nothing.
    else if (split != 0 && end(i) > p.input_rows) outside = least(outside, i);
  }
  negative = of_warp(negative, least), outside = of_warp(outside, least), sum = of_warp(sum, add);
  if (warp_thread() == 0) s.negative[warp_index()] = negative, s.outside[warp_index()] = outside, s.sum[warp_index()] = sum;
  block_sync();
  negative = outside = NOTHING, sum = 0;
  for (u32 w = 0; w < block_size() / 32; w++)
    negative = least(negative, s.negative[w]), outside = least(outside, s.outside[w]), sum = add(sum, s.sum[w]);
  if (negative != NOTHING) return finding(NEGATIVE, negative, m.own_split((u32)negative), p.input_rows);
  if (outside != NOTHING) return finding(OUTSIDE_INPUT, outside, end(outside), p.input_rows);
  if (sum > p.input_rows) return finding(PAST_INPUT, 0, sum, p.input_rows);
  return Finding{};
}

// --------------------------------------------------------------------------------- placement

// Calls `each` with every major bin that a rank receives and the row that it begins at; past the last bin too,
// since all threads of the warp call it. How many rows the rank's output needs.
template <class Each> SYMMEM_FN u64 place(const Matrix& m, u32 target, Each each) {
  const u64 align = m.p.align;
  u64 next = 0, needed = 0;
#pragma unroll 1
  for (u32 base = 0; base < m.majors(); base += 32) {
    const u32 major = base + warp_thread();
    u64 total = 0, length = 0;
    if (major < m.majors()) {
#pragma unroll 4
      for (u32 minor = 0; minor < m.minors(); minor++) total = add(total, m.rows_at(target, major, minor));
      length = total;
      if (align != 0) {
        // A bin without rows is as long as one of the multiples.
        const u64 more = (align - most(total, 1) % align) % align;
        length = add(most(total, 1), more);
      }
    }
    u64 all;
    const u64 start = add(next, sum_before(length, all));
    if (total != 0) needed = most(needed, add(start, total));
    each(major, start);
    next = add(next, all);
  }
  return of_warp(needed, most);
}

// Makes the entries of a target, by the threads of a warp, bin by bin.
struct Entries {
  const Matrix& m;
  u32 target;
  u64 capacity;
  u64 source = 0, pieces = 0;  // rows and pieces, or vectors, of the bins before

  SYMMEM_FN Entries(const Matrix& m, u32 target) : m(m), target(target), capacity(m.capacity(target)) {
    if (m.p.in_offsets != 0) return;
    // Of splits that are by rank, those of the ranks before.
    u64 sum = 0;
    for (u32 i = warp_thread(); i < target * m.minor; i += 32) sum = add(sum, m.word(m.me, HEAD + i));
    source = of_warp(sum, add);
  }

  // Where rows of each thread's bin begin in the input, if it has one.
  SYMMEM_FN u64 from(u32 bin, u64 rows) {
    if (m.p.in_offsets != 0) return bin < m.minor ? load_element<u64>(pointer<u64>(m.p.in_offsets) + m.input(target, bin)) : 0;
    u64 all;
    const u64 found = source + sum_before(rows, all);
    source += all;
    return found;
  }
  // That bin, whose rows begin at `at` in the output.
  SYMMEM_FN void put(u32 bin, u64 rows, u64 at) {
    const bool is_bin = bin < m.minor;
    const u64 from = this->from(bin, rows);
    u64 all;
    // The caller may have changed splits and offsets since they were looked at: no row past the input is read.
    const u64 bytes = kept_rows(kept_rows(rows, at, capacity), from, m.p.input_rows) * m.p.row;
    const u64 first = pieces + sum_before((bytes + PIECE - 1) / PIECE, all);
    if (is_bin) m.set_entry(target, bin, Entry{from * m.p.row, at * m.p.row, bytes, first});
    pieces += all;
  }
  // The same of rows that go in lines, which are `vectors` then.
  SYMMEM_FN void put_lines(u32 bin, u64 rows) {
    // Here too. There are as many rows as the receiver has been told.
    const u64 last = m.p.input_rows - least(rows, m.p.input_rows), from = least(this->from(bin, rows), last);
    u64 all;
    const u64 first = pieces + sum_before(rows * (m.p.row / 16), all);
    if (bin < m.minor) m.set_entry(target, bin, Entry{from * m.p.row, 0, 0, first});
    pieces += all;
  }
  SYMMEM_FN void end() {
    if (warp_thread() == 0) m.set_entry(target, m.minor, Entry{0, 0, 0, pieces});
  }
};

// Calls `put` with every bin of a target, its rows of one source, and the row that those begin at; past the last bin
// too. By one warp. How many rows the target's output needs.
template <class Put> SYMMEM_FN u64 walk(const Matrix& m, u32 source, u32 target, Put put) {
  if (!m.p.by_bin) {
    return place(m, target, [&](u32 bin, u64 start) {
      u64 rows = 0;
      if (bin < m.minor) {
        for (u32 s = 0; s < source; s++) start = add(start, m.rows(s, target, bin));
        rows = m.rows(source, target, bin);
      }
      put(bin, rows, start);
    });
  }
  u64 next = 0;
  const u64 needed = place(m, target, [&](u32 major, u64 start) {
    const u64 found = warp_read(start, source % 32);
    if (major / 32 == source / 32) next = found;
  });
#pragma unroll 1
  for (u32 base = 0; base < m.minor; base += 32) {
    const u32 bin = base + warp_thread();
    const u64 rows = bin < m.minor ? m.rows(source, target, bin) : 0;
    u64 all;
    const u64 at = add(next, sum_before(rows, all));
    put(bin, rows, at);
    next = add(next, all);
  }
  return needed;
}

// Where this rank's rows for a target go, by one warp: its entries. How many rows the target's output needs.
SYMMEM_FN u64 place_own(const Matrix& m, u32 target) {
  Entries entries(m, target);
  const u64 needed = walk(m, m.me, target, [&](u32 bin, u64 rows, u64 at) { entries.put(bin, rows, at); });
  entries.end();
  return needed;
}
SYMMEM_FN u64 needed_by(const Matrix& m, u32 target) {
  return place(m, target, [](u32, u64) {});
}

// ------------------------------------------------------------------------------------- lines

// Vectors of the rows of a source for a target, of which one is this rank, by one warp; DIRECT if they do not go in
// lines.
SYMMEM_FN u32 vectors_of(const Matrix& m, u32 source, u32 target) {
  u64 rows = 0;
  for (u32 bin = warp_thread(); bin < m.minor; bin += 32) rows = add(rows, m.rows(source, target, bin));
  rows = of_warp(rows, add);
  return rows <= m.most_lines ? (u32)(rows * (m.p.row / 16)) : DIRECT;
}

// Where the rows for a target begin that go in lines, by one warp.
SYMMEM_FN void begin_lines(const Matrix& m, u32 target) {
  const u32 count = vectors_of(m, m.me, target);
  if (warp_thread() == 0) m.shared.out[target] = count;
  if (count == DIRECT || count == 0) return;
  Entries entries(m, target);
#pragma unroll 1
  for (u32 base = 0; base < m.minor; base += 32) {
    const u32 bin = base + warp_thread();
    entries.put_lines(bin, bin < m.minor ? m.rows(m.me, target, bin) : 0);
  }
  entries.end();
}

// Where rows of a source go that come in lines, by one warp.
SYMMEM_FN void place_lines(const Matrix& m, u32 source) {
  const u32 count = vectors_of(m, source, m.me);
  if (warp_thread() == 0) m.shared.in[source] = count;
  if (count == DIRECT || count == 0) return;
  const u64 each = m.p.row / 16, capacity = m.capacity(m.me);
  Run* runs = m.shared.runs + source * (m.minor + 1);
  u64 vectors = 0;
  walk(m, source, m.me, [&](u32 bin, u64 rows, u64 at) {
    u64 all;
    const u64 first = vectors + sum_before(rows * each, all);
    if (bin < m.minor) runs[bin] = Run{at * m.p.row, first, first + kept_rows(rows, at, capacity) * each};
    vectors += all;
  });
  if (warp_thread() == 0) runs[m.minor] = Run{0, count, count};
}

}  // namespace vdev
}  // namespace symmem

#endif  // SYMMEM_VDEV_CUH
