//! One error for programs that do not care which operation failed.

use core::fmt;

use symmem_hal::types::RankSet;
use symmem_hal::{Fault, Kind};

/// Any error of symmem: what `?` makes of each operation's own.
///
/// ```
/// use symmem::prelude::*;
///
/// fn run(group: &Group) -> Result<(), symmem::Error> {
///     let x = Tensor::<f32>::zeros(group.device(), &[16])?; // TensorError
///     group.all_reduce(&x).run()?; // AllReduceError
///     Ok(())
/// }
/// ```
pub struct Error(Box<dyn Fault>);

impl Error {
    /// The sort of error.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.0.kind()
    }

    /// The ranks that it names.
    #[must_use]
    pub fn ranks(&self) -> RankSet {
        self.0.ranks()
    }

    /// The operation's own error.
    #[must_use]
    pub fn fault(&self) -> &dyn Fault {
        &*self.0
    }
}

impl Error {
    /// The operation's own error, if it is an `E`.
    #[must_use]
    pub fn downcast_ref<E: Fault>(&self) -> Option<&E> {
        let error: &(dyn std::error::Error + 'static) = &*self.0;
        error.downcast_ref()
    }
}

impl<E: Fault> From<E> for Error {
    fn from(error: E) -> Self {
        Error(Box::new(error))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Error {
    /// The text, since this is what `main` prints of an error it returns; `{:#?}` for the fields.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() { fmt::Debug::fmt(&self.0, f) } else { fmt::Display::fmt(&self.0, f) }
    }
}

// Not a `Fault` itself, or the conversion above would apply to it twice.
impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}
