//! The report for people.

use std::io::{self, Write};

use symmem::hal::types::Bytes;

use super::features::Area;
use super::gpus::{Gpu, Link};
use super::report::{DeviceInfo, GroupOptions, LauncherInfo, Library, Outcome, Report};
use super::system::{Limit, Namespace, System};

/// Prints a report.
pub fn show(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    writeln!(out, "symmem {}", report.version)?;
    let System { host, kernel, architecture, page_bytes, memory_bytes } = &report.system;
    let memory =
        memory_bytes.map_or("unknown".to_owned(), |bytes| rounded(bytes).trim().to_owned());
    let page = Bytes(*page_bytes as u64);
    writeln!(out, "{kernel} on {architecture}, host {host}, {memory} in pages of {page}")?;
    writeln!(out, "\nDevices")?;
    for device in &report.devices {
        writeln!(out, "  {:8}{}", device.backend, describe(device))?;
        if let Some(gpu) = &device.gpu {
            writeln!(out, "  {:8}{}", "", describe_gpu(gpu, device.shareable))?;
        }
    }
    if let Some(version) = &report.nvidia_kernel_module {
        writeln!(out, "  the NVIDIA driver's kernel module is {version}")?;
    }
    for Link { from, to, peer_access, because } in &report.links {
        let access = if *peer_access { "peer access" } else { "no peer access" };
        writeln!(out, "  GPU {from} to GPU {to}: {access}: {because}")?;
    }
    writeln!(out, "\nShared memory that can be had")?;
    for limit in &report.memory_limits {
        writeln!(out, "  {}  under {}", rounded(limit.available_bytes), limit.source)?;
    }
    writeln!(out, "\nOther limits")?;
    for limit in &report.limits {
        show_limit(out, limit)?;
    }
    writeln!(out, "\nNamespaces")?;
    for Namespace { name, id, must_be_shared, because } in &report.namespaces {
        let id = id.as_deref().unwrap_or("none");
        let shared = if *must_be_shared { "shared by the ranks of a host" } else { "any" };
        writeln!(out, "  {name:6}{id:20}{shared}: {because}")?;
    }
    writeln!(out, "\nLibraries, loaded at run time")?;
    for library in &report.libraries {
        show_library(out, library)?;
    }
    for area in Area::ALL {
        writeln!(out, "\nFeatures of {}", area.name())?;
        for feature in report.features.iter().filter(|feature| feature.area == area) {
            let answer = if feature.supported { "yes" } else { "no" };
            writeln!(out, "  {answer:5}{:30}{}", feature.name, feature.because)?;
        }
    }
    writeln!(out, "\nA group's defaults")?;
    for (name, value) in options(&report.options) {
        writeln!(out, "  {name:14}{value}")?;
    }
    let LauncherInfo { name, because } = &report.launcher;
    writeln!(out, "\nLauncher")?;
    writeln!(out, "  {}: {because}", name.as_deref().unwrap_or("none"))?;
    writeln!(out, "\nEnvironment")?;
    for variable in &report.environment {
        let value = variable.value.as_ref().map_or("not set".to_owned(), |v| format!("{v:?}"));
        writeln!(out, "  {:34}{value:12} {}", variable.name, variable.meaning)?;
    }
    Ok(())
}

/// Rounded down to MiB; where that would be none, to the next smaller unit.
fn rounded(bytes: u64) -> String {
    match bytes >> 20 {
        0 if bytes >> 10 == 0 => format!("{bytes:>9} B  "),
        0 => format!("{:>9} KiB", bytes >> 10),
        mib => format!("{mib:>9} MiB"),
    }
}

fn show_limit(out: &mut dyn Write, limit: &Limit) -> io::Result<()> {
    let number = |n: Option<u64>| n.map_or("unlimited".to_owned(), |n| n.to_string());
    let Limit { name, source, limit, hard_limit, used, because } = limit;
    let used = used.map(|used| format!(", {used} in use")).unwrap_or_default();
    let raised = match hard_limit == limit {
        true => String::new(),
        false => format!(", can be raised to {}", number(*hard_limit)),
    };
    writeln!(out, "  {name}: {}{raised}{used}; set by {source}", number(*limit))?;
    writeln!(out, "    {because}")
}

fn describe(device: &DeviceInfo) -> String {
    let not = |can: bool| if can { "" } else { "no " };
    format!(
        "{}, units: {}, {}peer atomics, {}multicast, {}",
        device.name,
        device.units,
        not(device.peer_atomics),
        not(device.multicast),
        device.uuid,
    )
}

fn describe_gpu(gpu: &Gpu, descriptors: bool) -> String {
    let arch = gpu.arch.as_deref().unwrap_or("unknown");
    let bytes = |bytes: Option<u64>| {
        bytes.map_or("unknown".to_owned(), |bytes| rounded(bytes).trim().to_owned())
    };
    let can = [
        ("virtual memory", gpu.virtual_memory),
        ("memory as descriptors", descriptors),
        ("memory as fabric handles", gpu.fabric_handles),
        ("words stored by streams", gpu.stream_memory_operations),
    ];
    let can: Vec<String> =
        can.iter().map(|(name, can)| format!("{}{name}", if *can { "" } else { "no " })).collect();
    format!(
        "GPU {}, compute capability {arch}, {} of {} free, {}",
        gpu.ordinal,
        bytes(gpu.free_bytes),
        bytes(gpu.memory_bytes),
        can.join(", "),
    )
}

fn show_library(out: &mut dyn Write, library: &Library) -> io::Result<()> {
    match &library.outcome {
        Outcome::Yes { path, place, version, functions, missing } => {
            let version = version.as_deref().unwrap_or("of unknown version");
            writeln!(out, "  {} {version}: {} ({place})", library.name, path.display())?;
            write!(out, "    {functions} of {} functions", functions + missing.len())?;
            if missing.is_empty() {
                return writeln!(out);
            }
            writeln!(out, "; without {}", missing.join(", "))
        }
        Outcome::No { searched } => {
            let Library { name, variable, .. } = library;
            writeln!(out, "  {name}: not found; {variable} can name its path")?;
            for reasons in searched.chunk_by(|a, b| a.because == b.because) {
                writeln!(out, "    {}", reasons[0].because)?;
                for attempt in reasons {
                    writeln!(out, "      {:15} {}", attempt.place, attempt.path.display())?;
                }
            }
            Ok(())
        }
    }
}

fn options(options: &GroupOptions) -> [(&'static str, String); 8] {
    let (pad, lane) = (Bytes(options.pad_bytes), Bytes(options.workspace_bytes_per_lane));
    [
        ("workspace", format!("{lane} of shared memory on each rank, for each lane")),
        ("lanes", format!("{} at most", options.max_lanes)),
        (
            "signal pad",
            format!("{pad} on each rank: {} signals of each pair of 2 ranks", pad.get() / 8),
        ),
        ("deadline", format!("{} s for each wait", options.deadline_seconds)),
        ("determinism", options.determinism.clone()),
        ("completion", options.completion.clone()),
        ("multicast", options.multicast.to_string()),
        ("checked", options.checked.to_string()),
    ]
}
