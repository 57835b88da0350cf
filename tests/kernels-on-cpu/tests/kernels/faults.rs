//! Planted faults: kernels with a step of the protocol left out or weakened, each of which a scenario must
//! find. They are texts of the kernels that ship, so that a step which moves takes its fault along.

use symmem_kernels_on_cpu::{Program, Replacement};

/// A fault, and the scenario that finds it.
pub struct Fault {
    /// What is missing.
    pub name: &'static str,
    pub program: Program,
    pub scenario: &'static str,
    pub replacements: &'static [Replacement],
}

/// One replacement in one file.
macro_rules! faults {
    ($($name:literal: $program:ident $scenario:literal, $file:literal $from:literal => $to:literal;)+) => {
        &[$(Fault {
            name: $name,
            program: Program::$program,
            scenario: $scenario,
            replacements: &[Replacement { file: $file, from: $from, to: $to }],
        }),+]
    };
}

pub const FAULTS: &[Fault] = faults! {
    // Order of memory.
    "flags_raised_without_a_fence": Exchange "staged",
        "payload.cuh" "  fence_system();\n" => "";
    "flags_raised_before_the_block_has_stored": Reduce "pushed",
        "reduce.cu" "    const bool folds = j >= p.ahead && p.receives;\n" => "    const bool folds = j >= p.ahead && p.receives;\n    if (!is_worker() && j < count) raise_flags(lane, step, j + 1);\n";
    "flags_polled_without_acquiring": Exchange "staged",
        "symmem_sync.cuh" "u64 found = load_acquire(flag_at(" => "u64 found = load_relaxed(flag_at(";
    "lines_that_arrive_in_parts": Reduce "lines",
        "lines.cuh" "store_line(" => "store_whole(";
    "records_that_come_from_another_host_kept_from_this_one": Failures "mismatch",
        "symmem_sync.cuh" "    if (load_acquire(pointer<u32>(own + CONTROL_ABORT)) != 0) {\n" => "    if (false) {\n";
    "records_adopted_before_they_are_whole": Failures "mismatch",
        "symmem_sync.cuh" "store_relaxed(to + i, load_relaxed(from + i));\n  store_release(pointer<u32>(lane.host + CONTROL_ABORT), 1u);" => "store_relaxed(to + i, load_relaxed(from + i));\n  store_relaxed(pointer<u32>(lane.host + CONTROL_ABORT), 1u);";
    "records_announced_without_releasing_them": Failures "time_out",
        "symmem_sync.cuh" "store_release(pointer<u32>(page + CONTROL_ABORT), 1u);" => "store_relaxed(pointer<u32>(page + CONTROL_ABORT), 1u);";
    "puts_signalled_before_the_block_has_stored": Signals "put_with_signal",
        "signals.cu" "  block_sync();\n  if (thread_index() != 0) return;\n" => "  if (thread_index() != 0) return;\n";
    "runs_counted_while_the_warp_reads_them": Exchange "packets",
        "symmem_sync.cuh" "  warp_sync();\n" => "";
    "barriers_counted_while_the_warp_reads_them": Signals "barrier",
        "signals.cu" "  warp_sync();\n" => "";
    // Steps.
    "packets_of_which_half_is_checked": Exchange "packets",
        "plan.cuh" " | (u32)(high.a >> 32) ^ epoch | (u32)(high.b >> 32) ^ epoch;" => ";";
    "lines_of_which_some_are_checked": Reduce "lines",
        "lines.cuh" " | (p[3].w[3] ^ epoch);" => ";";
    "scrubs_that_spare_lines_nobody_wrote": Reduce "lines",
        "symmem_sync.cuh" "(writes ? 16ull * used.lines : 0)" => "(writes ? 16ull * lane.line_count : 0)";
    "begins_before_the_kernel_before_ends": Exchange "packets",
        "symmem_sync.cuh" "SYMMEM_FN bool begin(const Lane& lane) {\n  wait_for_previous_kernel();\n" => "SYMMEM_FN bool begin(const Lane& lane) {\n";
    "scrubs_left_out": Exchange "mixed",
        "symmem_sync.cuh" "if (SYMMEM_UNLIKELY(scrub_due(step.epoch))) scrub(" => "if (false) scrub(";
    "scrubs_that_spare_packets_nobody_wrote": Reduce "packets",
        "symmem_sync.cuh" " && slot % 32 < used.tail" => "";
    "scrubs_of_headers_that_are_awaited": Exchange "mixed",
        "symmem_sync.cuh" "(writes || used.together ? grid_size() : 1)" => "(writes ? grid_size() : 1)";
    "stores_before_readers_have_come": Exchange "packets",
        "symmem_sync.cuh" "return SYMMEM_LIKELY(step.settled) ||" => "return true ||";
    "settled_by_who_was_not_heard": Exchange "packets",
        "symmem_sync.cuh" "(u64)(used.writers == ALL || used.heard) << 32" => "1ull << 32";
    "rings_reused_a_round_early": Reduce "pushed",
        "reduce.cu" "const u32 free = j + p.ahead + 2 - p.slots;" => "const u32 free = j + p.ahead + 1 - p.slots;";
    "two_shots_that_end_with_their_own_part": Reduce "two_shot",
        "reduce.cu" "      ok = await_flags(lane, step, gate, count + 1);\n" => "";
    "results_of_blocks_without_their_gaps": Reduce "blocks",
        "reduce.cu" "runs_of(b.output, b.row, b.output_stride)" => "runs_of(b.output, b.row, b.row)";
    "outputs_stored_before_peers_are_in_the_call": Exchange "direct",
        "exchange.cu" "    ok = compare(p, headers, step, source, [](u32) { return true; });" => "    (void)0;";
    "group_completion_that_is_not": Exchange "copies",
        "exchange.cu" "    ok = await_flags(lane, step, gate, 1);" => "    (void)gate;";
    "calls_not_compared": Failures "mismatch",
        "symmem_sync.cuh" "if (SYMMEM_LIKELY(found.a == mine.a && found.b == mine.b)) continue;" => "continue;";
    "busy_bits_ignored": Failures "busy",
        "symmem_sync.cuh" "    busy |= found != epoch || (found & EPOCH_BUSY) != 0;" => "    (void)found;";
    "bounds_of_the_capture_instead_of_the_launch": Failures "launch_bounds",
        "symmem_sync.cuh" "if (args.launch != 0) {" => "if (false) {";
    "closed_lanes_entered": Failures "stale",
        "symmem_sync.cuh" "  if (SYMMEM_UNLIKELY((u32)p.b != ENTRY_OPEN)) {" => "  if (false) {";
    "barriers_that_miss_who_went_on": Signals "barrier",
        "signals.cu" "{ return theirs == mine || theirs == after(mine); }" => "{ return theirs == mine; }";
    "resets_that_leave_slots_full": Signals "repair",
        "signals.cu" "store_release(slot(s, sender, s.rank), EMPTY);" => "(void)sender;";
    // Of exchanges by splits.
    "messages_of_any_epoch": Vdev "packets",
        "messages.cuh" "if (found.a >> 32 == step.epoch && found.b >> 32 == step.epoch) continue;" => "continue;";
    "messages_of_the_wrong_parity": Vdev "staged",
        "vdev.cuh" "    parity = step.parity;" => "    parity = 0;";
    "messages_announced_before_the_block_has_stored": Vdev "staged",
        "messages.cuh" "  block_sync();\n  if (!is_worker()) raise_flags(m.lane, step, MESSAGE);\n" => "  if (!is_worker()) raise_flags(m.lane, step, MESSAGE);\n";
    "rows_stored_in_calls_that_differ": Vdev "mismatch",
        "messages.cuh" "if (!is_worker()) ok = headers.compare(" => "if (!is_worker()) (void)headers.compare(";
    "rows_announced_without_a_fence": Vdev "packets",
        "payload.cuh" "  fence_system();\n" => "";
    "rows_announced_before_the_block_has_stored": Vdev "packets",
        "messages.cuh" "  block_sync();\n  if (is_worker()) return true;\n" => "  if (is_worker()) return true;\n";
    "rows_not_awaited": Vdev "packets",
        "messages.cuh" "  return await_flags(lane, step, gate, ROWS, from);\n" => "  (void)gate, (void)from;\n  return true;\n";
    "last_pieces_left_out": Vdev "packets",
        "vdev.cu" "  copy_piece(move.from" => "  if (index + 1 < of.end) copy_piece(move.from";
    "lines_not_awaited": Vdev "packets",
        "vdev.cu" "return lines.poll(from, u, step.epoch);" => "lines.poll(from, u, step.epoch); return true;";
    "lines_where_lanes_scrub": Vdev "mixed",
        "vdev.cuh" "if (AT_HAND && !scrub_due(step.epoch)) most_lines" => "if (AT_HAND) most_lines";
    "lines_that_both_ranks_count_differently": Vdev "packets",
        "vdev.cuh" "source != m.me && total <= m.most_lines;" => "source != m.me && total < m.most_lines;";
    "last_rows_in_lines_left_out": Vdev "packets",
        "vdev.cuh" "(before + kept) * vectors)};" => "(before + kept - (kept > 1)) * vectors)};";
    "lines_of_several_bins_cut_short": Vdev "packets",
        "vdev.cu" "    const u32 bin = scattered_bin(rows, m.minor, at);\n    if (at" => "    const u32 bin = scattered_bin(rows, m.minor, u * Lines::VECTORS);\n    if (at";
    "rows_that_do_not_fit_moved": Vdev "packets",
        "vdev.cuh" "if (needed > m.capacity(r)) return" => "if (false) return";
    "many_rows_that_do_not_fit_moved": Vdev "staged",
        "vdev.cu" "if (overflow == NOTHING || m.p.drop) return" => "if (true) return";
    "vectors_of_two_bins_stored_as_of_one": Vdev "packets",
        "vdev.cu" "pointer<void>((vector < next ? low : high)" => "pointer<void>(low";
    "sums_of_a_chunk_alone": Vdev "packets",
        "vdev.cuh" "    before[i] += sum;\n" => "    before[i] += sum & 0;\n";
    "places_after_rows_of_later_ranks": Vdev "packets",
        "vdev.cuh" "m.words, m.me);" => "m.words, m.me + 1);";
    "own_rows_stored_where_the_first_piece_went": Vdev "packets",
        "vdev.cu" "    offset = move.offset;\n" => "";
    "wrong_splits_passed_over": Vdev "packets",
        "messages.cuh" "if (m.word(r, 1) != 0) wrong = r;" => "if (false) wrong = r;";
    "dropped_rows_not_counted": Vdev "packets",
        "messages.cuh" "store_relaxed(count, load_relaxed(count) + dropped);" => "(void)count;";
    "verdicts_that_replace_another": Vdev "packets",
        "messages.cuh" "if (load_acquire(&status->rank) != 0) return;" => "";
    "verdicts_told_without_releasing_them": Vdev "packets",
        "messages.cuh" "store_release(&status->rank, verdict.rank);" => "store_relaxed(&status->rank, verdict.rank);";
    "scrubs_that_spare_messages_nobody_wrote": Vdev "packets",
        "vdev.cu" "m.is_staged() ? 0 : m.words, moves" => "lane.packet_count, moves";
    "warps_that_begin_in_part": Routing "mismatch",
        "dispatch.cu" "if (block_any(!enter(lane, step))) return;" => "if (!enter(lane, step)) return;";
    // Of routed rows.
    "own_rows_stored_once": Routing "routed",
        "routing.cuh" "    is_first |= rank == t.lane.rank && !t.shape.by_rank;\n" => "";
    "routed_rows_stored_in_calls_that_differ": Routing "mismatch",
        "messages.cuh" "if (!is_worker()) ok = headers.compare(" => "if (!is_worker()) (void)headers.compare(";
    "routed_rows_announced_without_a_fence": Routing "routed",
        "payload.cuh" "  fence_system();\n" => "";
    "routed_rows_not_awaited": Routing "routed",
        "messages.cuh" "      return found >> 32 == step.epoch && (u32)found >= ROWS;\n" => "      (void)found;\n      return true;\n";
    "rows_not_spread": Routing "routed",
        "dispatch.cu" "if (ok) spread(p, shared);" => "(void)spread;";
    "rows_spread_before_other_blocks_have_stored_theirs": Routing "routed",
        "messages.cuh" "flags = lane.world * blocks;" => "flags = lane.world;";
    "further_places_of_a_token_forgotten": Routing "routed",
        "routing.cuh" "      if (i > k) next = i;\n" => "";
    "last_pieces_not_spread": Routing "routed",
        "dispatch.cu" "pieces_of(p.row) + (p.scales != 0 ? pieces_of(p.scale_row) : 0)" => "pieces_of(p.row)";
    "places_counted_twice": Routing "routed",
        "routing.cuh" "before = count_ones(same & ((1u << me) - 1));" => "before = count_ones(same & ((2u << me) - 1));";
    "places_that_forget_other_blocks": Routing "routed",
        "routing.cuh" "      if ((same & earlier) != 0) shared_add(&c.before[bin], count_ones(same & earlier));\n" => "      (void)earlier;\n";
    "choices_counted_by_each_of_those_that_say_the_same": Routing "routed",
        "routing.cuh" "if (bin == ~0u || (same & ((1u << me) - 1)) != 0) continue;" => "if (bin == ~0u) continue;";
    "places_past_the_end": Routing "routed",
        "routing.cuh" "row < c.end[bin] ? place_at(t.shape.owner(expert), row) : NOWHERE" => "place_at(t.shape.owner(expert), row)";
    "windows_placed_by_the_counts_of_others": Routing "routed",
        "dispatch.cu" "      count_rows(m.tokens, base);\n" => "";
    "tokens_sent_more_than_once_to_a_rank": Routing "routed",
        "routing.cuh" "if (bin >= WINDOW || has_before(t, token, k, t.shape.first(rank), t.shape.first(rank + 1))) continue;" => "if (bin >= WINDOW) continue;";
    "tokens_that_do_not_fit_moved": Routing "routed",
        "dispatch.cu" "if (overflow == NOTHING || m.p.drop) return Verdict{};" => "if (true) return Verdict{};";
    "wrong_choices_passed_over": Routing "routed",
        "routing.cuh" "  if (wrong != NOTHING) return finding(NO_EXPERT" => "  if (false) return finding(NO_EXPERT";
    "wrong_numbers_of_tokens_passed_over": Routing "routed",
        "routing.cuh" "    if (found > t.given.rows) return" => "    if (false) return";
    "records_of_the_wrong_choice": Routing "routed",
        "routing.cuh" "row_of(t.place(token * t.each + first))" => "row_of(place)";
    "tokens_of_a_dispatch_before": Routing "routed",
        "dispatch.cu" "  if (warp_thread() == 0) store_element<u64>(pointer<u64>(r.tokens), m.tokens.count);\n" => "";
    "scrubs_that_spare_counts_nobody_wrote": Routing "routed",
        "dispatch.cu" "m.is_staged() || !anew ? 0 : m.words, moves" => "!anew ? 0 : lane.packet_count, moves";
    "scales_of_quantised_rows_by_a_reciprocal": Routing "routed",
        "routing.cuh" "bits_of(x[i] / divisor)" => "bits_of(x[i] * (1.0f / divisor))";
    "elements_past_the_largest_not_clamped": Routing "routed",
        "routing.cuh" "exceeds ? bits_of(largest) | (y & 0x80000000) : y" => "exceeds ? y : y";
    "sums_of_rows_that_are_overwritten": Routing "routed",
        "combine.cu" "    ok = part(lane, step);\n" => "";
    "sums_in_the_order_of_last_choices": Routing "routed",
        "combine.cuh" "place = load_element<u64>(places + k);" => "place = load_element<u64>(places + (each - 1 - k));";
    "sums_whose_products_are_not_rounded": Routing "routed",
        "combine.cuh" "acc[i] = is_first ? product : acc[i] + product;" => "acc[i] = is_first ? product : (float)((double)acc[i] + (double)weight * widened(v, i));";
    "sums_of_some_groups_of_rows": Routing "routed",
        "combine.cuh" "more = by_rank ? least_place != NOWHERE : k < each;" => "more = false;";
    // Of halves.
    "halves_of_calls_that_differ": Landing "mismatch",
        "messages.cuh" "    ok = headers.compare(lane, step, [](u32) { return true; });\n    // Headers" => "    (void)headers.compare(lane, step, [](u32) { return true; });\n    // Headers";
    "halves_that_do_not_meet": Landing "halves",
        "messages.cuh" "    ok = headers.compare(lane, step, [](u32) { return true; });\n    // Headers" => "    // Headers";
    "halves_that_acquire_nothing": Landing "halves",
        "messages.cuh" "    // Headers are no acquiring loads.\n    fence_system();\n" => "";
    "arrivals_in_the_place_of_another": Landing "halves",
        "landing.cu" "p.lane.rank * (sizeof(Arrival) / 8);" => "(p.lane.rank + 1) % p.lane.world * (sizeof(Arrival) / 8);";
    "arrivals_of_tokens_instead_of_rows": Landing "halves",
        "landing.cu" "wrong.what != 0 ? 0 : t.counted.total[i]" => "wrong.what != 0 ? 0 : t.count";
    "arrivals_in_spite_of_wrong_tokens": Landing "halves",
        "landing.cu" "if (word(r, 1) != 0) wrong = r;" => "if (false) wrong = r;";
    "rows_back_in_the_place_of_another": Landing "halves",
        "landing.cu" "p.offset + lane.rank * place" => "p.offset + target * place";
    "scrubs_of_halves_that_spare_flags": Landing "halves",
        "landing.cu" "Used{ALL, 0, of_group}" => "Used{ALL, 0, true}";
    // Found by delays of one rank.
    "stalled_scrubs_of_messages_that_are_awaited": Vdev "late_blocks",
        "vdev.cu" "m.is_staged() ? 0 : m.words, moves" => "0, moves";
    "stalled_rows_not_awaited": Vdev "stalls",
        "messages.cuh" "  return await_flags(lane, step, gate, ROWS, from);\n" => "  (void)gate, (void)from;\n  return true;\n";
    "stalled_routed_rows_not_awaited": Routing "stalls",
        "messages.cuh" "      return found >> 32 == step.epoch && (u32)found >= ROWS;\n" => "      (void)found;\n      return true;\n";
    "stalled_stores_before_readers_have_come": Exchange "stalls",
        "symmem_sync.cuh" "return SYMMEM_LIKELY(step.settled) ||" => "return true ||";
    "stalled_rings_reused_a_round_early": Reduce "stalls",
        "reduce.cu" "const u32 free = j + p.ahead + 2 - p.slots;" => "const u32 free = j + p.ahead + 1 - p.slots;";
    "stalled_barriers_that_miss_who_went_on": Signals "stalls",
        "signals.cu" "{ return theirs == mine || theirs == after(mine); }" => "{ return theirs == mine; }";
    "stalled_for_no_time": Failures "stalls",
        "symmem_stalls.cuh" "  fetch_increment(counts + 1, ~0u);\n" => "  return;\n";
};
