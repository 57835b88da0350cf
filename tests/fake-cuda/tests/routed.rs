//! Dispatches, combines and their halves as the driver sees them. Kernels are any bytes, and do nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use rig::{Control, isolated};
use symmem_moe::hal::kernels::{Arch, BundleWriter, register_bundle};
use symmem_moe::hal::types::{Bytes, DType};
use symmem_moe::hal::{Device, Stream, StreamMode, Wait};
use symmem_moe::mem::launch::Threads;
use symmem_moe::mem::{Failure, Group, Options, Tensor};
use symmem_moe::sync::Lanes as _;
use symmem_moe::{
    Landing, LandingOptions, Layout, Moe, Route, RoutedError, Routing, RoutingOptions, gpu, sync,
};

const PATIENT: Wait = Wait::seconds(30);

/// Experts, choices of a token, tokens, and elements of a row.
const EXPERTS: usize = 6;
const CHOICES: u64 = 2;
const TOKENS: u64 = 8;
const ROW: u64 = 24;

/// What all ranks have, and one uses: of each layout a routing, and rows for it.
struct Memory {
    routings: Vec<(Routing, Tensor<f32>)>,
    landing: Landing,
    x: Tensor<f32>,
    indices: Tensor<i64>,
}

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
        let layouts =
            [Layout::Compact { align: 4 }, Layout::Padded { rows: 16 }, Layout::RankMajor];
        let routing = |layout| {
            let options = RoutingOptions::new(EXPERTS, CHOICES as usize, TOKENS).layout(layout);
            let routing = group.routing(&options, &PATIENT).unwrap();
            let rows = Tensor::zeros(group.device(), &[routing.capacity(), ROW]).unwrap();
            group.rendezvous(&rows, &PATIENT).unwrap();
            (routing, rows)
        };
        let options = LandingOptions::new(EXPERTS, CHOICES as usize, TOKENS, ROW, DType::F32);
        let memory = Memory {
            routings: layouts.into_iter().map(routing).collect(),
            landing: group.landing(&options, &PATIENT).unwrap(),
            x: Tensor::zeros(group.device(), &[TOKENS, ROW]).unwrap(),
            indices: Tensor::zeros(group.device(), &[TOKENS, CHOICES]).unwrap(),
        };
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

/// That `act` launches these kernels, and does nothing else.
fn launches<T>(control: &Control, kernels: &[&str], act: impl FnOnce() -> T) -> T {
    control.tell("reset-counts");
    let outcome = act();
    assert_eq!(control.count("cuLaunchKernelEx"), kernels.len() as u64, "{kernels:?}");
    for kernel in kernels {
        assert_eq!(control.count(&format!("kernel:{kernel}")), 1, "{kernel}");
    }
    for other in ["cuMemcpyAsync", "cuMemcpyDtoH_v2", "cuMemAlloc_v2"] {
        assert_eq!(control.count(other), 0, "{other}");
    }
    outcome
}

#[test]
fn tokens_take_one_kernel_and_the_host_reads_nothing() {
    isolated(&[], |control| {
        look(|group, stream, memory| {
            group.prepare_moe().unwrap();
            let Memory { routings, landing, x, indices } = memory;
            for (routing, rows) in routings {
                launches(control, &["dispatch"], || {
                    routing.dispatch(x, indices, rows).on(stream).unwrap()
                });
                launches(control, &["dispatch"], || routing.resend(x, rows).on(stream).unwrap());
                launches(control, &["combine"], || routing.combine(rows, x).on(stream).unwrap());
            }
            let made = Tensor::<f32>::zeros(group.device(), &[landing.capacity(), ROW]).unwrap();
            let send = || landing.send(x, indices).on(stream).unwrap();
            let sent = launches(control, &["dispatch_send"], send);
            let receive = || sent.receive_on(stream).unwrap();
            let received = launches(control, &["dispatch_receive"], receive);
            launches(control, &["combine_send"], || received.send_back(&made).on(stream).unwrap());
            launches(control, &["combine_receive"], || {
                received.receive_back(x).on(stream).unwrap()
            });
        });
    });
}

#[test]
fn what_cannot_be_done_is_refused_before_a_launch() {
    isolated(&[], |control| {
        look(|group, stream, Memory { routings, x, indices, .. }| {
            let (routing, rows) = &routings[0];
            control.tell("reset-counts");
            stream.begin_capture().unwrap();
            let outcome = routing.dispatch(x, indices, rows).on(stream);
            let _ = stream.end_capture();
            let unprepared = matches!(outcome, Err(RoutedError::Failed(Failure::NotPrepared(_))));
            assert!(unprepared, "{outcome:?}");
            group.prepare_moe().unwrap();
            let outcome = routing.dispatch(x, indices, rows).route(Route::Gathered).on(stream);
            assert!(matches!(outcome, Err(RoutedError::NotGathered)), "{outcome:?}");
            let outcome = routing.combine(rows, x).on(stream);
            assert!(matches!(outcome, Err(RoutedError::NotDispatched)), "{outcome:?}");
            assert_eq!(control.count("cuLaunchKernelEx"), 0);
        });
    });
}
