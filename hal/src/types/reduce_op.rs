//! Reduction operators.

use core::fmt;

use super::DType;
use crate::{Fault, Kind};

/// How a reduction combines the elements of the ranks.
///
/// The discriminants travel between ranks and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum. Integers wrap.
    Sum = 1,
    /// The sum divided by the number of ranks. Integers divide the exact sum, toward zero.
    Avg = 2,
    /// The least. Of floats IEEE 754-2019 `minimum`: a NaN propagates and -0 is less than +0.
    Min = 3,
    /// The greatest. Of floats IEEE 754-2019 `maximum`: a NaN propagates and -0 is less than +0.
    Max = 4,
    /// The product. Integers wrap.
    Product = 5,
    /// Bitwise and. Integers only.
    And = 6,
    /// Bitwise or. Integers only.
    Or = 7,
    /// Bitwise exclusive or. Integers only.
    Xor = 8,
}

impl ReduceOp {
    /// Every operator, in the order of their codes.
    pub const ALL: [ReduceOp; 8] = [
        ReduceOp::Sum,
        ReduceOp::Avg,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Product,
        ReduceOp::And,
        ReduceOp::Or,
        ReduceOp::Xor,
    ];

    /// The name that the command line, messages and files use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Avg => "avg",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Product => "product",
            ReduceOp::And => "and",
            ReduceOp::Or => "or",
            ReduceOp::Xor => "xor",
        }
    }

    /// The code that travels between ranks.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The operator of a code; `None` for a code of no operator.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.code() == code)
    }

    /// The operator of a [`name`](Self::name); `None` for an unknown one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.name() == name)
    }

    /// Whether this is one of the bitwise operators.
    #[must_use]
    pub const fn is_bitwise(self) -> bool {
        matches!(self, ReduceOp::And | ReduceOp::Or | ReduceOp::Xor)
    }

    /// Whether the operator is defined on elements of this type: all but the bitwise ones on
    /// floats.
    #[must_use]
    pub const fn supports(self, dtype: DType) -> bool {
        !(self.is_bitwise() && dtype.is_float())
    }

    /// As [`supports`](Self::supports), with the refusal as an error.
    ///
    /// # Errors
    ///
    /// [`UnsupportedOp`] for a bitwise operator on floats.
    pub const fn check(self, dtype: DType) -> Result<(), UnsupportedOp> {
        if self.supports(dtype) { Ok(()) } else { Err(UnsupportedOp { op: self, dtype }) }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An operator that is not defined on an element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operator {op} is defined on integers only, not on {dtype}")]
pub struct UnsupportedOp {
    /// The operator asked for.
    pub op: ReduceOp,
    /// The element type it was asked for.
    pub dtype: DType,
}

impl Fault for UnsupportedOp {
    fn kind(&self) -> Kind {
        Kind::InvalidArgument
    }
}
