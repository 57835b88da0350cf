// routed.cuh: the argument blocks of kernels of routed rows, and what ranks write into each other's memory.

#ifndef SYMMEM_ROUTED_CUH
#define SYMMEM_ROUTED_CUH

#include "symmem_sync.cuh"

namespace symmem {

// What every kernel of a routing is given of it. Addresses are this rank's.
struct alignas(16) Routed {
  u64 places;      // array: u64, of each token and choice, the rank and row that it went to
  u64 groups;      // array: i64, rows of each local expert or from each source, then where they begin
  u64 tokens;      // u64: tokens of this rank in the last dispatch
  u64 counts;      // array: u64, this rank's rows for each bin
  u64 status;      // this lane's Status
  u64 experts;     // of all ranks
  u64 max_tokens;  // of a rank
  u64 capacity;    // rows of a rank
  u64 rows;        // of the layout: a multiple, or for each expert
  u32 choices;
  u32 layout;
  u32 group_completion;
  u32 reserved[3];
};
constexpr u32 COMPACT = 1, PADDED = 2, RANK_MAJOR = 3;

// Rows of one tensor that travel, or two: quantised rows and their scales.
struct alignas(16) Payload {
  u64 source, target;   // this rank's rows, one for each token; and where those that it receives go
  u64 peers, offset;    // array: by rank, where its allocation of the target is mapped; where the target begins in that
  u64 source_row, row;  // bytes
  u32 dtype;            // what is quantised; 0 where rows are copied
  u32 reserved[3];
  u64 scales, scale_peers, scale_offset, scale_row;  // as of the target, of a quantised row's; scales is 0 for none
};

// What a receiver is told of a row. Where rows lie by rank, a word for each choice follows: which of the
// receiver's experts, -1 for another's or none, and its weight.
struct alignas(16) Record {
  u32 source, token;
  u32 choice, weight;  // the latter a float
  u64 from;            // the row that the payload was stored in
  u64 next;            // the token's next row here, which it is to be copied to: ~0 for none
};

// What a rank tells another of the rows that it has sent there, in halves.
struct alignas(16) Arrival {
  u64 rows;
  u64 what, value, limit;  // what is wrong with its tokens, if anything
};

// ------------------------------------------------------------------------------- dispatch, combine

struct alignas(16) Dispatch {
  Lane lane;
  Routed routed;
  Payload payloads[4];
  u64 indices;      // array: the expert of each token and choice; 0 to go where the last dispatch went
  u64 weights;      // array: f32 of each; 0 for 1
  u64 count;        // i64: how many tokens there are; 0 for all
  u64 source_rows;  // of the payloads' sources
  u64 records;      // of received rows: here,
  u64 record_peers, record_offset;  // and on each rank
  u64 record_bytes;
  u32 payload_count;
  u32 index;        // bytes of an index
  u32 drop;         // whether rows that do not fit are dropped
  u32 shows;        // 0
};

struct alignas(16) Combine {
  Lane lane;
  Routed routed;
  u64 peers, offset;  // array: by rank, where its allocation of the experts' rows is mapped; where they begin in that
  u64 row;            // elements of a row
  u64 output, output_rows;
  u64 weights;        // array: f32 of each token and choice; 0 for 1
  u32 dtype;
  u32 reserved[3];
};

// ---------------------------------------------------------------------------------------- halves

struct alignas(16) DispatchSend {
  Lane lane;
  Routed routed;
  Payload payload;
  u64 indices, weights, count, source_rows;  // as of a Dispatch
  u64 record_peers, record_offset, record_bytes;
  u64 arrival_peers, arrival_offset;  // array: by rank, where its Arrivals are mapped; where they begin in that
  u32 index;
  u32 reserved;
};

struct alignas(16) DispatchReceive {
  Lane lane;
  Routed routed;
  u64 arrivals;  // array of Arrival, by source
  u64 reserved;
};

struct alignas(16) CombineSend {
  Lane lane;
  Routed routed;
  u64 rows, row;      // what was made of received rows, at their places; bytes of one
  u64 peers, offset;  // array: by rank, where its landing is mapped; where that begins in that
};

struct alignas(16) CombineReceive {
  Combine combine;  // of whose rows none is another rank's memory
  u64 rows;         // what has come back, by rank
  u64 reserved;
};

}  // namespace symmem

#endif  // SYMMEM_ROUTED_CUH
