//! Everything that `symmem info` tells, as it is written as JSON.

use std::env;
use std::path::PathBuf;

use serde::Serialize;
use symmem::hal::shm;
use symmem::hal::types::BackendKind;
use symmem::mem::bootstrap::Bootstrap;
use symmem::prelude::*;
use symmem::sys::{LibraryReport, probe};

use super::features::{Feature, features};
use super::gpus::{self, Gpu, Gpus, Link};
use super::system::{self, Limit, Namespace, System};

/// What this machine offers.
#[derive(Debug, Serialize)]
pub struct Report {
    pub version: &'static str,
    pub system: System,
    pub devices: Vec<DeviceInfo>,
    /// Of GPUs with each other.
    pub links: Vec<Link>,
    /// The version of the NVIDIA driver's kernel module.
    pub nvidia_kernel_module: Option<String>,
    pub memory_limits: Vec<MemoryLimit>,
    pub limits: Vec<Limit>,
    pub namespaces: Vec<Namespace>,
    pub libraries: Vec<Library>,
    pub features: Vec<Feature>,
    pub options: GroupOptions,
    pub launcher: LauncherInfo,
    pub environment: Vec<Variable>,
}

/// A device.
#[derive(Debug, Serialize)]
pub struct DeviceInfo {
    pub backend: &'static str,
    pub name: String,
    pub uuid: String,
    pub units: u32,
    pub peer_atomics: bool,
    pub shareable: bool,
    pub multicast: bool,
    #[serde(flatten)]
    pub gpu: Option<Gpu>,
}

/// Something that bounds shared memory.
#[derive(Debug, Serialize)]
pub struct MemoryLimit {
    pub source: String,
    pub available_bytes: u64,
}

/// A library that is loaded at run time.
#[derive(Debug, Serialize)]
pub struct Library {
    pub name: &'static str,
    /// The variable that can name its path.
    pub variable: &'static str,
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Whether a library is here.
#[derive(Debug, Serialize)]
#[serde(tag = "found", rename_all = "snake_case")]
pub enum Outcome {
    Yes {
        path: PathBuf,
        place: String,
        version: Option<String>,
        functions: usize,
        missing: Vec<String>,
    },
    No {
        searched: Vec<Attempt>,
    },
}

/// A place where a library is not.
#[derive(Debug, Serialize)]
pub struct Attempt {
    pub path: PathBuf,
    pub place: String,
    pub because: String,
}

/// What a group is made with unless told otherwise.
#[derive(Debug, Serialize)]
pub struct GroupOptions {
    pub pad_bytes: u64,
    pub workspace_bytes_per_lane: u64,
    pub max_lanes: u32,
    pub max_blocks: u32,
    pub deadline_seconds: f64,
    pub checked: bool,
    pub determinism: String,
    pub completion: String,
    pub multicast: bool,
}

/// What started this process as a rank.
#[derive(Debug, Serialize)]
pub struct LauncherInfo {
    /// `null` where none did, or it cannot be told.
    pub name: Option<String>,
    /// Which rank of which run it is; else why it is none.
    pub because: String,
}

/// A variable that is read, and its value now.
#[derive(Debug, Serialize)]
pub struct Variable {
    pub name: &'static str,
    pub meaning: &'static str,
    pub value: Option<String>,
}

/// What is read, by whom, for what.
const VARIABLES: [(&str, &str); 38] = [
    ("RANK", "this process's rank; set by torchrun and symmem run"),
    ("WORLD_SIZE", "number of ranks"),
    ("LOCAL_RANK", "its rank among those of this host"),
    ("LOCAL_WORLD_SIZE", "number of ranks on this host"),
    ("GROUP_RANK", "this host's index, or its torchrun's"),
    ("GROUP_WORLD_SIZE", "number of hosts, or of torchruns"),
    ("MASTER_ADDR", "host of the store, with any launcher"),
    ("MASTER_PORT", "port of the store, with any launcher"),
    ("TORCHELASTIC_RUN_ID", "the run's name"),
    ("TORCHELASTIC_RESTART_COUNT", "how often the run was started again"),
    ("TORCHELASTIC_USE_AGENT_STORE", "True: the launcher hosts the store; else rank 0"),
    ("OMPI_COMM_WORLD_RANK", "this process's rank; set by Open MPI's mpirun"),
    ("OMPI_COMM_WORLD_SIZE", "number of ranks"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "its rank among those of this host"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "number of ranks on this host"),
    ("PMI_RANK", "this process's rank; set by mpiexec of MPICH and Intel MPI"),
    ("PMI_SIZE", "number of ranks"),
    ("MPI_LOCALRANKID", "its rank among those of this host"),
    ("MPI_LOCALNRANKS", "number of ranks on this host"),
    ("SLURM_STEP_ID", "set where Slurm's srun started this process"),
    ("SLURM_PROCID", "this process's rank, in a step"),
    ("SLURM_STEP_NUM_TASKS", "number of ranks"),
    ("SLURM_LOCALID", "its rank among those of this host"),
    ("SLURM_NODEID", "this host's index"),
    ("SLURM_STEP_TASKS_PER_NODE", "numbers of ranks on the hosts"),
    ("SLURM_STEP_NODELIST", "the hosts"),
    (
        "SYMMEM_ADDRESS",
        "an address of this host for ranks on others, instead of the one towards the store",
    ),
    ("SYMMEM_TUNE", "a choice table, as symmem tune writes it"),
    ("SYMMEM_CUDA_LIBRARY", "path of the CUDA driver, instead of a search"),
    ("SYMMEM_NVRTC_LIBRARY", "path of NVRTC, instead of a search"),
    ("SYMMEM_CACHE_DIR", "folder of compiled kernels, instead of one in XDG_CACHE_HOME or HOME"),
    ("SYMMEM_KERNEL_BUNDLE", "files of compiled kernels, as PATH lists folders"),
    ("CUDA_VISIBLE_DEVICES", "the GPUs that the driver shows; read by it"),
    ("SYMMEM_MULTICAST", "0: no multicast"),
    ("NCCL_NVLS_ENABLE", "0: no multicast"),
    ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1: no multicast"),
    ("NVSHMEM_DISABLE_NVLS", "1: no multicast"),
    ("RUST_LOG", "what this command logs to standard error, such as debug; read by it alone"),
];

impl Report {
    /// Looks.
    pub fn new() -> Self {
        let libraries = probe();
        let gpus = Gpus::new();
        let plain = [Device::host(), Device::stub(0)];
        let plain = plain.iter().map(|device| DeviceInfo::new(device, None));
        let described = gpus.described().map(|(device, gpu)| DeviceInfo::new(device, Some(gpu)));
        Report {
            version: env!("CARGO_PKG_VERSION"),
            system: System::new(),
            devices: plain.chain(described).collect(),
            links: gpus.links(),
            nvidia_kernel_module: gpus::kernel_module(),
            memory_limits: shm::limits().into_iter().map(MemoryLimit::from).collect(),
            limits: system::limits(),
            namespaces: system::namespaces(),
            features: features(&libraries, &gpus),
            libraries: libraries.into_iter().map(Library::from).collect(),
            options: GroupOptions::from(Options::default()),
            launcher: LauncherInfo::new(),
            environment: VARIABLES
                .into_iter()
                .map(|(name, meaning)| Variable {
                    name,
                    meaning,
                    value: env::var_os(name).map(|value| value.to_string_lossy().into_owned()),
                })
                .collect(),
        }
    }
}

impl DeviceInfo {
    fn new(device: &Device, gpu: Option<Gpu>) -> Self {
        let can = device.capabilities();
        DeviceInfo {
            backend: device.kind().name(),
            name: device.name(),
            uuid: device.uuid().to_string(),
            units: can.units,
            peer_atomics: can.peer_atomics,
            shareable: can.shareable,
            multicast: can.multicast,
            gpu,
        }
    }
}

impl LauncherInfo {
    fn new() -> Self {
        let found = match Bootstrap::from_env() {
            Ok(found) => found,
            Err(error) => return LauncherInfo { name: None, because: error.to_string() },
        };
        let Bootstrap { rank, world_size, store, host, .. } = &found;
        let here =
            found.local_world_size.map_or(String::new(), |n| format!(", {n} of them on this host"));
        LauncherInfo {
            name: Some(found.launcher.to_string()),
            because: format!(
                "rank {rank} of {world_size}{here}; the store is at {store}, hosted by {host}"
            ),
        }
    }
}

impl From<shm::Limit> for MemoryLimit {
    fn from(limit: shm::Limit) -> Self {
        MemoryLimit { source: limit.source.to_string(), available_bytes: limit.available.get() }
    }
}

impl From<LibraryReport> for Library {
    fn from(report: LibraryReport) -> Self {
        let outcome = match report.outcome {
            Ok(found) => Outcome::Yes {
                path: found.path,
                place: found.place.to_string(),
                version: found.version.map(|version| version.to_string()),
                functions: found.known - found.missing.len(),
                missing: found.missing.iter().map(|symbol| symbol.symbol.to_owned()).collect(),
            },
            Err(missing) => Outcome::No {
                searched: missing
                    .searched()
                    .iter()
                    .map(|attempt| Attempt {
                        path: attempt.path.clone(),
                        place: attempt.place.to_string(),
                        because: attempt.reason.clone(),
                    })
                    .collect(),
            },
        };
        Library { name: report.name, variable: report.variable, outcome }
    }
}

impl From<Options> for GroupOptions {
    fn from(options: Options) -> Self {
        GroupOptions {
            pad_bytes: options.pad.get(),
            workspace_bytes_per_lane: options.on(BackendKind::Host).workspace.get(),
            max_lanes: options.max_lanes,
            max_blocks: options.max_blocks,
            deadline_seconds: options.deadline.as_secs_f64(),
            checked: options.checked,
            determinism: format!("{:?}", options.determinism).to_lowercase(),
            completion: format!("{:?}", options.completion).to_lowercase(),
            multicast: options.multicast,
        }
    }
}
