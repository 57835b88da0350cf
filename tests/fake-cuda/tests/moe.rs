//! Exchanges by splits as the driver sees them. Kernels are any bytes, and do nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use rig::isolated;
use symmem_moe::hal::kernels::{Arch, BundleWriter, register_bundle};
use symmem_moe::hal::types::Bytes;
use symmem_moe::hal::{Device, Stream, StreamMode, Wait};
use symmem_moe::mem::launch::Threads;
use symmem_moe::mem::{Failure, Group, Options, Tensor};
use symmem_moe::sync::Lanes as _;
use symmem_moe::{AllToAllVdevError, Moe, Overflow, TensorMismatch, gpu, sync};

const PATIENT: Wait = Wait::seconds(30);

/// What all ranks have, and one uses.
struct Memory {
    input: Tensor<f32>,
    output: Tensor<f32>,
}

/// Rows of the input and of the output, and elements of a row.
const ROWS: [u64; 3] = [100, 300, 24];

/// What the first of two ranks sees, each a thread with a device of its own.
fn look(body: impl Fn(&Group, &Stream, &Memory) + Sync) {
    let mut bundle = BundleWriter::default();
    for set in [&sync::gpu::UNITS, &gpu::UNITS] {
        let arch = Arch { major: 9, minor: 0 };
        (set.each)(&mut |unit| bundle.add(unit, arch, b"code".as_slice().into()));
    }
    register_bundle(bundle.finish()).unwrap();
    let devices = (0..2).map(|ordinal| Device::cuda(ordinal).unwrap()).collect();
    let options = Options { workspace: Bytes::mib(8), ..Options::default() };
    let rank = |group: Group| {
        let [rows, capacity, row] = ROWS;
        let of = |rows| Tensor::zeros(group.device(), &[rows, row]).unwrap();
        let memory = Memory { input: of(rows), output: of(capacity) };
        let _mapped = group.rendezvous(&memory.output, &PATIENT).unwrap();
        group.lane().unwrap().prepare().unwrap();
        let stream = group.device().stream(StreamMode::Worker).unwrap();
        group.split(None, 0, &PATIENT).unwrap();
        if group.rank().index() == 0 {
            body(&group, &stream, &memory);
            stream.synchronize(&PATIENT).unwrap();
        }
        group.split(None, 0, &PATIENT).unwrap();
    };
    Threads::new(2).options(options).devices(devices).run(rank).unwrap();
}

fn splits(group: &Group, count: u64) -> Tensor<i64> {
    Tensor::zeros(group.device(), &[count]).unwrap()
}

#[test]
fn a_call_is_one_kernel_and_the_host_reads_nothing() {
    isolated(&[], |control| {
        look(|group, stream, Memory { input, output }| {
            let (two, four) = (splits(group, 2), splits(group, 4));
            let (six, twelve) = (splits(group, 6), splits(group, 12));
            let back = splits(group, 12);
            let one = |act: &dyn Fn()| {
                control.tell("reset-counts");
                act();
                assert_eq!(control.count("cuLaunchKernelEx"), 1);
                assert_eq!(control.count("kernel:all_to_all_vdev"), 1);
                for other in ["cuMemcpyAsync", "cuMemcpyDtoH_v2", "cuMemAlloc_v2"] {
                    assert_eq!(control.count(other), 0, "{other}");
                }
            };
            // The first loads.
            group.all_to_all_vdev(input, &two, output, &four).on(stream).unwrap();
            one(&|| group.all_to_all_vdev(input, &two, output, &four).on(stream).unwrap());
            one(&|| {
                let call = group.all_to_all_vdev_2d(input, &six, output, &twelve).major_align(8);
                call.overflow(Overflow::Drop).on(stream).unwrap();
            });
            one(&|| {
                let call = group.all_to_all_vdev_2d_offset(input, &twelve, output, &back);
                call.on(stream).unwrap();
            });
            let lane = group.lane().unwrap();
            assert_eq!(group.take_dropped(lane).unwrap(), 0);
            group.verdict(lane).unwrap();
        });
    });
}

#[test]
fn what_is_not_loaded_cannot_be_captured() {
    isolated(&[], |control| {
        look(|group, stream, Memory { input, output }| {
            let (two, four) = (splits(group, 2), splits(group, 4));
            let captured = || {
                stream.begin_capture().unwrap();
                let outcome = group.all_to_all_vdev(input, &two, output, &four).on(stream);
                let _ = stream.end_capture();
                outcome
            };
            let error = captured().unwrap_err();
            assert!(matches!(error, AllToAllVdevError::Failed(Failure::NotPrepared(_))), "{error}");
            // Nothing has failed by that.
            group.prepare_moe().unwrap();
            control.tell("reset-counts");
            captured().unwrap();
            assert_eq!(control.count("cuLaunchKernelEx"), 1);
        });
    });
}

#[test]
fn what_cannot_be_done_is_refused_before_a_launch() {
    isolated(&[], |control| {
        look(|group, stream, Memory { input, output }| {
            let (two, four) = (splits(group, 2), splits(group, 4));
            group.prepare_moe().unwrap();
            control.tell("reset-counts");
            let private = Tensor::<f32>::zeros(group.device(), &[ROWS[1], ROWS[2]]).unwrap();
            let outcome = group.all_to_all_vdev(input, &two, &private, &four).on(stream);
            assert!(
                matches!(
                    outcome,
                    Err(AllToAllVdevError::Tensor(TensorMismatch::NotSymmetric { .. }))
                ),
                "{outcome:?}"
            );
            // More than there is workspace for.
            let many = 2 << 20;
            let (wanted, found) = (splits(group, many), splits(group, 2 * many));
            let outcome = group.all_to_all_vdev_2d(input, &wanted, output, &found).on(stream);
            let Err(AllToAllVdevError::TooManySplits { splits, most }) = outcome else {
                panic!("{outcome:?}");
            };
            assert!(splits == many && (1000..many).contains(&most), "{most} of {splits}");
            assert_eq!(control.count("cuLaunchKernelEx"), 0);
        });
    });
}
