//! Features: each tried or looked up, with the reason for the answer.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::AtomicU32;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::thread::{MembarrierQuery, futex, membarrier_query};
use serde::Serialize;
use symmem::hal::kernels::cache_folder;
use symmem::hal::types::Bytes;
use symmem::prelude::*;
use symmem::sys::LibraryReport;

use super::gpus::Gpus;

/// Something that works here, or does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feature {
    pub area: Area,
    pub name: &'static str,
    pub supported: bool,
    pub because: String,
}

/// What a feature is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Area {
    /// Of what a group can be made.
    Ranks,
    /// What the kernel is asked for.
    Kernel,
    /// Devices and the libraries behind them.
    Devices,
    /// What this program was built with.
    Build,
}

impl Area {
    pub const ALL: [Area; 4] = [Area::Ranks, Area::Kernel, Area::Devices, Area::Build];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Area::Ranks => "groups",
            Area::Kernel => "the kernel",
            Area::Devices => "devices",
            Area::Build => "this build",
        }
    }
}

/// Why something works, or why not.
type Answer = Result<String, String>;

/// All features, tried now.
pub fn features(libraries: &[LibraryReport], gpus: &Gpus) -> Vec<Feature> {
    let yes = |because: &str| Ok(because.to_owned());
    let no = |because: &str| Err(because.to_owned());
    let answers: [(Area, &'static str, Answer); 27] = [
        (Area::Ranks, "ranks as threads", yes("threads of a process share each mapping")),
        (Area::Ranks, "ranks as processes", meeting()),
        (Area::Ranks, "ranks on several hosts", no("groups span one host in this release")),
        (Area::Ranks, "operations in graphs", yes("every backend records and launches them")),
        (Area::Kernel, "sealed shared memory", sealed_memory()),
        (Area::Kernel, "descriptors sent to peers", passing()),
        (Area::Kernel, "sleeping until a peer writes", futex_wake()),
        (Area::Kernel, "sleeping without fences", membarrier()),
        (Area::Kernel, "death of a rank seen at once", pidfd()),
        (Area::Devices, "host", yes("the CPU: always built in")),
        (Area::Devices, "stub", yes("a device in software: always built in")),
        (Area::Devices, "NVIDIA GPUs", nvidia(libraries, gpus)),
        (Area::Devices, "peer access of all GPUs", peer_access(gpus)),
        (Area::Devices, "AMD GPUs", no("this release has no HIP backend")),
        (Area::Devices, "kernels compiled at run time", nvrtc(libraries)),
        (Area::Devices, "compiled kernels kept on disk", cache()),
        (Area::Devices, "NCCL", no("this release does not use it")),
        (Area::Devices, "NVSHMEM", no("this release does not use it")),
        (Area::Devices, "UCX", no("this release does not use it")),
        (Area::Devices, "multicast", gpus.multicast()),
        (Area::Build, "signals and lanes", yes("feature sync")),
        (Area::Build, "collectives", yes("feature collectives")),
        (Area::Build, "GPUs of NVIDIA", yes("feature cuda")),
        (Area::Build, "search for GPU libraries", yes("feature sys")),
        (Area::Build, "Mixture-of-Experts exchange", yes("feature moe")),
        (Area::Build, "CFT logical endpoints", no("not in this release")),
        (Area::Build, "optimised code", optimised()),
    ];
    let feature = |(area, name, answer): (Area, &'static str, Answer)| {
        let supported = answer.is_ok();
        let (Ok(because) | Err(because)) = answer;
        Feature { area, name, supported, because }
    };
    answers.into_iter().map(feature).collect()
}

/// Ranks that are processes meet at a name in the network namespace, and at a store on TCP.
fn meeting() -> Answer {
    let name = format!("symmem-info-{}", getpid().as_raw_nonzero());
    SocketAddr::from_abstract_name(name.as_bytes())
        .and_then(|address| UnixListener::bind_addr(&address))
        .map_err(|e| format!("no Unix socket with an abstract name: {e}"))?;
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .map_err(|e| format!("no TCP port on {} for the store: {e}", Ipv4Addr::LOCALHOST))?;
    Ok("Unix sockets and a TCP port on the loopback can be bound".to_owned())
}

fn sealed_memory() -> Answer {
    let bytes = Bytes::kib(4);
    let device = Device::host();
    let memory = device.allocate(bytes).map_err(|e| e.to_string())?;
    let exported = memory.export().map_err(|e| e.to_string())?;
    device.import(exported, bytes).map_err(|e| e.to_string())?;
    Ok("memfd_create: memory was made, reserved, sealed and mapped again".to_owned())
}

/// Sends a descriptor to ourselves.
fn passing() -> Answer {
    let failed = |step| move |e: std::io::Error| format!("SCM_RIGHTS: {step}: {e}");
    let (a, b) = UnixStream::pair().map_err(failed("a pair of sockets"))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptor = [a.as_fd()];
    if !control.push(SendAncillaryMessage::ScmRights(&descriptor)) {
        return Err("SCM_RIGHTS: no room for a descriptor".to_owned());
    }
    sendmsg(&a, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL)
        .map_err(|e| failed("sending")(e.into()))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&b, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC)
        .map_err(|e| failed("receiving")(e.into()))?;
    let received = control.drain().map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.count(),
        _ => 0,
    });
    match received.sum() {
        1 => Ok("SCM_RIGHTS: a descriptor was sent and received".to_owned()),
        n => Err(format!("SCM_RIGHTS: {n} descriptors arrived instead of 1: a filter drops them")),
    }
}

fn futex_wake() -> Answer {
    match futex::wake(&AtomicU32::new(0), futex::Flags::empty(), 1) {
        Ok(_) => Ok("futex: the kernel has it for memory that processes share".to_owned()),
        Err(e) => Err(format!("futex: {e}")),
    }
}

fn membarrier() -> Answer {
    let needed = MembarrierQuery::GLOBAL_EXPEDITED | MembarrierQuery::REGISTER_GLOBAL_EXPEDITED;
    if membarrier_query().contains(needed) {
        Ok("membarrier: the kernel has the global expedited commands".to_owned())
    } else {
        Err("membarrier: no expedited commands: sleepers look again every few milliseconds"
            .to_owned())
    }
}

fn pidfd() -> Answer {
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(_) => Ok("pidfd_open: the kernel has it".to_owned()),
        Err(e) => Err(format!("pidfd_open: {e}: only the links to a rank tell of its end")),
    }
}

fn found<'l>(libraries: &'l [LibraryReport], name: &str) -> Option<&'l symmem::sys::Found> {
    let library = libraries.iter().find(|library| library.name == name)?;
    library.outcome.as_ref().ok()
}

fn nvidia(libraries: &[LibraryReport], gpus: &Gpus) -> Answer {
    let Some(driver) = found(libraries, "CUDA driver") else {
        return Err("the CUDA driver was not found (see libraries)".to_owned());
    };
    match (gpus.devices.len(), gpus.missing.first()) {
        (0, None) => Err("the CUDA driver shows this process no device".to_owned()),
        (0, Some(error)) => Err(error.to_string()),
        (some, Some(error)) => Ok(format!("{some} of {}: {error}", some + gpus.missing.len())),
        (some, None) => Ok(format!("{some} by the CUDA driver ({})", driver.path.display())),
    }
}

fn peer_access(gpus: &Gpus) -> Answer {
    let links = gpus.links();
    match links.iter().find(|link| !link.peer_access) {
        _ if links.is_empty() => Err("there are no two GPUs".to_owned()),
        Some(link) => Err(link.because.clone()),
        None => Ok("each reaches the memory of every other".to_owned()),
    }
}

fn nvrtc(libraries: &[LibraryReport]) -> Answer {
    match found(libraries, "NVRTC") {
        Some(found) => Ok(format!("NVRTC is here ({})", found.path.display())),
        None => Err("NVRTC was not found (see libraries): kernels come from the disk or a bundle"
            .to_owned()),
    }
}

fn cache() -> Answer {
    match cache_folder() {
        Some(folder) => Ok(folder.display().to_string()),
        None => {
            Err("SYMMEM_CACHE_DIR, XDG_CACHE_HOME and HOME: none is an absolute path".to_owned())
        }
    }
}

fn optimised() -> Answer {
    match cfg!(debug_assertions) {
        false => Ok("built with --release".to_owned()),
        true => Err("a debug build: its figures mean nothing".to_owned()),
    }
}
