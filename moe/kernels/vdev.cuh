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
  u64 sum[MOST_WARPS], overflow[MOST_WARPS], needed[MOST_WARPS];
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
  u64 most_lines;  // rows of one rank for another that go in lines, at most; 0 for none
  Finding wrong;

  SYMMEM_FN Matrix(const Vdev& p, Shared& shared)
      : Base(p.lane, HEAD + p.lane.world * p.minor, shared.words), p(p), shared(shared), minor(p.minor), splits(words - HEAD), most_lines(0), wrong{} {}

  static SYMMEM_FN bool fits(const Vdev& p) {
    const u32 splits = p.lane.world * p.minor;
    return fit_at_hand(p.lane, HEAD + splits, SHARED_WORDS) && splits + p.lane.world <= SHARED_ENTRIES;
  }

  // Whether rows may go in lines is the same everywhere. They leave nothing for `scrub` to know of.
  SYMMEM_FN void begin(const Step& step) {
    parity = step.parity;
#ifdef SYMMEM_HAS_LINES
    if (!AT_HAND || world > LINE_RANKS || p.row == 0 || p.row % 16 != 0 || scrub_due(step.epoch)) return;
    const u64 room = (u64)p.lane.line_count / 16 * Lines::VECTORS * 16;
    most_lines = quotient(least(room, quotient(LINE_BYTES, world > 1 ? world - 1 : 1)), p.row);
#endif
  }
  SYMMEM_FN bool goes_in_lines(u32 target) const { return most_lines != 0 && target != me && shared.out[target] != DIRECT; }
  SYMMEM_FN bool comes_in_lines(u32 source) const { return most_lines != 0 && source != me && shared.in[source] != DIRECT; }

  SYMMEM_FN u64 own_split(u32 i) const { return load_element<u64>(pointer<u64>(p.in_splits) + i); }

  // Of this rank's message. Splits are at hand since they were looked at, if any are.
  SYMMEM_FN u64 own_word(u32 i) const {
    if (i >= HEAD) return AT_HAND ? shared.words[me * words + i] : own_split(i - HEAD);
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
  SYMMEM_FN void set_entry(u32 target, u32 bin, const Entry& entry) const {
    if constexpr (AT_HAND) {
      shared.entries[target * (minor + 1) + bin] = entry;
    } else {
      u64* at = pointer<u64>(entry_at(target, bin));
      store_element<u64>(at, entry.from), store_element<u64>(at + 1, entry.to);
      store_element<u64>(at + 2, entry.bytes), store_element<u64>(at + 3, entry.first);
    }
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
    const u64 offset = load_element<u64>(pointer<u64>(p.in_offsets) + i);
    return offset >> 63 ? ~0ull : add(offset, split);
  }
};

// What is wrong with this rank's own splits, of which some are: by every thread alike.
template <bool AT_HAND> __device__ __attribute__((noinline)) inline Finding find_wrong(const Matrix<AT_HAND>& m) {
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

// Looks at this rank's own splits, which are at hand then, if any are. Every thread of the block calls it, `ahead`
// with the split of its index, and all get the same.
template <bool AT_HAND> SYMMEM_FN Finding check(const Matrix<AT_HAND>& m, u64 ahead) {
  const Vdev& p = m.p;
  u64 sum = 0;
  bool wrong = false;
#pragma unroll 1
  for (u32 i = thread_index(); i < m.splits; i += block_size()) {
    const u64 split = i == thread_index() ? ahead : m.own_split(i);
    if constexpr (AT_HAND) m.keep(m.me, HEAD + i, split);
    wrong |= split >> 63 != 0;
    if (p.in_offsets == 0) sum = add(sum, split);
    else if (split != 0) wrong |= m.end(i, split) > p.input_rows;
  }
  sum = of_warp(sum, add);
  if (warp_thread() == 0) m.shared.sum[warp_index()] = sum;
  wrong = block_any(wrong);
  sum = 0;
#pragma unroll 1
  for (u32 w = 0; w < block_size() / 32; w++) sum = add(sum, m.shared.sum[w]);
  return wrong || sum > p.input_rows ? find_wrong(m) : Finding{};
}

// --------------------------------------------------------------------------------- placement

// What `walk` makes of the bins that it comes by.
enum Act : u32 {
  NEED,   // nothing: how many rows the target's output needs
  ENTER,  // the entries of this rank's rows for the target
  SEND,   // the same of those that go in lines, wherever they belong
  TAKE,   // the runs of rows of the source that come to this rank in lines
  TELL,   // what this rank tells of the splits that it receives
};

// The bins of one pair of ranks, one after the other, by the threads of a warp.
template <bool AT_HAND> struct Bins {
  const Matrix<AT_HAND>& m;
  u32 source, target;
  Act act;
  u64 from, pieces;  // rows and pieces, or vectors, of the bins before

  SYMMEM_FN Bins(const Matrix<AT_HAND>& m, u32 source, u32 target, Act act) : m(m), source(source), target(target), act(act), from(0), pieces(0) {
    if (m.p.in_offsets != 0 || (act != ENTER && act != SEND)) return;
    // Of splits that are by rank, those of the ranks before.
    u64 sum = 0;
#pragma unroll 1
    for (u32 i = warp_thread(); i < target * m.minor; i += 32) sum = add(sum, m.word(m.me, HEAD + i));
    from = of_warp(sum, add);
  }

  // Each thread's bin, if it has one, whose rows begin at `at` in the output.
  SYMMEM_FN void put(u32 bin, u64 rows, u64 at) {
    const Vdev& p = m.p;
    const bool is_bin = bin < m.minor;
    u64 begin = 0, kept = rows, all;
    if (act != TAKE) {
      if (p.in_offsets == 0) {
        begin = from + sum_before(rows, all);
        from += all;
      } else if (is_bin) {
        begin = load_element<u64>(pointer<u64>(p.in_offsets) + m.input(target, bin));
      }
      // The caller may have changed offsets since they were looked at: no row past the input is read. In lines there
      // are as many rows as the receiver has been told.
      if (act == SEND) begin = least(begin, p.input_rows - least(rows, p.input_rows));
    }
    if (act != SEND) kept = kept_rows(rows, at, m.capacity(target));
    if (act == ENTER) kept = kept_rows(kept, begin, p.input_rows);
    const u64 count = act == ENTER ? (kept * p.row + PIECE - 1) / PIECE : rows * (p.row / 16), first = pieces + sum_before(count, all);
    pieces += all;
    if (!is_bin) return;
    if (act == TAKE) m.shared.runs[source * (m.minor + 1) + bin] = Run{at * p.row, first, first + kept * (p.row / 16)};
    else m.set_entry(target, bin, Entry{begin * p.row, at * p.row, kept * p.row, first});
  }
  SYMMEM_FN void end() {
    if (warp_thread() != 0) return;
    if (act == TAKE) m.shared.runs[source * (m.minor + 1) + m.minor] = Run{0, pieces, pieces};
    else if (act != NEED) m.set_entry(target, m.minor, Entry{0, 0, 0, pieces});
  }
};

// Goes over the bins of a target in the order of its output, by one warp. How many rows that needs.
template <bool AT_HAND> __device__ __attribute__((noinline)) inline u64 walk(const Matrix<AT_HAND>& m, u32 source, u32 target, Act act) {
  const Vdev& p = m.p;
  const bool by_bin = p.by_bin != 0;
  const u32 majors = m.majors(), minors = m.minors();
  Bins<AT_HAND> bins(m, source, target, act);
  u64 next = 0, needed = 0, begin = 0, dropped = 0;
#pragma unroll 1
  for (u32 base = 0; act != SEND && base < majors; base += 32) {
    const u32 major = base + warp_thread();
    u64 total = 0, before = 0;
#pragma unroll 1
    for (u32 minor = 0; major < majors && minor < minors; minor++) {
      if (minor == source) before = total;
      total = add(total, m.rows_at(target, major, minor));
    }
    u64 length = total;
    if (p.align != 0) {
      // A bin without rows is as long as one of the multiples.
      length = most(total, 1);
      if (p.align != 1) length = add(length, p.align - 1 - remainder(length - 1, p.align));
    }
    if (major >= majors) length = 0;
    u64 all;
    u64 at = add(next, sum_before(length, all));
    next = add(next, all);
    if (total != 0) needed = most(needed, add(at, total));
    if (act == TELL) {
      const u64 capacity = m.capacity(m.me);
      u64* out = pointer<u64>(p.out_splits) + (u64)major * minors;
#pragma unroll 1
      for (u32 minor = 0; major < majors && minor < minors; minor++) {
        const u64 rows = m.rows_at(target, major, minor), kept = kept_rows(rows, at, capacity);
        store_element<u64>(out + minor, kept);
        store_element<u64>(out + m.splits + minor, least(at, ~0ull >> 1));
        at = add(at, rows), dropped = add(dropped, rows - kept);
      }
    } else if (by_bin) {
      const u64 found = warp_read(at, source % 32);
      if (base / 32 == source / 32) begin = found;
    } else if (act != NEED) {
      bins.put(major, major < majors ? m.rows(source, target, major) : 0, add(at, before));
    }
  }
  if (act == TELL) {
    dropped = of_warp(dropped, add);
    if (warp_thread() == 0) count_dropped(p.status, dropped);
    return 0;
  }
#pragma unroll 1
  for (u32 base = 0; act != NEED && (by_bin || act == SEND) && base < m.minor; base += 32) {
    const u32 bin = base + warp_thread();
    const u64 rows = bin < m.minor ? m.rows(source, target, bin) : 0;
    u64 all;
    const u64 at = add(begin, sum_before(rows, all));
    bins.put(bin, rows, at);
    begin = add(begin, all);
  }
  bins.end();
  return of_warp(needed, most);
}

// Vectors of the rows of a source for a target, of which one is this rank, by one warp; DIRECT if they do not go in
// lines.
template <bool AT_HAND> SYMMEM_FN u32 vectors_of(const Matrix<AT_HAND>& m, u32 source, u32 target) {
  u64 rows = 0;
#pragma unroll 1
  for (u32 bin = warp_thread(); bin < m.minor; bin += 32) rows = add(rows, m.rows(source, target, bin));
  rows = of_warp(rows, add);
  return rows <= m.most_lines ? (u32)(rows * (m.p.row / 16)) : DIRECT;
}

}  // namespace vdev
}  // namespace symmem

#endif  // SYMMEM_VDEV_CUH
