//! The model against values worked out by hand, and against the processor where it has the format.
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

use symmem_hal::types::{DType, ReduceOp};

use super::float::{F32, Format};
use super::reduce::{element, reduce};
use crate::support::random::Random;

#[test]
fn f32_rounds_as_the_processor_does() {
    let mut random = Random::new(1, &[]);
    for _ in 0..200_000 {
        let value = f64::from_bits(random.next());
        if !value.is_nan() {
            assert_eq!(F32.encode(value), u64::from((value as f32).to_bits()), "{value:e}");
        }
        // Near the range of f32, where almost all random f64 are not.
        let exponent = 1023 - 160 + random.below(300);
        let value = f64::from_bits(random.next() & !(0x7ff << 52) | exponent << 52);
        assert_eq!(F32.encode(value), u64::from((value as f32).to_bits()), "{value:e}");
    }
    for code in [0u32, 1, 0x007f_ffff, 0x0080_0000, 0x7f7f_ffff, 0x7f80_0000, 0x8000_0001] {
        assert_eq!(F32.decode(code.into()), f64::from(f32::from_bits(code)));
    }
}

#[test]
fn every_code_of_the_narrow_formats_round_trips() {
    for dtype in [DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2] {
        let format = Format::of(dtype).unwrap();
        for code in 0..1u64 << (8 * dtype.size()) {
            let value = format.decode(code);
            let expected = if value.is_nan() { format.nan() } else { code };
            assert_eq!(format.encode(value), expected, "{dtype} {code:#x}");
        }
    }
}

#[test]
fn known_codes() {
    let e4m3 = Format::of(DType::F8E4M3).unwrap();
    assert_eq!(e4m3.decode(0x7e), 448.0);
    assert_eq!(e4m3.encode(464.0), 0x7e);
    assert_eq!(e4m3.encode(464.01), 0x7f);
    assert_eq!(e4m3.encode(f64::NEG_INFINITY), 0x7f);
    assert_eq!(e4m3.decode(0x01), 1.0 / 512.0);
    let e5m2 = Format::of(DType::F8E5M2).unwrap();
    assert_eq!((e5m2.decode(0x7b), e5m2.encode(61440.0)), (57344.0, 0x7c));
    let f16 = Format::of(DType::F16).unwrap();
    assert_eq!((f16.encode(65519.99), f16.encode(-65520.0)), (0x7bff, 0xfc00));
    assert_eq!(f16.encode(1.5 * 2f64.powi(-24)), 2);
    let bf16 = Format::of(DType::BF16).unwrap();
    assert_eq!(
        (bf16.encode(1.0), bf16.encode(1.001_953_125), bf16.nan()),
        (0x3f80, 0x3f80, 0x7fff)
    );
}

#[test]
fn one_operation_of_f32_is_the_processors() {
    let mut random = Random::new(2, &[]);
    for _ in 0..100_000 {
        let [a, b] = [0; 2].map(|_| f32::from_bits(random.next() as u32));
        let codes = [a, b].map(|x| u64::from(x.to_bits()));
        for (op, value) in
            [(ReduceOp::Sum, a + b), (ReduceOp::Product, a * b), (ReduceOp::Avg, (a + b) / 2.0)]
        {
            let expected = if value.is_nan() { 0x7fff_ffff } else { value.to_bits() };
            assert_eq!(element(DType::F32, op, &codes), u64::from(expected), "{op} {a:e} {b:e}");
        }
    }
}

#[test]
fn zeros_and_nans_of_extremes() {
    let (zero, negative) = (0.0f64.to_bits(), (-0.0f64).to_bits());
    let of = |op, codes: &[u64]| element(DType::F64, op, codes);
    assert_eq!(of(ReduceOp::Min, &[zero, negative]), negative);
    assert_eq!(of(ReduceOp::Min, &[negative, zero]), negative);
    assert_eq!(of(ReduceOp::Max, &[negative, zero]), zero);
    assert_eq!(of(ReduceOp::Max, &[zero, negative]), zero);
    let nan = 0xfff8_0000_0000_1234;
    for op in [ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum] {
        assert_eq!(of(op, &[zero, nan, zero]), 0x7fff_ffff_ffff_ffff);
        assert_eq!(of(op, &[nan]), 0x7fff_ffff_ffff_ffff, "alone");
    }
    assert_eq!(of(ReduceOp::Sum, &[negative]), negative);
}

#[test]
fn integers() {
    let bytes = |values: &[i8]| values.iter().map(|v| v.to_ne_bytes()[0]).collect::<Vec<u8>>();
    let ranks = [bytes(&[100, -7, -128, 1]), bytes(&[100, 2, -128, 2]), bytes(&[1, 0, 1, 4])];
    for (op, expected) in [
        (ReduceOp::Sum, [-55, -5, 1, 7]),
        (ReduceOp::Avg, [67, -1, -85, 2]),
        (ReduceOp::Min, [1, -7, -128, 1]),
        (ReduceOp::Max, [100, 2, 1, 4]),
        (ReduceOp::Product, [16, 0, 0, 8]),
        (ReduceOp::And, [0, 0, 0, 0]),
        (ReduceOp::Or, [101, -5, -127, 7]),
        (ReduceOp::Xor, [1, -5, 1, 7]),
    ] {
        assert_eq!(reduce(DType::I8, op, &ranks), bytes(&expected), "{op}");
    }
    assert_eq!(element(DType::U64, ReduceOp::Avg, &[u64::MAX; 3]), u64::MAX);
    assert_eq!(element(DType::I64, ReduceOp::Avg, &[1 << 63; 3]), 1 << 63);
    assert_eq!(element(DType::U64, ReduceOp::Product, &[u64::MAX, u64::MAX, 3]), 3);
}
