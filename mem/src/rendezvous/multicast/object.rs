//! The steps towards a multicast object.

use symmem_hal::{Memory, Multicast, MulticastError, MulticastMapping};

use super::MulticastStep::{self, Add, Bind, Create, Export, Import, Map};
use super::lockstep::{Lockstep, Refusal, Stopped, Vote};
use crate::exchange::Handle;
use crate::rendezvous::Imports;

/// One object of the memories of `ranks` ranks, mapped. What was made is let go of where it comes to
/// nothing: what is mapped first, then what is bound, then the object.
///
/// Memory is bound only after a vote: the driver waits there, without a bound, until every device has
/// been added.
pub(super) fn make(
    mut lockstep: Lockstep<'_>,
    memory: &Memory,
    imports: &Imports<'_>,
    ranks: usize,
) -> Result<MulticastMapping, Stopped> {
    let Imports { device, me, .. } = *imports;
    let (devices, bytes) = (u32::try_from(ranks).unwrap_or(u32::MAX), memory.bytes());
    let mut created = None;
    let (mut object, parts) = lockstep.step(|| {
        if me != 0 {
            return Ok((None, Vec::new()));
        }
        let create = || Multicast::create(device, devices, bytes).map_err(refused(Create));
        let object = once(&mut created, create)?;
        let shared = object.export().map_err(refused(Export))?;
        Ok((Some(object), vec![Handle::Shared(shared)]))
    })?;
    let shared = parts.into_iter().next().and_then(|mut part| part.handles.pop());
    let import = || match &shared {
        Some(Handle::Shared(shared)) => {
            Multicast::import(device, devices, bytes, shared).map_err(refused(Import))
        }
        _ => Err(refused(Import)(MulticastError::Handle)),
    };
    let (object, _) = lockstep.step(|| {
        let object = once(&mut object, import)?;
        object.add(device).map_err(refused(Add))?;
        Ok((object, Vec::new()))
    })?;
    let mut bound = None;
    let (mapping, _) = lockstep.step(|| {
        once(&mut bound, || object.bind(device, memory).map_err(refused(Bind)))?;
        Ok((object.map(device).map_err(refused(Map))?, Vec::new()))
    })?;
    Ok(mapping)
}

/// What is there already, or made now.
fn once<T: Clone>(
    place: &mut Option<T>,
    make: impl FnOnce() -> Result<T, Vote>,
) -> Result<T, Vote> {
    if let Some(made) = place {
        return Ok(made.clone());
    }
    Ok(place.insert(make()?).clone())
}

/// The vote of a rank that could not take a step.
fn refused(step: MulticastStep) -> impl Fn(MulticastError) -> Vote {
    move |error| {
        let refusal = Refusal { step, reason: error.to_string() };
        if error.is_transient() { Vote::Again(refusal) } else { Vote::No(refusal) }
    }
}
