//! What calls check of the tensors that they are given.

use symmem_collectives::CallError;
use symmem_hal::types::DType;
use symmem_hal::{DevicePtr, Fault, Kind};
use symmem_mem::{Group, View};

/// A tensor is not what the call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorMismatch {
    /// Rows follow each other along the first dimension.
    #[error("the {what} has no dimensions: rows follow each other along the first one")]
    NoRows {
        /// Which tensor.
        what: &'static str,
    },
    /// Another number of rows.
    #[error("the {what} has {found} rows, {expected} are needed")]
    Rows {
        /// Which tensor.
        what: &'static str,
        /// Rows needed.
        expected: u64,
        /// Rows it has.
        found: u64,
    },
    /// More rows than there is room for, or fewer than are needed.
    #[error("the {what} has {found} rows, at most {most} are taken")]
    TooManyRows {
        /// Which tensor.
        what: &'static str,
        /// Rows that there is room for.
        most: u64,
        /// Rows it has.
        found: u64,
    },
    /// Fewer rows than are needed.
    #[error("the {what} has {found} rows, at least {least} are needed")]
    TooFewRows {
        /// Which tensor.
        what: &'static str,
        /// Rows needed.
        least: u64,
        /// Rows it has.
        found: u64,
    },
    /// A row has another number of elements.
    #[error("a row of the {what} has {found} elements, {expected} are needed")]
    Row {
        /// Which tensor.
        what: &'static str,
        /// Elements needed.
        expected: u64,
        /// Elements it has.
        found: u64,
    },
    /// Another number of elements.
    #[error("the {what} has {found} elements, {expected} are needed")]
    Count {
        /// Which tensor.
        what: &'static str,
        /// Elements needed.
        expected: u64,
        /// Elements it has.
        found: u64,
    },
    /// Another element type.
    #[error("the {what} is of {found}, {expected} is needed")]
    DType {
        /// Which tensor.
        what: &'static str,
        /// What would do.
        expected: &'static str,
        /// Its type.
        found: DType,
    },
    /// Peers reach into it, so it must be memory that they have mapped.
    #[error("the {what} had no rendezvous in this group: call group.rendezvous first")]
    NotSymmetric {
        /// Which tensor.
        what: &'static str,
    },
    /// Two tensors share bytes.
    #[error("the {a} and the {b} overlap")]
    Overlap {
        /// One of them.
        a: &'static str,
        /// The other.
        b: &'static str,
    },
}

impl Fault for TensorMismatch {
    fn kind(&self) -> Kind {
        Kind::InvalidArgument
    }
}

/// A tensor of a call, by what it is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<'a> {
    pub what: &'static str,
    pub view: &'a View,
}

/// Where symmetric memory is, equal on every rank but for the table's address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapped {
    pub ordinal: u64,
    pub peers: DevicePtr,
    pub offset: u64,
}

impl<'a> Named<'a> {
    pub(crate) fn new(what: &'static str, view: &'a View) -> Self {
        Named { what, view }
    }

    /// That it is without gaps, and where the group is.
    pub(crate) fn check(&self, group: &Group) -> Result<(), CallError> {
        self.view.contiguous()?;
        let (backend, found) = (group.device().kind(), self.view.memory().backend());
        if backend == found {
            return Ok(());
        }
        Err(CallError::Backend { what: self.what, group: backend, found })
    }

    /// Rows, and elements of a row.
    pub(crate) fn rows(&self) -> Result<(u64, u64), TensorMismatch> {
        match self.view.layout().shape() {
            [] => Err(TensorMismatch::NoRows { what: self.what }),
            [rows, row @ ..] => Ok((*rows, row.iter().product())),
        }
    }

    /// That it has as many rows of as many elements.
    pub(crate) fn shaped(&self, rows: u64, row: u64) -> Result<(), TensorMismatch> {
        let (found_rows, found) = self.rows()?;
        let what = self.what;
        if found_rows != rows {
            return Err(TensorMismatch::Rows { what, expected: rows, found: found_rows });
        }
        if found != row {
            return Err(TensorMismatch::Row { what, expected: row, found });
        }
        Ok(())
    }

    pub(crate) fn counts(&self, expected: u64) -> Result<(), TensorMismatch> {
        let found = self.view.count();
        let wrong = TensorMismatch::Count { what: self.what, expected, found };
        if found == expected { Ok(()) } else { Err(wrong) }
    }

    /// That it is of one of these types, called `expected` together.
    pub(crate) fn of(&self, types: &[DType], expected: &'static str) -> Result<(), TensorMismatch> {
        let found = self.view.dtype();
        let wrong = TensorMismatch::DType { what: self.what, expected, found };
        if types.contains(&found) { Ok(()) } else { Err(wrong) }
    }

    pub(crate) fn mapped(&self, group: &Group) -> Result<Mapped, TensorMismatch> {
        let found = group.mapping(self.view);
        let (ordinal, peers) = found.ok_or(TensorMismatch::NotSymmetric { what: self.what })?;
        Ok(Mapped { ordinal, peers, offset: self.view.offset().get() })
    }
}

/// That what is written shares no byte with anything else.
pub(crate) fn apart(written: &[Named<'_>], read: &[Named<'_>]) -> Result<(), TensorMismatch> {
    for (i, a) in written.iter().enumerate() {
        let others = written[..i].iter().chain(read);
        if let Some(b) = others.into_iter().find(|b| a.view.overlaps(b.view)) {
            return Err(TensorMismatch::Overlap { a: a.what, b: b.what });
        }
    }
    Ok(())
}
