//! Blocks in f8e4m3, against scalar arithmetic in f64 and the hardware layer's conversion.

use half::{bf16, f16};
use proptest::collection::vec;
use proptest::prelude::*;
use symmem_hal::types::{DType, F8E4M3};

use super::random::element;
use super::weighted::{narrowed, widened};
use super::{Level, pack};
use crate::numerics::{BlockQuantiser, UnsupportedType};

const BLOCK: usize = 128;
const GUARD: u8 = 0xc3;

/// Codes, and bits of scales.
type Quantised = (Vec<u8>, Vec<u32>);

/// Quotients of f32 that are rounded to f64 and then to f32 are those that are rounded once.
fn divide(a: f32, b: f32) -> f32 {
    (f64::from(a) / f64::from(b)) as f32
}

fn expected(dtype: DType, elements: &[u64]) -> Quantised {
    let mut codes = Vec::new();
    let mut scales = Vec::new();
    for block in elements.chunks(BLOCK) {
        let values: Vec<f32> = block.iter().map(|&code| widened(dtype, code)).collect();
        let amax = values.iter().filter(|x| !x.is_nan()).fold(0f32, |m, x| m.max(x.abs()));
        let quotient = divide(amax, 448.0);
        let scale = if quotient > 0.0 { quotient } else { 1.0 };
        scales.push(scale.to_bits());
        codes.extend(values.iter().map(|&x| {
            let y = divide(x, scale);
            if y.is_nan() {
                0x7f
            } else if y.abs() > 448.0 {
                if y > 0.0 { 0x7e } else { 0xfe }
            } else {
                F8E4M3::from_f32(y).0
            }
        }));
    }
    (codes, scales)
}

/// Quantises with elements and codes at offsets, and checks all bytes around.
fn quantise_at(level: Level, dtype: DType, elements: &[u64], offsets: [usize; 3]) -> Quantised {
    let (count, size) = (elements.len(), dtype.size());
    let blocks = BlockQuantiser::scales(count);
    let guarded = |start: usize, bytes: usize| {
        let words = (start + bytes + 64).div_ceil(8);
        (vec![u64::from_ne_bytes([GUARD; 8]); words], start..start + bytes)
    };
    let (mut x, from) = guarded(64 + offsets[0] * size, count * size);
    let (mut out, to) = guarded(64 + offsets[1], count);
    let (mut scales, scaled) = guarded(64 + offsets[2] * 4, blocks * 4);
    bytemuck::cast_slice_mut::<_, u8>(&mut x)[from.clone()].copy_from_slice(&pack(dtype, elements));
    let before = x.clone();
    let quantiser = BlockQuantiser::at_level(level, dtype).unwrap();
    // SAFETY: the ranges are within buffers of their own.
    unsafe {
        quantiser.quantise(
            x.as_ptr().cast::<u8>().add(from.start),
            count,
            out.as_mut_ptr().cast::<u8>().add(to.start),
            scales.as_mut_ptr().cast::<u8>().add(scaled.start).cast(),
        );
    }
    assert_eq!(x, before, "the input");
    for (buffer, range) in [(&out, &to), (&scales, &scaled)] {
        let bytes: &[u8] = bytemuck::cast_slice(buffer);
        assert!(bytes[..range.start].iter().all(|&byte| byte == GUARD), "before the output");
        assert!(bytes[range.end..].iter().all(|&byte| byte == GUARD), "after the output");
    }
    let codes = bytemuck::cast_slice::<_, u8>(&out)[to].to_vec();
    let words: &[u32] = bytemuck::cast_slice(&scales);
    (codes, words[scaled.start / 4..scaled.end / 4].to_vec())
}

fn check(dtype: DType, elements: &[u64]) -> Quantised {
    let expected = expected(dtype, elements);
    for level in Level::available() {
        let (codes, scales) = quantise_at(level, dtype, elements, [0; 3]);
        assert_eq!(scales, expected.1, "{dtype} {level:?} {elements:x?}");
        for (i, (found, code)) in codes.iter().zip(&expected.0).enumerate() {
            let x = widened(dtype, elements[i]);
            let scale = f32::from_bits(scales[i / BLOCK]);
            assert_eq!(found, code, "{dtype} {level:?} {x:e} / {scale:e}: {found:#x}");
        }
    }
    expected
}

/// Quantises f32; codes and scales.
fn of(values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let elements: Vec<u64> = values.iter().map(|x| u64::from(x.to_bits())).collect();
    let (codes, scales) = check(DType::F32, &elements);
    (codes, scales.into_iter().map(f32::from_bits).collect())
}

#[test]
fn the_constants_are_those_of_the_format() {
    assert_eq!(BlockQuantiser::BLOCK, BLOCK);
    assert_eq!(BlockQuantiser::MAX, F8E4M3(0x7e).to_f32());
    assert_eq!([0, 1, 128, 129].map(BlockQuantiser::scales), [0, 1, 1, 2]);
}

#[test]
fn figures_by_hand() {
    assert_eq!(of(&[448.0, 1.0, -2.0, -0.0]), (vec![0x7e, 0x38, 0xc0, 0x80], vec![1.0]));
    assert_eq!(of(&[-896.0, 2.0]), (vec![0xfe, 0x38], vec![2.0]));
    // Each block has its own scale, and the last one may be one element.
    let mut values = [1.0; 257];
    values[128..256].fill(-4.0);
    let (codes, scales) = of(&values);
    assert_eq!(scales, [1.0 / 448.0, 4.0 / 448.0, 1.0 / 448.0]);
    assert_eq!((codes[0], codes[127], codes[128], codes[256]), (0x7e, 0x7e, 0xfe, 0x7e));
}

#[test]
fn zeros_and_nans() {
    let nan = f32::NAN;
    assert_eq!(of(&[0.0, -0.0]), (vec![0, 0x80], vec![1.0]));
    assert_eq!(of(&[nan, -nan]), (vec![0x7f, 0x7f], vec![1.0]));
    assert_eq!(
        of(&[nan, -448.0, f32::from_bits(0xff80_0001)]),
        (vec![0x7f, 0xfe, 0x7f], vec![1.0])
    );
    assert_eq!(of(&[nan, -0.0]), (vec![0x7f, 0x80], vec![1.0]));
    assert_eq!(of(&[]), (vec![], vec![]));
}

#[test]
fn infinities() {
    let infinity = f32::INFINITY;
    let (codes, scales) = of(&[infinity, -infinity, 1e30, -1.0, 0.0, -0.0, f32::NAN]);
    assert_eq!(codes, [0x7f, 0x7f, 0, 0x80, 0, 0x80, 0x7f]);
    assert_eq!(scales, [infinity]);
    let (codes, scales) = of(&[f32::MAX, -f32::MAX]);
    assert_eq!((codes, scales), (vec![0x7e, 0xfe], vec![f32::MAX / 448.0]));
}

/// Every multiple of the smallest subnormal around those where the scale begins to be one.
#[test]
fn scales_that_underflow() {
    let tiny = f32::from_bits;
    assert_eq!(of(&[tiny(224), -tiny(224), tiny(1)]), (vec![0, 0x80, 0], vec![1.0]));
    assert_eq!(of(&[tiny(225), tiny(1)]), (vec![0x76, 0x38], vec![tiny(1)]));
    // 671 / 448 is rounded to 1, and 671 to 448.
    assert_eq!(of(&[tiny(671), -tiny(671)]), (vec![0x7e, 0xfe], vec![tiny(1)]));
    for amax in (0..3000).chain((448 << 23) - 9..(448 << 23) + 9) {
        of(&[tiny(amax), -tiny(amax / 2), -tiny(amax / 3), tiny(amax.min(1)), -0.0]);
    }
}

/// All codes, what is halfway between neighbours, and the f32 next to both.
#[test]
fn ties_go_to_even() {
    for exponent in [-140, -126, -100, -3, 0, 1, 60, 118] {
        let scale = if exponent < -126 {
            f32::from_bits(1 << (exponent + 149))
        } else {
            2f32.powi(exponent)
        };
        let mut points = Vec::new();
        for code in 0..0x7e {
            let (low, high) = (F8E4M3(code).to_f32(), F8E4M3(code + 1).to_f32());
            points.extend([low, (low + high) / 2.0]);
        }
        let values: Vec<f32> = points
            .iter()
            .flat_map(|&point| {
                let bits = (point * scale).to_bits();
                [bits, bits.saturating_sub(1), bits + 1].map(f32::from_bits)
            })
            .flat_map(|x| [x, -x])
            .collect();
        for values in values.chunks(BLOCK - 1) {
            let mut block = vec![448.0 * scale];
            block.extend(values);
            assert_eq!(of(&block).1, [scale], "{exponent}");
        }
        if exponent > -120 {
            // Between codes 0x38 and 0x39, 0x39 and 0x3a.
            let (codes, _) = of(&[448.0 * scale, 1.0625 * scale, -1.1875 * scale]);
            assert_eq!(codes, [0x7e, 0x38, 0xba]);
        }
    }
}

#[test]
fn every_16_bit_pattern() {
    for dtype in [DType::F16, DType::BF16] {
        let all: Vec<u64> = (0..1 << 16).collect();
        check(dtype, &all);
        // Of different exponents in each block.
        let mixed: Vec<u64> = all.iter().map(|i| (i * 0x9e37) & 0xffff).collect();
        check(dtype, &mixed);
        let finite: Vec<u64> =
            mixed.into_iter().filter(|&code| widened(dtype, code).is_finite()).collect();
        check(dtype, &finite);
    }
}

#[test]
fn counts_of_every_remainder() {
    for dtype in BlockQuantiser::TYPES.iter().copied() {
        for count in 0..=300u64 {
            let value = |i: u64| ((i * 7919 + count) % 1009) as f32 / 13.0 - 40.0;
            check(dtype, &(0..count).map(|i| narrowed(dtype, value(i))).collect::<Vec<_>>());
        }
    }
}

#[test]
fn types_that_are_not_quantised_are_refused() {
    for dtype in DType::ALL {
        let made = BlockQuantiser::new(dtype);
        if BlockQuantiser::TYPES.contains(&dtype) {
            assert_eq!(made.unwrap().dtype(), dtype);
        } else {
            let error = made.unwrap_err();
            assert_eq!(error, UnsupportedType { dtype, supported: BlockQuantiser::TYPES });
            assert_eq!(error.to_string(), format!("defined on f32, f16, bf16, not on {dtype}"));
        }
    }
}

/// Elements of one magnitude and of what is below it, with a few of any bits.
fn elements(dtype: DType) -> impl Strategy<Value = Vec<u64>> {
    let exponents = match dtype {
        DType::F16 => -24..16,
        _ => -149..128,
    };
    let wild = prop_oneof![Just(0.0), Just(0.02), Just(1.0)];
    (exponents, wild, 0..=300usize).prop_flat_map(move |(exponent, wild, count)| {
        let near =
            (0..20i32, 1.0f64..2.0, any::<bool>()).prop_map(move |(below, mantissa, sign)| {
                let x =
                    mantissa * f64::from(exponent - below).exp2() * if sign { -1.0 } else { 1.0 };
                match dtype {
                    DType::F32 => u64::from((x as f32).to_bits()),
                    DType::F16 => u64::from(f16::from_f64(x).to_bits()),
                    _ => u64::from(bf16::from_f64(x).to_bits()),
                }
            });
        let any = (0.0..1.0f64, element(dtype), near)
            .prop_map(move |(draw, any, near)| if draw < wild { any } else { near });
        vec(any, count)
    })
}

fn case() -> impl Strategy<Value = (DType, Vec<u64>, [usize; 3])> {
    (0..BlockQuantiser::TYPES.len()).prop_flat_map(|dtype| {
        let dtype = BlockQuantiser::TYPES[dtype];
        (Just(dtype), elements(dtype), [0..9usize, 0..9, 0..9])
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn any_quantisation_is_the_models((dtype, elements, offsets) in case()) {
        let expected = expected(dtype, &elements);
        for level in Level::available() {
            let found = quantise_at(level, dtype, &elements, offsets);
            prop_assert_eq!(&found, &expected, "{:?}", level);
        }
    }
}
