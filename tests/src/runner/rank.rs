//! A process that a runner started: serves as its ranks.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

#[cfg(feature = "mem")]
use parking_lot::Mutex;
use symmem_hal::Device;

use super::context::Context;
use super::error::TestError;
use super::inherit::Part;
use super::link::{Command, Link, Outcome, Report, Soak, text};
use super::place::{Mode, Place};
use super::test::Test;

thread_local! {
    /// What this thread's last panic said, on threads that are ranks.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

pub(super) fn main(part: Part, tests: &[Test]) -> ExitCode {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // A rank's panic is its outcome; any other is printed.
        let is_rank = PANIC.with_borrow_mut(|panic| panic.as_mut().map(|p| *p = info.to_string()));
        if is_rank.is_none() {
            hook(info);
        }
    }));
    match start(part, tests) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn start(part: Part, tests: &[Test]) -> Result<(), TestError> {
    let Part { place, mut links } = part;
    match place.mode {
        Mode::Local => {
            let link = links.pop().ok_or_else(|| TestError::failed("no socket"))?;
            match place.device(0) {
                Ok(device) => serve(&mut context(place, 0, device, link), tests),
                Err(e) => Ok(gone(&link, format!("no device: {e}"))?),
            }
        }
        #[cfg(feature = "mem")]
        Mode::Processes => process(place, links, tests),
        #[cfg(feature = "mem")]
        Mode::Threads => threads(place, links, tests),
        #[cfg(not(feature = "mem"))]
        _ => Err(TestError::failed("ranks need the feature mem")),
    }
}

/// Says why a rank can run no test.
fn gone(link: &Link, why: String) -> std::io::Result<()> {
    link.send(&Report::Ended(Outcome::Failed(text(why))))
}

fn context(place: Place, rank: usize, device: Device, link: Link) -> Context {
    Context {
        place,
        rank,
        device,
        seed: 0,
        soak: Soak::default(),
        link,
        #[cfg(feature = "mem")]
        world: None,
    }
}

/// This process is one rank.
#[cfg(feature = "mem")]
fn process(place: Place, links: Vec<Link>, tests: &[Test]) -> Result<(), TestError> {
    use super::context::options;
    use symmem_mem::Group;
    use symmem_mem::bootstrap::Bootstrap;

    let bootstrap = Bootstrap::from_env()?;
    // The others' are closed: theirs alone.
    let link =
        links.into_iter().nth(bootstrap.rank).ok_or_else(|| TestError::failed("no socket"))?;
    let device = match place.device(bootstrap.rank) {
        Ok(device) => device,
        Err(e) => return Ok(gone(&link, format!("no device: {e}"))?),
    };
    let mut context = context(place, bootstrap.rank, device, link);
    let options = options(place.ranks);
    let wait = symmem_hal::Wait::timeout(options.deadline);
    context.world = match Group::join(&bootstrap, &context.device, &options, &wait) {
        Ok(group) => Some(group),
        Err(e) => return Ok(gone(&context.link, format!("no group: {e}"))?),
    };
    serve(&mut context, tests)
}

/// This process is all ranks.
#[cfg(feature = "mem")]
fn threads(place: Place, links: Vec<Link>, tests: &[Test]) -> Result<(), TestError> {
    use super::context::options;
    use symmem_mem::launch::Threads;

    let devices: Result<Vec<_>, _> = (0..place.ranks).map(|rank| place.device(rank)).collect();
    let devices = match devices {
        Ok(devices) => devices,
        Err(e) => {
            return Ok(links.iter().try_for_each(|link| gone(link, format!("no device: {e}")))?);
        }
    };
    let links: Vec<_> = links.into_iter().map(|link| Mutex::new(Some(link))).collect();
    let ranks = Threads::new(place.ranks).options(options(place.ranks)).devices(devices);
    let ended = ranks.run(|group| {
        let rank = group.rank().index();
        // For whoever looks at the threads of a rank that hangs.
        if let Ok(name) = std::ffi::CString::new(format!("rank-{rank}")) {
            let _ = rustix::thread::set_name(&name);
        }
        let link = links.get(rank).and_then(|link| link.lock().take());
        let link = link.ok_or_else(|| TestError::failed("no socket"))?;
        let device = group.device().clone();
        let mut context = context(place, rank, device, link);
        context.world = Some(group);
        serve(&mut context, tests)
    });
    match ended {
        Ok(ends) => ends.into_iter().collect(),
        // Of ranks that have begun, nobody tells here: their sockets are theirs.
        Err(e) => {
            let rest = links.iter().filter_map(|link| link.lock().take());
            Ok(rest.into_iter().try_for_each(|link| gone(&link, format!("no group: {e}")))?)
        }
    }
}

/// Runs tests by name until told to end.
fn serve(context: &mut Context, tests: &[Test]) -> Result<(), TestError> {
    PANIC.set(Some(String::new()));
    context.link.send(&Report::Ready)?;
    loop {
        let (name, seed, soak) = match context.link.receive()? {
            Command::End => return Ok(()),
            Command::Run { test, seed, soak } => (test, seed, soak),
            // An answer to a meeting that a panic has ended.
            Command::Go | Command::GiveUp => continue,
        };
        (context.seed, context.soak) = (seed, soak);
        let outcome = match tests.iter().find(|test| test.name() == name) {
            Some(test) => run(context, test),
            None => Outcome::Failed(format!("this program has no test {name}")),
        };
        context.link.send(&Report::Ended(outcome))?;
    }
}

fn run(context: &Context, test: &Test) -> Outcome {
    match catch_unwind(AssertUnwindSafe(|| (test.body)(context))) {
        Ok(Ok(())) => Outcome::Passed,
        Ok(Err(TestError::Skipped { reason })) => Outcome::Skipped(text(reason)),
        Ok(Err(TestError::GaveUp)) => Outcome::GaveUp,
        Ok(Err(error)) => Outcome::Failed(text(error.to_string())),
        Err(panic) => Outcome::Failed(text(what_it_said(&*panic))),
    }
}

fn what_it_said(panic: &(dyn Any + Send)) -> String {
    let said = PANIC.with_borrow_mut(|said| said.replace(String::new())).unwrap_or_default();
    match panic.downcast_ref::<&str>() {
        // One that was resumed has no hook's text.
        Some(message) if said.is_empty() => (*message).to_owned(),
        _ => said,
    }
}
