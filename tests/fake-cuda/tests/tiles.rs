//! Reductions of tiles as the driver sees them. Kernels are any bytes, and do nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use rig::isolated;
use symmem_collectives::{CallError, Collectives as _, ReduceOp};
use symmem_moe::hal::kernels::{Arch, BundleWriter, KernelUnits, register_bundle};
use symmem_moe::hal::types::{Bytes, DType, Layout};
use symmem_moe::hal::{Device, Stream, StreamMode, Wait};
use symmem_moe::mem::launch::Threads;
use symmem_moe::mem::{Allocation, Failure, Group, Options, View};
use symmem_moe::sync::Lanes as _;
use symmem_moe::{Moe as _, TileReduceError, collectives, sync};

const PATIENT: Wait = Wait::seconds(30);

/// What the first of two ranks sees, each a thread with a device of its own.
fn look(body: impl Fn(&Group, &Stream) + Sync) {
    let mut bundle = BundleWriter::default();
    for set in [&sync::gpu::UNITS, &collectives::gpu::UNITS] as [&KernelUnits; 2] {
        let arch = Arch { major: 9, minor: 0 };
        (set.each)(&mut |unit| bundle.add(unit, arch, b"code".as_slice().into()));
    }
    register_bundle(bundle.finish()).unwrap();
    let devices = (0..2).map(|ordinal| Device::cuda(ordinal).unwrap()).collect();
    let options = Options { workspace: Bytes::mib(8), ..Options::default() };
    let rank = |group: Group| {
        group.lane().unwrap().prepare().unwrap();
        let stream = group.device().stream(StreamMode::Worker).unwrap();
        group.split(None, 0, &PATIENT).unwrap();
        if group.rank().index() == 0 {
            body(&group, &stream);
            stream.synchronize(&PATIENT).unwrap();
        }
        group.split(None, 0, &PATIENT).unwrap();
    };
    Threads::new(2).options(options).devices(devices).run(rank).unwrap();
}

/// Forty rows of thirty in memory of their own.
fn tile(group: &Group, stride: u64) -> View {
    let memory = Allocation::new(group.device(), Bytes::new(4 * 40 * stride)).unwrap();
    let layout = Layout::strided(&[40, 30], &[stride, 1]).unwrap();
    View::new(&memory, Bytes::ZERO, DType::F32, layout).unwrap()
}

#[test]
fn tiles_of_any_memory_are_one_kernel() {
    isolated(&[], |control| {
        look(|group, stream| {
            let roots: Vec<_> = group.ranks().collect();
            let (a, b, y) = (tile(group, 30), tile(group, 64), tile(group, 31));
            let launched = |act: &dyn Fn() -> Result<(), TileReduceError>| {
                control.tell("reset-counts");
                let outcome = act();
                stream.synchronize(&PATIENT).unwrap();
                let count = |call: &str| control.count(call);
                (outcome, count("kernel:reduce_blocks"), count("cuLaunchKernelEx"))
            };
            for (input, output) in [(&a, &y), (&b, &y), (&b, &b)] {
                let call = || group.tile_reduce(input, output, roots[0]).on(stream);
                let (outcome, blocks, kernels) = launched(&call);
                outcome.unwrap();
                assert_eq!((blocks, kernels), (1, 1));
            }
            let tiles = [&a, &b];
            let call = || group.multi_root_tile_reduce(&tiles, Some(&y), &roots).on(stream);
            let (outcome, blocks, kernels) = launched(&call);
            outcome.unwrap();
            assert_eq!((blocks, kernels), (1, 1));
            let call = || group.multi_root_tile_reduce(&tiles, Some(&b), &roots).on(stream);
            let (refused, _, kernels) = launched(&call);
            assert!(matches!(refused, Err(TileReduceError::Call(CallError::Overlap))));
            assert_eq!(kernels, 0);
        });
    });
}

#[test]
fn what_is_not_loaded_cannot_be_captured() {
    isolated(&[], |_| {
        look(|group, stream| {
            let (x, y) = (tile(group, 50), tile(group, 30));
            let root = group.rank();
            let captured = || {
                stream.begin_capture().unwrap();
                let outcome = group.tile_reduce(&x, &y, root).op(ReduceOp::Max).on(stream);
                (outcome, stream.end_capture())
            };
            let (outcome, _) = captured();
            let error = outcome.unwrap_err();
            assert!(matches!(error, TileReduceError::Failed(Failure::NotPrepared(_))), "{error}");
            group.prepare(&[(DType::F32, ReduceOp::Max)]).unwrap();
            let (outcome, graph) = captured();
            outcome.unwrap();
            graph.unwrap().launch(stream, &PATIENT).unwrap();
        });
    });
}
