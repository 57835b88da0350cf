//! What the kernels of this crate are given: the structs of their headers, field by field.

use symmem_sync::gpu::SymmemLane;

use crate::all_to_all_vdev::Vdev;

/// The argument struct of an exchange by splits.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(16))]
pub(super) struct GpuPlan {
    pub lane: SymmemLane,
    pub vdev: Vdev,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use core::mem::offset_of;

    use symmem_hal::kernels::struct_fields;

    use super::*;
    use crate::gpu::units::VDEV_CUH;
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
        ];
        assert_eq!(theirs, ours);
        assert_eq!(size, size_of::<GpuPlan>());
        let (theirs, size) = struct_fields(VDEV_CUH.1, "Status", &[]).unwrap();
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
        let text = VDEV_CUH.1;
        let codes = [
            ("OVERFLOW", Finding::OVERFLOW),
            ("NEGATIVE", Finding::NEGATIVE),
            ("PAST_INPUT", Finding::PAST_INPUT),
            ("OUTSIDE_INPUT", Finding::OUTSIDE_INPUT),
            ("constexpr u32 HEAD", crate::all_to_all_vdev::HEAD as u64),
        ];
        for (name, code) in codes {
            assert_eq!(text.matches(&format!("{name} = {code}")).count(), 1, "{name}");
        }
    }
}
