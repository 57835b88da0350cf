//! What the layers above were built with, as far as ranks must have been built alike.
//!
//! A group is made before any of those layers is asked for something, and this one does not know
//! them. So each leaves its stamps where the linker gathers them, and ranks compare all of them when
//! they make a group and at each rendezvous. A stamp that only some ranks have is no difference: the
//! others do not have its layer, and cannot call it.

use linkme::distributed_slice;
use symmem_hal::types::BackendKind;

/// Something that all ranks which have it must have alike.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// What it is, as an error calls it: `the kernels of symmem-sync`.
    pub name: &'static str,
    /// What it is like in this process, for groups on a backend; `None` where it is of no matter.
    pub value: fn(BackendKind) -> Option<String>,
}

/// Those of all layers that this program was linked with.
#[distributed_slice]
pub static STAMPS: [Stamp];

/// Names and values, in the order of names: the linker knows no order.
pub(crate) fn on(backend: BackendKind) -> Vec<(String, String)> {
    let stamp = |stamp: &Stamp| Some((stamp.name.to_owned(), (stamp.value)(backend)?));
    let mut stamps: Vec<_> = STAMPS.iter().filter_map(stamp).collect();
    stamps.sort();
    stamps
}
