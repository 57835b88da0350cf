//! Features: each tried or looked up, with the reason for the answer.

use std::env;
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::thread::{MembarrierQuery, membarrier_query};
use serde::Serialize;
use symmem::hal::types::Bytes;
use symmem::prelude::*;
use symmem::sys::LibraryReport;

/// Variables that switch multicast off in the libraries beside which symmem runs; it follows them.
const MULTICAST_OFF: [(&str, &str); 3] = [
    ("NCCL_NVLS_ENABLE", "0"),
    ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
    ("NVSHMEM_DISABLE_NVLS", "1"),
];

/// Something that works here, or does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feature {
    pub name: &'static str,
    pub supported: bool,
    pub because: String,
}

impl Feature {
    /// Of the reason why it works, or why not.
    fn new(name: &'static str, found: Result<&str, String>) -> Self {
        match found {
            Ok(because) => Feature { name, supported: true, because: because.to_owned() },
            Err(because) => Feature { name, supported: false, because },
        }
    }
}

/// All features, tried now.
pub fn features(libraries: &[LibraryReport]) -> Vec<Feature> {
    vec![
        Feature::new("ranks as threads", Ok("threads of a process share each mapping")),
        Feature::new("ranks as processes", meeting()),
        Feature::new("sealed shared memory", sealed_memory()),
        Feature::new("sleeping without fences", membarrier()),
        Feature::new("death of a rank seen at once", pidfd()),
        Feature::new(
            "ranks on several hosts",
            Err("groups span one host in this release".to_owned()),
        ),
        Feature::new("NVIDIA GPUs", gpu(libraries, "CUDA driver")),
        Feature::new("kernels compiled at run time", gpu(libraries, "NVRTC")),
        Feature::new("multicast", multicast()),
    ]
}

/// Ranks that are processes meet at a name in the network namespace, and at a store on TCP.
fn meeting() -> Result<&'static str, String> {
    let name = format!("symmem-info-{}", getpid().as_raw_nonzero());
    SocketAddr::from_abstract_name(name.as_bytes())
        .and_then(|address| UnixListener::bind_addr(&address))
        .map_err(|e| format!("no Unix socket with an abstract name: {e}"))?;
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .map_err(|e| format!("no TCP port on {} for the store: {e}", Ipv4Addr::LOCALHOST))?;
    Ok("Unix sockets and a TCP port on the loopback can be bound")
}

fn sealed_memory() -> Result<&'static str, String> {
    let bytes = Bytes::kib(4);
    let device = Device::host();
    let memory = device.allocate(bytes).map_err(|e| e.to_string())?;
    let exported = memory.export().map_err(|e| e.to_string())?;
    device.import(exported, bytes).map_err(|e| e.to_string())?;
    Ok("a memfd was created, reserved, sealed and mapped again")
}

fn membarrier() -> Result<&'static str, String> {
    let needed = MembarrierQuery::GLOBAL_EXPEDITED | MembarrierQuery::REGISTER_GLOBAL_EXPEDITED;
    if membarrier_query().contains(needed) {
        Ok("the kernel has membarrier's global expedited commands")
    } else {
        Err("the kernel has no expedited membarrier: sleepers look again every few milliseconds"
            .to_owned())
    }
}

fn pidfd() -> Result<&'static str, String> {
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(_) => Ok("the kernel has pidfd_open"),
        Err(e) => Err(format!("pidfd_open: {e}: only the links to a rank tell of its end")),
    }
}

fn gpu(libraries: &[LibraryReport], name: &str) -> Result<&'static str, String> {
    let found = libraries.iter().find(|library| library.name == name);
    let here = match found.map(|library| &library.outcome) {
        Some(Ok(found)) => format!("{name} is here ({})", found.path.display()),
        Some(Err(_)) | None => format!("{name} was not found (see libraries)"),
    };
    Err(format!("this release has no GPU backend; {here}"))
}

fn multicast() -> Result<&'static str, String> {
    let off = MULTICAST_OFF.iter().find(|(name, value)| env::var(name).is_ok_and(|v| v == *value));
    match off {
        Some((name, value)) => Err(format!("switched off by {name}={value}")),
        None => Err("no device here has it".to_owned()),
    }
}
