//! What the kernels of this crate are given: the structs of their headers, field by field.

use symmem_sync::gpu::SymmemLane;

use crate::all_to_all_vdev::Vdev;
use crate::landing::plan::{ReceiveBackPlan, ReceivePlan, SendBackPlan, SendPlan};
use crate::routing::plan::{CombinePlan, DispatchPlan};

/// The argument struct of an exchange by splits.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(16))]
pub(super) struct GpuPlan {
    pub lane: SymmemLane,
    pub vdev: Vdev,
    /// Rows of one rank for another that go in lines, at most.
    pub most_lines: u64,
    pub reserved: u64,
}

/// The argument struct of a kernel of routed rows.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub(super) struct OnGpu<P> {
    pub lane: SymmemLane,
    pub plan: P,
}

// SAFETY: both parts are without gaps, and of sizes that leave none between or after them: asserted below for
// each.
#[allow(unsafe_code, reason = "says that there is no padding")]
unsafe impl<P: bytemuck::Pod> bytemuck::NoUninit for OnGpu<P> {}

macro_rules! without_gaps {
    ($($plan:ty),+) => {
        const _: () = {
            $(assert!(size_of::<OnGpu<$plan>>() == size_of::<SymmemLane>() + size_of::<$plan>());)+
        };
    };
}

without_gaps!(DispatchPlan, CombinePlan, SendPlan, ReceivePlan, SendBackPlan, ReceiveBackPlan);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use core::mem::offset_of;

    use symmem_hal::kernels::struct_fields;

    use super::*;
    use crate::gpu::units::{MESSAGES_CUH, ROUTED_CUH, ROUTING_CUH, VDEV_CUH};
    use crate::landing::plan::Arrival;
    use crate::routing::plan::{self, NOWHERE, Payload, RANK_SHIFT, Routed};
    use crate::routing::{Layout, shape};
    use crate::verdict::{Finding, Record};

    macro_rules! offsets {
        ($t:ty: $($field:ident).+) => {
            (last!($($field).+).to_owned(), offset_of!($t, $($field).+))
        };
    }
    macro_rules! last {
        ($head:ident . $field:ident) => {
            stringify!($field)
        };
        ($field:ident) => {
            stringify!($field)
        };
    }

    #[test]
    fn kernels_have_the_same_structs() {
        let known = [("Lane", size_of::<SymmemLane>(), 16)];
        let (theirs, size) = struct_fields(VDEV_CUH.1, "Vdev", &known).unwrap();
        let ours = [
            offsets!(GpuPlan: lane),
            offsets!(GpuPlan: vdev.input),
            offsets!(GpuPlan: vdev.output),
            offsets!(GpuPlan: vdev.in_splits),
            offsets!(GpuPlan: vdev.in_offsets),
            offsets!(GpuPlan: vdev.out_splits),
            offsets!(GpuPlan: vdev.status),
            offsets!(GpuPlan: vdev.peers),
            offsets!(GpuPlan: vdev.peer_offset),
            offsets!(GpuPlan: vdev.row),
            offsets!(GpuPlan: vdev.input_rows),
            offsets!(GpuPlan: vdev.capacity),
            offsets!(GpuPlan: vdev.align),
            offsets!(GpuPlan: vdev.minor),
            offsets!(GpuPlan: vdev.by_bin),
            offsets!(GpuPlan: vdev.drop),
            offsets!(GpuPlan: vdev.group_completion),
            offsets!(GpuPlan: most_lines),
        ];
        assert_eq!(theirs, ours);
        assert_eq!(size, size_of::<GpuPlan>());
        let (theirs, size) = struct_fields(MESSAGES_CUH.1, "Status", &[]).unwrap();
        let ours = [
            offsets!(Record: rank),
            offsets!(Record: finding.what),
            offsets!(Record: finding.value),
            offsets!(Record: finding.limit),
            offsets!(Record: dropped),
        ];
        assert_eq!(theirs, ours);
        // The rest of a record's lines is nobody's.
        assert!(size <= size_of::<Record>());
    }

    #[test]
    fn kernels_have_the_same_numbers() {
        let text = MESSAGES_CUH.1;
        let codes = [
            ("OVERFLOW", Finding::OVERFLOW),
            ("NEGATIVE", Finding::NEGATIVE),
            ("PAST_INPUT", Finding::PAST_INPUT),
            ("OUTSIDE_INPUT", Finding::OUTSIDE_INPUT),
            ("NO_EXPERT", Finding::NO_EXPERT),
            ("WRONG_TOKENS", Finding::TOKENS),
            ("constexpr u32 HEAD", crate::all_to_all_vdev::HEAD as u64),
            ("constexpr u32 HEAD", shape::HEAD as u64),
        ];
        for (name, code) in codes {
            assert_eq!(text.matches(&format!("{name} = {code}")).count(), 1, "{name}");
        }
        let compact = Layout::Compact { align: 0 }.code().0;
        let (padded, by_rank) = (Layout::Padded { rows: 0 }.code().0, Layout::RankMajor.code().0);
        let layouts = format!("COMPACT = {compact}, PADDED = {padded}, RANK_MAJOR = {by_rank};");
        assert_eq!(ROUTED_CUH.1.matches(&layouts).count(), 1);
        assert_eq!(NOWHERE, !0);
        let places = format!("NOWHERE = ~0ull;\nconstexpr u32 RANK_SHIFT = {RANK_SHIFT};");
        assert_eq!(ROUTING_CUH.1.matches(&places).count(), 1);
    }

    /// That a struct of a kernel has the fields of ours.
    macro_rules! same {
        ($name:literal is $t:ty: $($($field:ident).+),+) => {
            let known = [("Lane", size_of::<SymmemLane>(), 16)];
            let (theirs, size) = struct_fields(ROUTED_CUH.1, $name, &known).unwrap();
            assert_eq!(theirs, [$(offsets!($t: $($field).+)),+], $name);
            assert_eq!(size, size_of::<$t>(), $name);
        };
    }

    #[test]
    fn kernels_of_routed_rows_have_the_same_structs() {
        same!("Routed" is Routed: places, groups, tokens, counts, status, experts, max_tokens, capacity, rows,
            choices, layout, group_completion);
        same!("Payload" is Payload: source, target, peers, offset, source_row, row, dtype, scales, scale_peers,
            scale_offset, scale_row);
        same!("Record" is plan::Record: source, token, choice, weight, from, next);
        same!("Arrival" is Arrival: rows, finding.what, finding.value, finding.limit);
        same!("Dispatch" is OnGpu<DispatchPlan>: lane, plan.routed, plan.payloads, plan.indices, plan.weights,
            plan.count, plan.source_rows, plan.records, plan.record_peers, plan.record_offset, plan.record_bytes,
            plan.payload_count, plan.index, plan.drop, plan.shows);
        same!("DispatchSend" is OnGpu<SendPlan>: lane, plan.routed, plan.payload, plan.indices, plan.weights,
            plan.count, plan.source_rows, plan.record_peers, plan.record_offset, plan.record_bytes,
            plan.arrival_peers, plan.arrival_offset, plan.index);
        same!("DispatchReceive" is OnGpu<ReceivePlan>: lane, plan.routed, plan.arrivals);
        same!("CombineSend" is OnGpu<SendBackPlan>: lane, plan.routed, plan.rows, plan.row, plan.peers, plan.offset);
        // Elements of a row are a count here.
        let known = [("Lane", size_of::<SymmemLane>(), 16)];
        let (theirs, size) = struct_fields(ROUTED_CUH.1, "Combine", &known).unwrap();
        let theirs: Vec<_> = theirs.into_iter().map(|(_, at)| at).collect();
        macro_rules! at {
            ($($($field:ident).+),+) => { [$(offset_of!(OnGpu<CombinePlan>, $($field).+)),+] };
        }
        let ours = at!(
            lane,
            plan.routed,
            plan.peers,
            plan.offset,
            plan.count,
            plan.output,
            plan.output_rows,
            plan.weights,
            plan.dtype
        );
        assert_eq!(theirs, ours);
        assert_eq!(size, size_of::<OnGpu<CombinePlan>>());
        let (theirs, size) = struct_fields(ROUTED_CUH.1, "CombineReceive", &known).unwrap();
        let rows = offset_of!(OnGpu<ReceiveBackPlan>, plan.rows);
        assert_eq!(theirs, [("combine".to_owned(), 0), ("rows".to_owned(), rows)]);
        assert_eq!(size, size_of::<OnGpu<ReceiveBackPlan>>());
    }
}
