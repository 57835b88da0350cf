//! Work of others in a lane's order.

use symmem_hal::{Stream, Turn, Wait};

use super::{Lane, LaneError};

/// The lane's turn, for work that is not the library's: kernels of the user's, copies to and from
/// peers, launches of a graph. See [`Lane::scope`].
#[derive(Debug)]
#[must_use = "the lane's next operation comes as soon as this is dropped"]
pub struct LaneScope<'a> {
    _turn: Turn<'a>,
}

impl<'g> Lane<'g> {
    /// Takes the lane's turn for work on `stream` that is issued before the scope is dropped: it
    /// comes after the lane's operations so far and before those to come, on whatever streams; in a
    /// capture by edges. Local: no rank is spoken to, and no epoch used.
    ///
    /// The lane's own operations need the turn themselves: issued inside the scope, they wait for its
    /// end in vain.
    ///
    /// # Errors
    ///
    /// [`LaneError::Failed`] where the group has failed, [`LaneError::Order`] where the turn did not
    /// come in time.
    pub fn scope<'a>(&self, stream: &'a Stream, wait: &Wait) -> Result<LaneScope<'a>, LaneError>
    where
        'g: 'a,
    {
        self.shared.status.check()?;
        Ok(LaneScope { _turn: self.state().order.enter(stream, wait)? })
    }
}
