//! A thread whose floating-point environment somebody changed.

use symmem_hal::types::DType;

use super::{Level, reduce};
use crate::numerics::environment::{DefaultEnvironment, register};
use crate::numerics::{BlockQuantiser, ReduceOp, WeightedSum};

#[cfg(target_arch = "x86_64")]
/// Round down, flush to zero, denormals are zero, nothing trapped.
const CHANGED: register::Value = 0x1f80 | 1 << 13 | 1 << 15 | 1 << 6;
#[cfg(target_arch = "aarch64")]
/// Round down, flush to zero, default NaN.
const CHANGED: register::Value = 1 << 25 | 1 << 24 | 2 << 22;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[test]
fn the_callers_environment_changes_no_bit_and_is_kept() {
    // Subnormals of each type, and a sum whose rounding depends on the direction.
    let rows = [
        (DType::F64, 1, 2),
        (DType::F32, 1, 2),
        (DType::BF16, 1, 2),
        (DType::F32, 0x3f80_0000, 0x3380_0001),
    ];
    for level in Level::available() {
        for (dtype, a, b) in rows {
            let columns = [vec![a; 40], vec![b; 40]];
            let expected = reduce(level, dtype, ReduceOp::Sum, &columns);
            let before = register::read();
            // SAFETY: until it is put back nothing here computes with floats but the reduction.
            unsafe { register::write(CHANGED) };
            let found = reduce(level, dtype, ReduceOp::Sum, &columns);
            let after = register::read();
            // SAFETY: the value that the thread had.
            unsafe { register::write(before) };
            assert_eq!(after & register::CONTROL, CHANGED & register::CONTROL);
            assert_eq!(found, expected, "{dtype} at {level:?}");
            assert_ne!(found[0], 0);
        }
    }
}

/// A product and a scale that are subnormals.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[test]
fn nor_does_it_change_weighted_sums_and_blocks() {
    let x = [f32::MIN_POSITIVE; 40];
    let run = || {
        let (mut sum, mut codes, mut scale) = ([0f32; 40], [0u8; 40], 0f32);
        let rows = [(0.5, x.as_ptr().cast::<u8>()); 3];
        let (weighted, blocks) = (WeightedSum::new(DType::F32), BlockQuantiser::new(DType::F32));
        // SAFETY: every buffer holds 40 elements and belongs to this closure.
        unsafe {
            weighted.unwrap().sum(&rows, sum.as_mut_ptr().cast(), 40);
            blocks.unwrap().quantise(x.as_ptr().cast(), 40, codes.as_mut_ptr(), &raw mut scale);
        }
        (sum.map(f32::to_bits), codes, scale.to_bits())
    };
    let expected = run();
    let before = register::read();
    // SAFETY: until it is put back nothing here computes with floats but the loops under test.
    unsafe { register::write(CHANGED) };
    let found = run();
    // SAFETY: the value that the thread had.
    unsafe { register::write(before) };
    assert_eq!(found, expected);
    assert_eq!(expected.0[0], 3 << 22);
    assert_eq!((expected.1[0], expected.2), (0x7e, (1 << 23) / 448 + 1));
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[test]
fn entering_is_undone_once() {
    let before = register::read();
    // SAFETY: put back below; nothing here computes with floats.
    unsafe { register::write(CHANGED) };
    {
        let _outer = DefaultEnvironment::enter();
        assert_eq!(register::read() & register::CONTROL, register::DEFAULT);
        let _inner = DefaultEnvironment::enter();
    }
    let after = register::read();
    // SAFETY: the value that the thread had.
    unsafe { register::write(before) };
    assert_eq!(after & register::CONTROL, CHANGED);
}
