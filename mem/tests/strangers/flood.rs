//! Many strangers at once at the meeting point.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use rustix::process::{Resource, getrlimit};

use crate::Failed;
use crate::door::{connect, find, send};
use crate::run::{Run, descriptors, most_memory};

/// The most that strangers may take of a leader, beside what a rank has: descriptors of connections
/// without a proof, and of those that are just being closed; bytes.
const DESCRIPTORS: usize = 256 + 64;
const MEMORY: usize = 32 << 20;

/// Connections that are held, connections that come and go, and frames that nobody asked for, from
/// processes of the same user.
pub fn at_the_door() -> Result<(), Failed> {
    let mut run = Run::started("floods")?;
    run.goes_on()?;
    let (door, leader) = find(&run)?;
    let (few, little) = (descriptors(leader)?, most_memory(leader)?);
    let own = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let held: usize = usize::try_from(own / 2).unwrap_or(usize::MAX).min(2000);
    if held < 400 {
        return Err(format!("{own} descriptors: too few for a flood").into());
    }
    // Those that the leader lets go of stay open here.
    let silent: Vec<OwnedFd> = (0..held).map(|_| connect(&door)).collect::<Result<_, _>>()?;
    let at_once = descriptors(leader)?;
    run.goes_on()?;
    let over = AtomicBool::new(false);
    let go_on = || !over.load(Ordering::Relaxed);
    let (come, sent) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let most = thread::scope(|scope| -> Result<usize, Failed> {
        for _ in 0..2 {
            scope.spawn(|| {
                while go_on() {
                    // A full backlog refuses some.
                    come.fetch_add(connect(&door).is_ok().into(), Ordering::Relaxed);
                }
            });
            scope.spawn(|| {
                let garbage = [0xaa; 512];
                while go_on() {
                    let Ok(socket) = connect(&door) else { continue };
                    // Until it is closed, reading nothing.
                    while go_on() && send(&socket, &garbage).is_ok() {
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut most = at_once;
        let mut watch = || -> Result<(), Failed> {
            for _ in 0..5 {
                run.goes_on()?;
                most = descriptors(leader)?.max(most);
            }
            Ok(())
        };
        let watched = watch();
        over.store(true, Ordering::Relaxed);
        watched.map(|()| most)
    })?;
    drop(silent);
    let (come, sent) = (come.into_inner(), sent.into_inner());
    let grown = most_memory(leader)?.saturating_sub(little);
    println!(
        "{held} connections held, {come} more, {sent} frames of garbage: \
         {few} descriptors became {most} at most, memory grew by {} KiB",
        grown >> 10
    );
    if come < 100 || sent < 100 {
        return Err(format!("no flood: {come} connections, {sent} frames").into());
    }
    if most > few + DESCRIPTORS || grown > MEMORY {
        return Err(format!("{few} descriptors became {most}; {grown} bytes more").into());
    }
    run.ends_well()
}
