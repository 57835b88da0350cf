//! Prints which libraries are on this machine, where, and what they lack.

use symmem_sys::{LibraryReport, probe};

fn main() {
    for LibraryReport { name, outcome, .. } in probe() {
        match outcome {
            Ok(found) => {
                let version = found.version.map_or("version unknown".into(), |v| v.to_string());
                println!("{name} {version}: {} ({})", found.path.display(), found.place);
                println!("  {} of {} functions", found.known - found.missing.len(), found.known);
                for missing in found.missing {
                    match missing.since {
                        Some(since) => println!("  without {}, since {since}", missing.symbol),
                        None => println!("  without {}", missing.symbol),
                    }
                }
            }
            Err(not_found) => println!("{not_found:#}"),
        }
    }
}
