//! Collectives as the driver sees them: what is launched and copied. Kernels are any bytes, and do
//! nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use rig::{Control, isolated};
use symmem_collectives::hal::kernels::{Arch, BundleWriter, KernelUnits, register_bundle};
use symmem_collectives::hal::types::{Bytes, DType};
use symmem_collectives::hal::{Device, Stream, StreamMode, Wait};
use symmem_collectives::mem::launch::Threads;
use symmem_collectives::mem::{Determinism, Failure, Group, Options, Tensor};
use symmem_collectives::sync::Lanes as _;
use symmem_collectives::{Algorithm, AllReduceError, CallError, Collectives, ReduceOp, gpu, sync};

const PATIENT: Wait = Wait::seconds(30);

/// Elements of a part: what no algorithm is chosen for by its size here.
const COUNT: u64 = 1000;

/// Two ranks, each a thread with a device of its own.
fn ranks(options: Options, body: impl Fn(Group) + Sync) {
    let mut bundle = BundleWriter::default();
    for set in [&sync::gpu::UNITS, &gpu::UNITS] as [&KernelUnits; 2] {
        let arch = Arch { major: 9, minor: 0 };
        (set.each)(&mut |unit| bundle.add(unit, arch, b"code".as_slice().into()));
    }
    register_bundle(bundle.finish()).unwrap();
    let devices = (0..2).map(|ordinal| Device::cuda(ordinal).unwrap()).collect();
    let options = Options { workspace: Bytes::mib(8), ..options };
    Threads::new(2).options(options).devices(devices).run(body).unwrap();
}

fn meet(group: &Group) {
    group.split(None, 0, &PATIENT).unwrap();
}

/// What one of the ranks sees alone, so that what it counts is its own.
fn look(options: Options, body: impl Fn(&Group, &Stream) + Sync) {
    ranks(options, |group| {
        group.lane().unwrap().prepare().unwrap();
        let stream = group.device().stream(StreamMode::Worker).unwrap();
        meet(&group);
        if group.rank().index() == 0 {
            body(&group, &stream);
        }
        meet(&group);
    });
}

/// Kernels, and copies by the device, of what `act` enqueues.
fn enqueued(control: &Control, act: impl FnOnce()) -> (u64, u64) {
    control.tell("reset-counts");
    act();
    let copies = ["cuMemcpyAsync", "cuMemcpyDtoDAsync_v2", "cuMemcpyBatchAsync_v2"];
    let copies = copies.iter().map(|call| control.count(call)).sum();
    (control.count("cuLaunchKernelEx"), copies)
}

fn tensor(group: &Group, count: u64) -> Tensor<f32> {
    Tensor::zeros(group.device(), &[count]).unwrap()
}

#[test]
fn a_call_is_one_kernel_however_it_is_done() {
    isolated(&[], |control| {
        look(Options::default(), |group, stream| {
            let (part, whole) = (tensor(group, COUNT), tensor(group, 2 * COUNT));
            let root = group.rank_at(0).unwrap();
            for algorithm in [Algorithm::Packet, Algorithm::OneShot, Algorithm::TwoShot] {
                let one = |what: &str, act: &dyn Fn()| {
                    assert_eq!(enqueued(control, act), (1, 0), "{what} by {algorithm}");
                };
                one("all_reduce", &|| {
                    group.all_reduce(&part).algorithm(algorithm).on(stream).unwrap();
                });
                one("reduce", &|| {
                    group.reduce(&part, root).algorithm(algorithm).on(stream).unwrap();
                });
                if algorithm == Algorithm::TwoShot {
                    continue;
                }
                one("all_gather", &|| {
                    group.all_gather(&part).into(&whole).algorithm(algorithm).on(stream).unwrap();
                });
                one("reduce_scatter", &|| {
                    let call = group.reduce_scatter(&whole).into(&part).op(ReduceOp::Max);
                    call.algorithm(algorithm).on(stream).unwrap();
                });
                one("broadcast", &|| {
                    group.broadcast(&part, root).algorithm(algorithm).on(stream).unwrap();
                });
                one("all_to_all", &|| {
                    group.all_to_all(&whole).algorithm(algorithm).on(stream).unwrap();
                });
            }
            let outputs = [part.view()];
            let call = group.reduce_scatter_offset(&whole, &outputs);
            // Of two dimensions alone: nothing is enqueued.
            assert_eq!(enqueued(control, || assert!(call.on(stream).is_err())), (0, 0));
            stream.synchronize(&PATIENT).unwrap();
        });
    });
}

#[test]
fn what_is_copied_in_is_copied_by_the_device() {
    isolated(&[], |control| {
        look(Options::default(), |group, stream| {
            let (source, x) = (tensor(group, COUNT), tensor(group, COUNT));
            let call = || group.all_reduce(&x).copy_from(&source).on(stream).unwrap();
            assert_eq!(enqueued(control, call), (1, 1));
            let (source, x) = (tensor(group, 0), tensor(group, 0));
            let call = || group.all_reduce(&x).copy_from(&source).on(stream).unwrap();
            assert_eq!(enqueued(control, call), (1, 0));
            stream.synchronize(&PATIENT).unwrap();
        });
    });
}

#[test]
fn what_is_not_loaded_cannot_be_captured() {
    isolated(&[], |control| {
        look(Options::default(), |group, stream| {
            let x = tensor(group, COUNT);
            let captured = || {
                stream.begin_capture().unwrap();
                let outcome = group.all_reduce(&x).on(stream);
                let _ = stream.end_capture();
                outcome
            };
            let error = captured().unwrap_err();
            assert!(matches!(error, AllReduceError::Failed(Failure::NotPrepared(_))), "{error}");
            // Nothing has failed by that.
            group.prepare(&[(DType::F32, ReduceOp::Sum)]).unwrap();
            assert_eq!(enqueued(control, || captured().unwrap()).0, 1);
            let wrong = group.prepare(&[(DType::F32, ReduceOp::Xor)]);
            assert!(matches!(wrong, Err(CallError::Op(_))));
        });
    });
}

#[test]
fn the_switch_is_refused_with_the_reason() {
    isolated(&[], |_| {
        for determinism in [Determinism::Bitwise, Determinism::Relaxed] {
            look(Options { determinism, ..Options::default() }, |group, stream| {
                let x = tensor(group, COUNT);
                let outcome = group.all_reduce(&x).algorithm(Algorithm::Multimem).on(stream);
                let expected = match (outcome, determinism) {
                    (Err(AllReduceError::Call(CallError::Determinism { .. })), d) => {
                        d == Determinism::Bitwise
                    }
                    (Err(AllReduceError::Call(CallError::Multicast(_))), d) => {
                        d == Determinism::Relaxed
                    }
                    _ => false,
                };
                assert!(expected, "{determinism:?}");
            });
        }
    });
}

#[test]
fn symmetric_memory_is_copied_from_by_copy_engines() {
    isolated(&[], |control| {
        ranks(Options::default(), |group| {
            let (part, whole) = (tensor(&group, COUNT), tensor(&group, 2 * COUNT));
            let _mapped = [&part, &whole].map(|t| group.rendezvous(t, &PATIENT).unwrap());
            let stream = group.device().stream(StreamMode::Worker).unwrap();
            group.lane().unwrap().prepare().unwrap();
            meet(&group);
            if group.rank().index() == 0 {
                let by = Algorithm::LowContention;
                let (kernels, copies) = enqueued(control, || {
                    group.all_gather(&part).into(&whole).algorithm(by).on(&stream).unwrap();
                });
                assert_eq!(kernels, 2);
                assert!(copies >= 1);
                let (kernels, copies) = enqueued(control, || {
                    group.reduce_scatter(&whole).into(&part).algorithm(by).on(&stream).unwrap();
                });
                assert_eq!(kernels, 3);
                assert!(copies >= 1);
                stream.synchronize(&PATIENT).unwrap();
            }
            meet(&group);
        });
    });
}
