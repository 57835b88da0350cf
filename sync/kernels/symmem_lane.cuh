// symmem_lane.cuh: one lane of a group as a kernel is given it, and where its words lie.
//
// Public, and all of it plain arithmetic: what is done with those words is in symmem_sync.cuh.

#ifndef SYMMEM_LANE_CUH
#define SYMMEM_LANE_CUH

#include "symmem.cuh"

namespace symmem {

// ------------------------------------------------------------------------------- arguments

// One lane of a group as one rank's kernel is given it. Addresses are this rank's.
struct alignas(16) Lane {
  u64 own;             // where this rank's lane begins
  u64 peers[8];        // by rank: where its lane begins; of at most 8 ranks
  u64 table;           // array of the same, of any number of ranks
  u64 workspace_back;  // from a lane's beginning back to that of its workspace: the control page
  u64 host;            // this rank's control page in host memory
  u64 hosts;           // array: by rank, its control page in host memory; 0 of one on another host
  u64 headers;         // offsets from a lane's beginning
  u64 flags;
  u64 packets;
  u64 lines;
  u64 staging;
  u64 staging_unit;    // bytes of staging for each (parity, writer)
  u64 signature;       // what every rank's call must equal
  u64 issue;           // operations issued on the lane, this one included; not for one in a graph
  u64 runs;            // array: by block, runs of this node of a graph; 0 for none
  u64 deadline_ns;     // bound on a wait, from its first look
  u64 cancel;          // in host memory: u32 that ends the waits once it is not 0; 0 for none
  u64 launch;          // the Bounds of each run, in a graph: instead of the two above; 0 for none
  u32 rank, world;
  u32 max_blocks;      // epoch records, the bound on every grid
  u32 packet_count;    // packet slots for each (parity, writer)
  u32 line_count;      // lines for each (parity, writer)
  u32 index;           // of the lane
  u32 operation;       // its code
  u32 checked;         // whether entry sets a busy bit
  u32 patience;        // factor on the bound of a launch of a graph
  u32 reserved;
};

// The epoch as one block keeps it; at the beginning of a lane, one for each of max_blocks.
struct alignas(16) EpochRecord {
  u32 epoch;    // bit 31: an operation is under way (checked mode)
  u32 settled;  // whether the last operation had received a word from every peer
  u32 entry;    // ENTRY_OPEN or why no operation may begin
  u32 reserved;
};

constexpr u32 EPOCH_MIN = 2, EPOCH_MAX = 0x7fffffff, EPOCH_BUSY = 1u << 31;
SYMMEM_FN u32 next_epoch(u32 epoch) { return epoch == EPOCH_MAX ? EPOCH_MIN : epoch + 1; }
SYMMEM_FN u32 previous_epoch(u32 epoch) { return epoch == EPOCH_MIN ? EPOCH_MAX : epoch - 1; }
constexpr u32 ENTRY_OPEN = 0, ENTRY_FAILED = 1, ENTRY_RETIRED = 2;

constexpr u32 REASON_TIMED_OUT = 1, REASON_PEER_LOST = 2, REASON_CALL_MISMATCH = 3, REASON_LANE_BUSY = 4,
              REASON_STALE_GRAPH = 5, REASON_CANCELLED = 6, REASON_PEER_LEFT = 8;

constexpr u64 REPLAY = 1ull << 63;

// Offsets in a control page, in device and in host memory alike.
constexpr u64 CONTROL_CLAIM = 0, CONTROL_ABORT = 4, CONTROL_STALE = 8, CONTROL_STALL = 16, CONTROL_LOST = 256;

SYMMEM_FN u64 control_masks(u32 world) { return (world + 63) / 64; }
SYMMEM_FN u64 control_left(u32 world) { return CONTROL_LOST + 8 * control_masks(world); }
SYMMEM_FN u64 control_record(u32 world) { return CONTROL_LOST + (16 * control_masks(world) + 127) / 128 * 128; }

// ------------------------------------------------------------------------------- addresses

template <class T> SYMMEM_FN T* pointer(u64 address) { return reinterpret_cast<T*>(address); }

// Where rank `r`'s lane begins. W is the number of ranks where that is known, else 0.
template <u32 W = 0> SYMMEM_FN u64 lane_of(const Lane& lane, u32 r) {
  if constexpr (W != 0 && W <= 8) return lane.peers[r];
  return lane.world <= 8 ? lane.peers[r] : pointer<const u64>(lane.table)[r];
}
SYMMEM_FN EpochRecord* epoch_record(const Lane& lane, u32 block) {
  return pointer<EpochRecord>(lane.own) + block;
}
// The header that `block` of `writer` shows to the rank whose lane begins at `base`: two pairs.
SYMMEM_FN u64 header_at(const Lane& lane, u64 base, u32 parity, u32 writer, u32 block) {
  return base + lane.headers + ((u64)(parity * lane.world + writer) * lane.max_blocks + block) * 32;
}
SYMMEM_FN u64* flag_at(const Lane& lane, u64 base, u32 parity, u32 writer, u32 block) {
  return pointer<u64>(base + lane.flags) + ((u64)(parity * lane.world + writer) * lane.max_blocks + block);
}
// Which of a reader's places for packets and staging is `writer`'s: no rank has one in its own memory.
SYMMEM_FN u64 place_of(const Lane& lane, u32 parity, u32 writer, u32 reader) {
  return parity * (lane.world - 1) + writer - (writer > reader);
}
// The first packet slot of this rank in `reader`'s memory, and of `writer` in this rank's.
template <u32 W = 0> SYMMEM_FN u64 packets_to(const Lane& lane, u32 parity, u32 reader) {
  return lane_of<W>(lane, reader) + lane.packets + place_of(lane, parity, lane.rank, reader) * lane.packet_count * 16;
}
SYMMEM_FN u64 packets_from(const Lane& lane, u32 parity, u32 writer) {
  return lane.own + lane.packets + place_of(lane, parity, writer, lane.rank) * lane.packet_count * 16;
}
// The same of lines, which are 128 bytes each.
template <u32 W = 0> SYMMEM_FN u64 lines_to(const Lane& lane, u32 parity, u32 reader) {
  return lane_of<W>(lane, reader) + lane.lines + place_of(lane, parity, lane.rank, reader) * lane.line_count * 128;
}
SYMMEM_FN u64 lines_from(const Lane& lane, u32 parity, u32 writer) {
  return lane.own + lane.lines + place_of(lane, parity, writer, lane.rank) * lane.line_count * 128;
}
// The same of staging.
template <u32 W = 0> SYMMEM_FN u64 staging_to(const Lane& lane, u32 parity, u32 reader) {
  return lane_of<W>(lane, reader) + lane.staging + place_of(lane, parity, lane.rank, reader) * lane.staging_unit;
}
SYMMEM_FN u64 staging_from(const Lane& lane, u32 parity, u32 writer) {
  return lane.own + lane.staging + place_of(lane, parity, writer, lane.rank) * lane.staging_unit;
}

}  // namespace symmem

#endif  // SYMMEM_LANE_CUH
