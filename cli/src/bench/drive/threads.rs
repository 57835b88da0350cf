//! Ranks as threads of this process.

use std::sync::mpsc;

use symmem::launch::Threads;

use super::collector::{Collected, Collector};
use super::{DriveError, measure, options};
use crate::bench::devices::Devices;
use crate::bench::operation::Operation;
use crate::bench::show::Progress;

/// Measures an operation on threads.
pub fn threads(
    operation: &dyn Operation,
    devices: Devices,
    ranks: usize,
    progress: &Progress,
) -> Result<Collected, DriveError> {
    let devices = (0..ranks).map(|rank| devices.device(rank)).collect::<Result<_, _>>()?;
    let mut collector = Collector::new(operation, ranks, progress);
    let (sender, reports) = mpsc::channel();
    let launcher = Threads::new(ranks).options(options()).devices(devices);
    let run = move || {
        launcher.run(|group| {
            let rank = group.rank().index();
            // The receiver outlives the ranks.
            measure(&group, operation, &mut |report| drop(sender.send((rank, report))));
        })
    };
    let ended = std::thread::scope(|scope| {
        let run = scope.spawn(run);
        for (rank, report) in reports {
            collector.report(rank, report);
        }
        run.join()
    });
    match ended {
        Ok(Ok(_)) => collector.finish(),
        Ok(Err(error)) => Err(error.into()),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
