//! Through the workspace, piece by piece.

use symmem_sync::host::{Ended, Session};
use symmem_sync::protocol::Peers;

use super::Work;

/// Who has data for others in an operation, and who takes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Roles {
    pub sources: Peers<'static>,
    pub readers: Peers<'static>,
}

impl Roles {
    /// Every rank has data for every rank.
    pub(crate) const ALL: Roles = Roles { sources: Peers::All, readers: Peers::All };

    /// One rank has data for all.
    pub(crate) const fn from(root: usize) -> Self {
        Roles { sources: Peers::One(root), readers: Peers::All }
    }

    /// Every rank has data for one.
    pub(crate) const fn to(root: usize) -> Self {
        Roles { sources: Peers::All, readers: Peers::One(root) }
    }

    /// Whom the data of a rank goes to.
    pub(crate) fn feeds(self, me: usize) -> Peers<'static> {
        if self.sources.contains(me) { self.readers } else { Peers::None }
    }

    /// Whose data a rank takes.
    pub(crate) fn consumes(self, me: usize) -> Peers<'static> {
        if self.readers.contains(me) { self.sources } else { Peers::None }
    }
}

/// Takes every part through the sources' staging, a piece at a time. `stage` stores a piece there;
/// `consume` takes one, once it awaited the flags of the sources it takes it from: piece k is there
/// when a source's is k + 1. Returns the last step.
///
/// There is room for two pieces. A rank raises k + 1 once its piece k is staged and it is done with
/// piece k - 1 of others, so piece k may overwrite piece k - 2 when all readers have raised k.
pub(crate) fn staged(
    work: &Work<'_>,
    session: &mut Session<'_>,
    roles: Roles,
    mut stage: impl FnMut(&Session<'_>, usize),
    mut consume: impl FnMut(&mut Session<'_>, usize) -> Result<(), Ended>,
) -> Result<u32, Ended> {
    let is_reader = roles.readers.contains(work.me);
    let is_source = roles.sources.contains(work.me) && work.others(roles.readers).next().is_some();
    let pieces = work.pieces();
    for k in 0..pieces {
        let step = k as u32 + 1;
        if is_source {
            if k >= 2 {
                for reader in work.others(roles.readers) {
                    session.await_flag(reader, step - 1)?;
                }
            }
            stage(session, k);
        }
        // Who only reads says so only to those who wait for it.
        if is_source || (k >= 1 && k + 1 < pieces) {
            session.raise(step);
        }
        if is_reader {
            session.agree()?;
            consume(session, k)?;
        }
    }
    Ok(pieces as u32)
}
