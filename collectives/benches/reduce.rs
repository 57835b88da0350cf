//! Throughput of the host reduction beside a copy of the same bytes, in bytes of output, of weighted
//! sums in the same, and of quantisation in bytes of input.
#![allow(unsafe_code)] // The reducer takes raw pointers.
#![allow(clippy::expect_used)] // A benchmark may stop.
#![allow(missing_docs)] // `criterion_group!` makes an undocumented function.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use symmem_collectives::numerics::{BlockQuantiser, ReduceOp, Reducer, WeightedSum};
use symmem_hal::types::DType;

const SIZES: [usize; 3] = [16 << 10, 256 << 10, 4 << 20];

/// `bytes` bytes that are small positive floats of any type.
fn buffer(bytes: usize) -> Vec<u64> {
    vec![0x3c3c_3c3c_3c3c_3c3c; bytes / 8]
}

fn reductions(criterion: &mut Criterion) {
    for bytes in SIZES {
        let mut group = criterion.benchmark_group(format!("{}KiB", bytes >> 10));
        group.throughput(Throughput::Bytes(bytes as u64));
        let mut out = buffer(bytes);
        let inputs: Vec<_> = (0..8).map(|_| buffer(bytes)).collect();
        let sources: Vec<*const u8> = inputs.iter().map(|input| input.as_ptr().cast()).collect();
        let target: *mut u8 = out.as_mut_ptr().cast();

        group.bench_function("memcpy", |bencher| {
            bencher.iter(|| {
                // SAFETY: both buffers hold `bytes` bytes and live past the loop.
                unsafe { black_box(sources[0]).copy_to_nonoverlapping(black_box(target), bytes) }
            });
        });
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let reducer = Reducer::new(dtype, ReduceOp::Sum).expect("defined on every type");
            let count = bytes / dtype.size();
            for ranks in [2, 8] {
                let id = BenchmarkId::new(format!("{dtype}-sum"), ranks);
                group.bench_function(id, |bencher| {
                    bencher.iter(|| {
                        // SAFETY: every buffer holds `count` elements, is written by nobody else
                        // and lives past the loop.
                        unsafe { reducer.reduce(black_box(&sources[..ranks]), target, count) }
                    });
                });
            }
            let in_place = [target.cast_const(), sources[1]];
            group.bench_function(format!("{dtype}-sum/2 in place"), |bencher| {
                bencher.iter(|| {
                    // SAFETY: as above; the output is the first source.
                    unsafe { reducer.reduce(black_box(&in_place), target, count) }
                });
            });
        }
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::F8E4M3] {
            let sum = WeightedSum::new(dtype).expect("defined on this type");
            let count = bytes / dtype.size();
            for rows in [2, 8] {
                let rows: Vec<_> = sources[..rows].iter().map(|&row| (0.37, row)).collect();
                let id = BenchmarkId::new(format!("{dtype}-weighted-sum"), rows.len());
                group.bench_function(id, |bencher| {
                    bencher.iter(|| {
                        // SAFETY: as above; the output is no row.
                        unsafe { sum.sum(black_box(&rows), target, count) }
                    });
                });
            }
            // Throughput is of the input here.
            let Ok(quantiser) = BlockQuantiser::new(dtype) else { continue };
            let mut scales = vec![0f32; BlockQuantiser::scales(count)];
            group.bench_function(format!("{dtype}-quantise"), |bencher| {
                bencher.iter(|| {
                    // SAFETY: as above; a code is no longer than an element.
                    unsafe {
                        quantiser.quantise(
                            black_box(sources[0]),
                            count,
                            target,
                            scales.as_mut_ptr(),
                        )
                    }
                });
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = reductions
}
criterion_main!(benches);
