// plan.cuh: the argument block of every kernel of this crate, and what follows from it.

#ifndef SYMMEM_PLAN_CUH
#define SYMMEM_PLAN_CUH

#include "payload.cuh"

namespace symmem {

// How the parts lie in a buffer: one rank's begins `step` after that of the rank before, and its runs
// begin `stride` after each other.
struct Pitch {
  u64 step, stride;
};

// Everything that an executor needs; it validates and chooses nothing. Lengths are in bytes.
struct alignas(16) Plan {
  Lane lane;
  u64 input, output;  // addresses
  u64 bytes;          // a part: rows of `row` bytes
  u64 row;
  Pitch in, out;
  u64 peers;          // array: by rank, where what this rank reaches into is mapped; 0 where all is staged
  u64 peer_offset;    // where rank 0's buffer begins in that
  u64 peer_step;      // how much further each next rank's does
  u64 slice;          // of a part, that one rank reduces: in a two-shot; else the part
  u64 chunk;          // of a slice, that a block moves at a time: a multiple of 16
  u32 rounds;         // chunks of block 0
  u32 last;           // blocks that have as many; the others have one less
  u32 slots;          // chunks of staging that a block has for each writer, in a ring
  u32 ahead;          // how many chunks are under way before the first is awaited
  u32 root;           // the one rank that all is for, or from; EVERY_RANK for none
  u32 receives;       // whether this rank gets a result
  u32 group_completion;  // whether all ranks have completed when this one has
  u32 plain;          // whether inputs and outputs, peers' included, are whole vectors at addresses of theirs
  u64 blocks;         // array of Block, of an operation that is given any
  u64 block_count;
  u32 op;             // the operator, of a kernel that has several
  u32 reserved;
};

// A range of a rank's input of which one rank gets the reduction: runs of `row` bytes, `stride` apart.
struct alignas(16) Block {
  u64 first;   // chunks of all blocks before
  u64 at;      // where it begins, from where the input does; maybe in another allocation
  u64 bytes;
  u64 row, stride;
  u64 output;  // where its owner's result goes
  u64 owner;
  u64 output_stride;  // how far apart the result's runs are
};

constexpr u32 EVERY_RANK = ~0u;

// Where rank `r`'s buffer that this rank reaches into begins.
SYMMEM_FN u64 peer_buffer(const Plan& p, u32 r) {
  return pointer<const u64>(p.peers)[r] + p.peer_offset + p.peer_step * r;
}

SYMMEM_FN Runs input_part(const Plan& p, u32 r) { return runs_of(p.input + p.in.step * r, p.row, p.in.stride); }
SYMMEM_FN Runs output_part(const Plan& p, u64 output, u32 r) {
  return runs_of(output + p.out.step * r, p.row, p.out.stride);
}

// Packets of 8 bytes each carry the vectors of a range. The two of a vector are a warp apart, so that a
// warp's stores follow each other.
SYMMEM_FN u64 packet_of(u64 vector) { return vector / 32 * 64 + vector % 32; }

SYMMEM_FN void put(u64 slot, u64 tag, const Vector& v) {
  store_pair(pointer<void>(slot), Pair{tag | v.w[0], tag | v.w[1]});
  store_pair(pointer<void>(slot + 512), Pair{tag | v.w[2], tag | v.w[3]});
}
SYMMEM_FN bool poll(u64 slot, u32 epoch, Vector& v) {
  Pair low = load_pair(pointer<void>(slot)), high = load_pair(pointer<void>(slot + 512));
  v = Vector{{(u32)low.a, (u32)low.b, (u32)high.a, (u32)high.b}};
  u32 differs = (u32)(low.a >> 32) ^ epoch | (u32)(low.b >> 32) ^ epoch | (u32)(high.a >> 32) ^ epoch | (u32)(high.b >> 32) ^ epoch;
  return differs == 0;
}

// The bytes `start..start + length` of a part.
struct Chunk {
  u64 start, length;
};

// Chunk `c` of this block, of the bytes `start..stop`: that of index block + c * grid.
SYMMEM_FN Chunk chunk_of(const Plan& p, u32 c, u64 start, u64 stop) {
  u64 at = start + (block_index() + (u64)c * grid_size()) * p.chunk;
  u64 left = at < stop ? stop - at : 0;
  return Chunk{at, left < p.chunk ? left : p.chunk};
}

// A place in the ring of chunks that a block has for each writer.
struct Ring {
  u64 at, first, end;

  SYMMEM_FN Ring(const Plan& p) {
    at = first = (u64)block_index() * p.slots * p.chunk;
    end = first + p.slots * p.chunk;
  }
  SYMMEM_FN void advance(const Plan& p) {
    at += p.chunk;
    if (at == end) at = first;
  }
};

// See the other of this name.
SYMMEM_FN bool complete(const Plan& p, const Step& step, bool ok) { return complete(p.lane, p.group_completion != 0, step, ok); }

// What an operation in packets leaves, of which `writers` are the ranks whose packets this one has taken.
SYMMEM_FN Used packets_used(const Plan& p, u32 writers) {
  const u64 vectors = (p.bytes + 15) / 16;
  const bool together = p.group_completion;
  return Used{writers, (u32)(vectors / 32 * 64), false, together, together, NONE, (u32)(vectors % 32)};
}

}  // namespace symmem

#endif  // SYMMEM_PLAN_CUH
