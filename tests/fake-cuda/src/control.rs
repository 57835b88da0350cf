//! What a test tells this library beyond the driver's own interface, and asks of it.

use core::ffi::{CStr, c_char, c_int};

use crate::graph::objects::{self, OBJECTS};
use crate::graph::{EXECS, GRAPHS};
use crate::memory::physical;
use crate::memory::space::{self, Backing};
use crate::module::{LIBRARIES, MODULES};
use crate::stream::STREAMS;
use crate::stream::event::EVENTS;
use crate::{context, counts, faults, launch, stream};

/// The text behind a pointer; empty for null or for what is no text.
fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: not null; the caller vouches for a C string that lives during the call.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

fn obey(command: &str) -> bool {
    let (verb, rest) = command.split_once(' ').unwrap_or((command, ""));
    match verb {
        "fail" => return faults::replace(rest),
        "clear" => {
            faults::clear();
            stream::hold(false);
        }
        "reset-counts" => counts::reset(),
        "hold" => stream::hold(true),
        "go" => stream::hold(false),
        "settle" => {
            let _ = stream::finish_all();
            objects::settle();
        }
        "arguments" => match rest.parse() {
            Ok(bytes) => launch::keep_arguments(bytes),
            Err(_) => return false,
        },
        "budget" => {
            let mut numbers = rest.split(' ');
            let device = numbers.next().and_then(|device| device.parse().ok());
            let Some(device) = device else { return false };
            physical::set_budget(device, numbers.next().and_then(|bytes| bytes.parse().ok()));
        }
        _ => return false,
    }
    true
}

fn live(kind: &str) -> Option<usize> {
    let mapped = |wanted: fn(&Backing) -> bool| {
        space::read().mappings().filter(|mapping| wanted(&mapping.backing)).count()
    };
    Some(match kind {
        "contexts" => context::live(),
        "allocations" => mapped(|backing| {
            matches!(backing, Backing::Plain(_) | Backing::Pooled(_) | Backing::Host)
        }),
        "registrations" => mapped(|backing| matches!(backing, Backing::Registered)),
        "imports" => mapped(|backing| matches!(backing, Backing::Ipc(_))),
        "mappings" => mapped(|backing| matches!(backing, Backing::Virtual(..))),
        "reservations" => space::read().reservations.len(),
        "handles" => physical::live(),
        "streams" => STREAMS.live(),
        "events" => EVENTS.live(),
        "graphs" => GRAPHS.live() + EXECS.live(),
        "objects" => OBJECTS.live(),
        "modules" => MODULES.live() + LIBRARIES.live(),
        _ => return None,
    })
}

/// What of the driver's things is alive, but contexts and modules, which a program may keep.
const TRANSIENT: &[&str] = &[
    "allocations",
    "registrations",
    "imports",
    "mappings",
    "reservations",
    "handles",
    "streams",
    "events",
    "graphs",
    "objects",
];

/// Tells the library something; 0 where it understood.
///
/// | command | effect |
/// |---|---|
/// | `fail RULES` | replaces the rules of failure |
/// | `clear` | no rules, contexts whole again, streams go on |
/// | `reset-counts` | all counts of calls and failures are zero |
/// | `hold`, `go` | streams stand still before their next piece of work; go on |
/// | `settle` | returns when streams are idle and the callbacks of ended user objects have returned |
/// | `arguments BYTES` | of each launch from now on, so many bytes of the first argument are kept |
/// | `budget DEVICE [BYTES]` | the memory that a device has; without bytes, what the environment says |
///
/// Rules are `[RANK:]CALL[@N[+]]=CODE[,sticky]`, with semicolons between them: every call, the N-th
/// from now, or all from the N-th on returns the code and does nothing else; a call that waits has
/// waited before, since what such calls report are the errors of the work. A call may end in a star
/// and then means all that begin so. The rank is the environment's `RANK` where there is one, else
/// the ordinal of the thread's current device. `sticky` breaks that device's context for good.
///
/// # Safety
///
/// `command` must be null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmem_fake_cuda_control(command: *const c_char) -> c_int {
    if obey(&text(command)) { 0 } else { -1 }
}

/// How often a function was called, or all whose names begin with what stands before a final star.
/// Behind `failed:`, how often a rule made it fail. Behind `kernel:`, how often kernels of that name
/// were launched; behind `word:`, how many launches had this aligned word of 8 bytes, in hexadecimal,
/// in what is kept of their arguments.
///
/// # Safety
///
/// `call` must be null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmem_fake_cuda_count(call: *const c_char) -> u64 {
    counts::of(&text(call))
}

/// How many things of a kind are alive in this process: `contexts`, `allocations`, `registrations`,
/// `imports`, `mappings`, `reservations`, `handles`, `streams`, `events`, `graphs`, `objects`,
/// `modules`; for null, of all kinds but contexts and modules. [`u64::MAX`] for another kind.
///
/// # Safety
///
/// `kind` must be null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmem_fake_cuda_live(kind: *const c_char) -> u64 {
    if kind.is_null() {
        return TRANSIENT.iter().filter_map(|kind| live(kind)).sum::<usize>() as u64;
    }
    live(&text(kind)).map_or(u64::MAX, |count| count as u64)
}
