//! Collectives as the driver sees them: what is launched and copied. Kernels are any bytes, and do
//! nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use rig::{Control, isolated};
use symmem_collectives::hal::kernels::{Arch, BundleWriter, KernelUnits, register_bundle};
use symmem_collectives::hal::types::{Bytes, DType, Layout};
use symmem_collectives::hal::{Device, Stream, StreamMode, Wait};
use symmem_collectives::mem::launch::Threads;
use symmem_collectives::mem::{Determinism, Failure, Group, NoMulticast, Options, Tensor, View};
use symmem_collectives::sync::Lanes as _;
use symmem_collectives::sync::gpu::SymmemLane;
use symmem_collectives::{
    Algorithm, AllGatherError, AllReduceError, BroadcastError, CallError, Collectives, NoMultimem,
    ReduceError, ReduceOp, ReduceScatterError, gpu, sync,
};

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
fn all_reduces_of_middle_size_go_by_lines() {
    const ELEMENTS: u64 = 128 << 10;
    isolated(&[], |control| {
        ranks(Options::default(), |group| {
            assert!(group.whole_lines());
            let tensors = [2, 1].map(|n| tensor(&group, n * ELEMENTS + 4));
            let handles = tensors.each_ref().map(|t| group.rendezvous(t, &PATIENT).unwrap());
            group.prepare(&[(DType::F32, ReduceOp::Sum), (DType::F32, ReduceOp::Max)]).unwrap();
            let stream = group.device().stream(StreamMode::Worker).unwrap();
            meet(&group);
            if group.rank().index() == 0 {
                let launched = |first: u64, count: u64, op, algorithm| {
                    control.tell("reset-counts");
                    let part = tensors[0].slice(first, count).unwrap();
                    let call = group.all_reduce(&part).op(op).algorithm(algorithm);
                    let done = call.on(&stream).map(|_| ());
                    stream.synchronize(&PATIENT).unwrap();
                    (
                        done,
                        control.count("kernel:reduce_lines_2"),
                        control.count("cuLaunchKernelEx"),
                    )
                };
                let (sum, auto, packet) = (ReduceOp::Sum, Algorithm::Auto, Algorithm::Packet);
                for (first, count, op, lines) in [
                    (0, ELEMENTS, sum, 1),
                    (4, ELEMENTS, sum, 1),
                    // Less, of no whole vectors, at no multiple of 16, by an operator without lines.
                    (0, 1000, sum, 0),
                    (0, ELEMENTS + 1, sum, 0),
                    (1, ELEMENTS, sum, 0),
                    (0, ELEMENTS, ReduceOp::Max, 0),
                ] {
                    let (done, found, kernels) = launched(first, count, op, auto);
                    assert_eq!((found, kernels), (lines, 1), "{first}, {count}, {op:?}");
                    done.unwrap();
                }
                // Lines carry what packets would not.
                launched(0, 2 * ELEMENTS, sum, packet).0.unwrap();
                let (refused, _, kernels) = launched(1, 2 * ELEMENTS, sum, packet);
                let Err(AllReduceError::Call(CallError::TooLargeForPackets { .. })) = refused
                else {
                    panic!("{refused:?}");
                };
                assert_eq!(kernels, 0);
            }
            meet(&group);
            drop(handles);
        });
    });
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

/// Options of groups that may use the switch.
fn relaxed() -> Options {
    Options { determinism: Determinism::Relaxed, multicast: true, ..Options::default() }
}

/// What each rank has of symmetric memory, by its multicast address, at rank 0.
fn look_with_multicast(body: impl Fn(&Group, &Stream, [&Tensor<f32>; 2], [u64; 2]) + Sync) {
    ranks(relaxed(), |group| {
        let tensors = [tensor(&group, COUNT), tensor(&group, 2 * COUNT)];
        let mapped = tensors.each_ref().map(|t| group.rendezvous(t, &PATIENT).unwrap());
        let addresses = mapped.each_ref().map(|memory| memory.multicast_ptr().unwrap().get());
        let stream = group.device().stream(StreamMode::Worker).unwrap();
        group.lane().unwrap().prepare().unwrap();
        meet(&group);
        if group.rank().index() == 0 {
            body(&group, &stream, tensors.each_ref(), addresses);
            stream.synchronize(&PATIENT).unwrap();
        }
        meet(&group);
    });
}

const THERE: (&str, &str) = ("SYMMEM_FAKE_CUDA_MULTICAST", "1");

#[test]
fn the_switch_is_given_multicast_addresses() {
    isolated(&[THERE], |control| {
        look_with_multicast(|group, stream, [part, whole], [at_part, at_whole]| {
            let by = Algorithm::Multimem;
            let root = group.rank_at(0).unwrap();
            // A lane, then input and output.
            control.tell(&format!("arguments {}", size_of::<SymmemLane>() + 16));
            // One kernel, of this name, which is given these words.
            let one = |kernel: &str, words: &[u64], copies: u64, act: &dyn Fn()| {
                assert_eq!(enqueued(control, act), (1, copies), "{kernel}");
                assert_eq!(control.count(&format!("kernel:{kernel}")), 1, "{kernel}");
                for word in words {
                    assert_eq!(control.count(&format!("word:{word:x}")), 1, "{kernel}: {word:x}");
                }
            };
            one("multimem_all_reduce_f32", &[at_part], 0, &|| {
                group.all_reduce(part).algorithm(by).on(stream).unwrap();
            });
            let other = whole.slice(4, COUNT).unwrap();
            one("multimem_all_reduce_f32", &[at_part, at_whole + 16], 0, &|| {
                group.all_reduce(part).into(&other).algorithm(by).on(stream).unwrap();
            });
            // What is copied in is copied to this rank's own memory.
            let source = tensor(group, COUNT);
            one("multimem_all_reduce_f32", &[at_part], 1, &|| {
                group.all_reduce(part).copy_from(&source).algorithm(by).on(stream).unwrap();
            });
            let private = tensor(group, COUNT);
            one("multimem_reduce_f32", &[at_part, private.ptr().get()], 0, &|| {
                group.reduce(part, root).into(&private).algorithm(by).on(stream).unwrap();
            });
            one("multimem_all_gather", &[private.ptr().get(), at_whole], 0, &|| {
                group.all_gather(&private).into(whole).algorithm(by).on(stream).unwrap();
            });
            one("multimem_all_gather", &[whole.ptr().get(), at_whole], 0, &|| {
                group.all_gather(whole).algorithm(by).on(stream).unwrap();
            });
            for (dtype, name) in [(DType::F16, "f16"), (DType::BF16, "bf16")] {
                let allocation = part.allocation().unwrap();
                let x = View::new(allocation, Bytes::new(32), dtype, Layout::flat(8)).unwrap();
                one(&format!("multimem_all_reduce_{name}"), &[at_part + 32], 0, &|| {
                    group.all_reduce(&x).algorithm(by).on(stream).unwrap();
                });
            }
            control.tell("arguments 0");
            let chosen = group.all_reduce(part).chosen().unwrap();
            assert_ne!(chosen, by, "it is never chosen");
            assert_eq!(group.all_reduce(part).algorithm(by).chosen().unwrap(), by);
        });
    });
}

#[test]
fn what_the_switch_cannot_do_is_refused_with_the_reason() {
    isolated(&[THERE], |control| {
        look_with_multicast(|group, stream, [part, whole], _| {
            let by = Algorithm::Multimem;
            let root = group.rank_at(0).unwrap();
            let private = tensor(group, COUNT);
            let all_reduce = |x: &View, op| {
                let outcome = group.all_reduce(x).op(op).algorithm(by).on(stream);
                match outcome.unwrap_err() {
                    AllReduceError::Call(CallError::Multimem(reason)) => reason,
                    other => panic!("{other}"),
                }
            };
            let sum = |x: &View| all_reduce(x, ReduceOp::Sum);
            let typed = |dtype, offset, count| {
                let allocation = part.allocation().unwrap();
                View::new(allocation, Bytes::new(offset), dtype, Layout::flat(count)).unwrap()
            };
            let outcome = enqueued(control, || {
                assert_eq!(all_reduce(part, ReduceOp::Max), NoMultimem::Operator(ReduceOp::Max));
                assert_eq!(sum(&typed(DType::F64, 0, 2)), NoMultimem::Type(DType::F64));
                assert_eq!(sum(&typed(DType::I32, 0, 4)), NoMultimem::Type(DType::I32));
                assert_eq!(sum(&private), NoMultimem::NotSymmetric { what: "input" });
                for (offset, count) in [(4, 4), (0, 5), (8, 6)] {
                    let (bytes, vector) = (Bytes::new(4 * count), Bytes::new(16));
                    let (what, offset_of) = ("input", Bytes::new(offset));
                    let expected = NoMultimem::Vectors { what, offset: offset_of, bytes, vector };
                    assert_eq!(sum(&typed(DType::F32, offset, count)), expected);
                }
                // The output of an all-reduce and of an all-gather, and not of a reduce.
                let output = NoMultimem::NotSymmetric { what: "output" };
                let call = group.all_reduce(part).into(&private).algorithm(by).on(stream);
                let is = |e: &CallError| matches!(e, CallError::Multimem(e) if *e == output);
                assert!(matches!(call, Err(AllReduceError::Call(e)) if is(&e)));
                let gathered = tensor(group, 2 * COUNT);
                let call = group.all_gather(part).into(&gathered).algorithm(by).on(stream);
                assert!(matches!(call, Err(AllGatherError::Call(e)) if is(&e)));
                let call = group.reduce(&private, root).into(part).algorithm(by).on(stream);
                let input = NoMultimem::NotSymmetric { what: "input" };
                assert!(
                    matches!(call, Err(ReduceError::Call(CallError::Multimem(e))) if e == input)
                );
                // Other operations have no such algorithm.
                let call = group.broadcast(part, root).algorithm(by).on(stream);
                let algorithm = |e: &CallError| {
                    matches!(e, CallError::Algorithm { algorithm: Algorithm::Multimem, .. })
                };
                assert!(matches!(call, Err(BroadcastError::Call(e)) if algorithm(&e)));
                let call = group.reduce_scatter(whole).algorithm(by).on(stream);
                assert!(matches!(call, Err(ReduceScatterError::Call(e)) if algorithm(&e)));
            });
            assert_eq!(outcome, (0, 0), "nothing is enqueued");
            // What is not loaded cannot be captured; to prepare loads it.
            let captured = || {
                stream.begin_capture().unwrap();
                let outcome = group.all_reduce(part).algorithm(by).on(stream);
                let _ = stream.end_capture();
                outcome
            };
            let error = captured().unwrap_err();
            assert!(matches!(error, AllReduceError::Failed(Failure::NotPrepared(_))), "{error}");
            group.prepare(&[]).unwrap();
            assert_eq!(enqueued(control, || captured().unwrap()).0, 1);
        });
    });
}

#[test]
fn the_switch_is_refused_where_a_group_does_not_allow_it() {
    isolated(&[THERE], |control| {
        // What moves data is loaded once on each device, and nothing of the switch's.
        for (options, expected, loads) in [
            (Options { determinism: Determinism::Bitwise, ..relaxed() }, None, 2),
            (Options { multicast: false, ..relaxed() }, Some(NoMulticast::NotAsked), 0),
        ] {
            control.tell("reset-counts");
            ranks(options, |group| {
                let x = tensor(&group, COUNT);
                let _mapped = group.rendezvous(&x, &PATIENT).unwrap();
                let stream = group.device().stream(StreamMode::Worker).unwrap();
                group.prepare(&[]).unwrap();
                meet(&group);
                assert_eq!(control.count("cuModuleLoadData"), loads);
                meet(&group);
                let outcome = group.all_reduce(&x).algorithm(Algorithm::Multimem).on(&stream);
                let AllReduceError::Call(error) = outcome.unwrap_err() else { panic!("a failure") };
                let why = match &error {
                    CallError::Determinism { .. } => None,
                    CallError::Multimem(NoMultimem::Multicast { what: "input", why }) => Some(why),
                    other => panic!("{other}"),
                };
                assert_eq!(why, expected.as_ref());
                meet(&group);
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
