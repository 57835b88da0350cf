//! What a landing is made for.

use symmem_collectives::numerics::{BlockQuantiser, UnsupportedType, WeightedSum};
use symmem_hal::types::{DType, RankSet};
use symmem_hal::{Fault, Kind};
use symmem_mem::call::{Operation, Signature};
use symmem_mem::{RendezvousError, TensorError};

use crate::routing::plan::{Chosen, Record};
use crate::routing::shape::{Layout, Shape};
use crate::routing::{RoutingOptions, RoutingOptionsError};

/// What a landing is made for: equal on every rank, and agreed when it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LandingOptions {
    /// Experts of all ranks. Rank r has those from `r * experts / ranks` on.
    pub experts: usize,
    /// Choices of each token (top-k), of which some may be none.
    pub choices: usize,
    /// Most tokens of a rank in one send.
    pub tokens: u64,
    /// Elements of a row.
    pub row: u64,
    /// Their type: f32, f16 or bf16, or f8 where they are not quantised.
    pub dtype: DType,
    /// Whether rows travel to their experts as f8e4m3, with a scale for every 128 elements.
    pub quantised: bool,
}

impl LandingOptions {
    /// Rows that travel as they are.
    #[must_use]
    pub fn new(experts: usize, choices: usize, tokens: u64, row: u64, dtype: DType) -> Self {
        LandingOptions { experts, choices, tokens, row, dtype, quantised: false }
    }

    /// Rows travel to their experts as f8e4m3; what comes back is of their own type.
    #[must_use]
    pub fn quantised(self) -> Self {
        LandingOptions { quantised: true, ..self }
    }

    pub(super) fn shape(&self, world: usize) -> Result<Shape, LandingError> {
        WeightedSum::new(self.dtype)?;
        if self.quantised {
            BlockQuantiser::new(self.dtype)?;
        }
        let options = RoutingOptions::new(self.experts, self.choices, self.tokens);
        Ok(options.layout(Layout::RankMajor).shape(world)?)
    }

    /// Scales of a row.
    pub(super) fn scales(&self) -> u64 {
        self.row.div_ceil(BlockQuantiser::BLOCK as u64)
    }

    pub(super) fn record_bytes(&self) -> u64 {
        (size_of::<Record>() + self.choices * size_of::<Chosen>()) as u64
    }

    pub(super) fn digest(&self, shape: Shape) -> u64 {
        let words = [
            shape.experts as u64,
            shape.choices as u64,
            shape.tokens,
            self.row,
            u64::from(self.quantised),
        ];
        Signature::new(Operation::DispatchSend, Some(self.dtype), None, &words).0
    }
}

/// Why there is no landing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LandingError {
    /// The options are none that a landing can have.
    #[error(transparent)]
    Options(#[from] RoutingOptionsError),
    /// Rows of this type cannot be summed, or quantised.
    #[error(transparent)]
    Type(#[from] UnsupportedType),
    /// There is no memory for it.
    #[error(transparent)]
    Memory(#[from] TensorError),
    /// The ranks did not meet, or have other options.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
}

impl Fault for LandingError {
    fn kind(&self) -> Kind {
        match self {
            LandingError::Options(e) => e.kind(),
            LandingError::Type(_) => Kind::InvalidArgument,
            LandingError::Memory(e) => e.kind(),
            LandingError::Rendezvous(e) => e.kind(),
        }
    }

    fn ranks(&self) -> RankSet {
        match self {
            LandingError::Rendezvous(e) => e.ranks(),
            _ => RankSet::new(),
        }
    }
}
