//! What it takes a host to enqueue an all-reduce, beside a launch of the driver's and nothing else.
#![allow(unsafe_code, reason = "calls the driver, as a program without a library would")]

use core::ffi::{CStr, c_void};
use std::time::Instant;

use symmem::prelude::*;
use symmem::sys::cuda::Driver;
use symmem::sys::cuda::bindings::{
    CUfunction, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig,
    CUmodule, CUresult, CUstream,
};
use symmem::sys::{MissingSymbol, NotFound};

use super::{AllReduce, Call, Collective as _, Comparison, Sweep};
use crate::bench::check::Data;
use crate::bench::member::{Member, RankError};
use crate::bench::report::{Report, Row};
use crate::bench::timing::{Ready, Timing, micros};

/// An all-reduce and a bare launch of as many bytes of arguments, enqueued in turns.
#[derive(Clone, Debug)]
pub struct Enqueue;

/// How often each is measured, and how many are enqueued at a time: fewer than a stream has room for.
const TURNS: usize = 41;
const CALLS: usize = 64;

/// A kernel that takes as many bytes as those of collectives and does nothing.
const EMPTY: &CStr = c".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry empty(.param .align 16 .b8 arguments[448]) { ret; }";
const ARGUMENTS: usize = 448;

/// The driver did not do what a bare launch takes.
#[derive(Debug, thiserror::Error)]
enum BareError {
    #[error(transparent)]
    NotFound(#[from] NotFound),
    #[error(transparent)]
    Missing(#[from] MissingSymbol),
    #[error("{call} ended with error {} of the driver", code.0)]
    Driver { call: &'static str, code: CUresult },
    #[error("the stream is none of the driver's")]
    Stream,
}

impl Fault for BareError {
    fn kind(&self) -> Kind {
        Kind::Unsupported
    }
}

fn done(call: &'static str, code: CUresult) -> Result<(), BareError> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(BareError::Driver { call, code }),
    }
}

impl Comparison for Enqueue {
    fn name(&self) -> &'static str {
        "enqueue"
    }

    fn describe(&self, all_reduce: &str) -> String {
        format!("the host's part of an all-reduce ({all_reduce}), and of a bare launch")
    }

    fn isolated(&self) -> &'static str {
        "the mean of 64 calls on an idle stream, by the host's clock; 41 times each, in turns"
    }

    fn checked(&self) -> &'static str {
        "every element of the first call, against an independent model"
    }

    fn measure(
        &self,
        sweep: &Sweep<AllReduce>,
        member: &Member<'_>,
        report: &mut dyn FnMut(Report),
    ) -> Result<(), RankError> {
        let Sweep { collective, dtype, sizes, .. } = sweep;
        member.group.prepare(&[(*dtype, collective.op)])?;
        let bare = Bare::load()?;
        let memory = sweep.allocate(member)?;
        for (part, size) in sizes.iter().enumerate() {
            let buffers = sweep.buffers(member, &memory, *size)?;
            let (input, output) = (&buffers.input, &buffers.output);
            let call = Call { group: member.group, stream: &member.stream, input, output };
            let algorithm = collective.algorithm(&call)?;
            let issue = || collective.issue(&call);
            let launch = || Ok(bare.launch(&member.stream)?);
            if sweep.check {
                let data = Data::Small(sweep.seed.part(part as u64));
                sweep.check(member, &buffers, data, &mut Ready(&issue))?;
            }
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..TURNS {
                let calls: [&dyn Fn() -> Result<(), RankError>; 2] = [&issue, &launch];
                for (call, times) in calls.iter().zip(&mut times) {
                    member.barrier()?;
                    let start = Instant::now();
                    (0..CALLS).try_for_each(|_| call())?;
                    times.push(micros(start.elapsed()) / CALLS as f64);
                    member.finish()?;
                }
            }
            let [through, bare] = times.map(Timing::of_batches);
            let bytes = size.get();
            let row = |algorithm, timing| Row {
                bytes,
                algorithm,
                checked: sweep.check,
                routed: None,
                timing,
            };
            report(Report::Row(row("a bare launch".into(), bare)));
            report(Report::Row(row(algorithm, through)));
        }
        Ok(())
    }
}

/// The driver's launch of an empty kernel.
struct Bare {
    driver: &'static Driver,
    function: CUfunction,
}

impl Bare {
    /// In the context that is current on this thread. Never unloaded: the process ends after.
    fn load() -> Result<Self, BareError> {
        let driver = Driver::get()?;
        let (mut module, mut function): (CUmodule, CUfunction) =
            (core::ptr::null_mut(), core::ptr::null_mut());
        let (load, find) = (driver.cuModuleLoadData()?, driver.cuModuleGetFunction()?);
        // SAFETY: writes one handle; the image is text that ends in a zero.
        done("cuModuleLoadData", unsafe { load(&raw mut module, EMPTY.as_ptr().cast()) })?;
        // SAFETY: writes one handle; the module is loaded, the name ends in a zero.
        let found = unsafe { find(&raw mut function, module, c"empty".as_ptr()) };
        done("cuModuleGetFunction", found)?;
        Ok(Bare { driver, function })
    }

    /// As the library's kernels: as a dependent of the launch before.
    fn launch(&self, stream: &Stream) -> Result<(), BareError> {
        let stream: CUstream = stream.as_raw().ok_or(BareError::Stream)?.cast();
        let mut attribute = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
            ..CUlaunchAttribute::default()
        };
        let config = CUlaunchConfig {
            gridDimX: 2,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 96,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream,
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        let arguments = [0u128; ARGUMENTS / 16];
        let mut parameters: [*mut c_void; 1] = [arguments.as_ptr().cast_mut().cast()];
        let launch = self.driver.cuLaunchKernelEx()?;
        let (config, parameters) = (&raw const config, parameters.as_mut_ptr());
        // SAFETY: the function takes one parameter of so many bytes, which are copied before this returns,
        // and reaches into nothing; stream and function are of the context that is current.
        let code = unsafe { launch(config, self.function, parameters, core::ptr::null_mut()) };
        done("cuLaunchKernelEx", code)
    }
}
