//! What a routing is made for.

use symmem_hal::{Fault, Kind};
use symmem_mem::call::{Operation, Signature};

use super::shape::{Layout, Shape};
use crate::all_to_all_vdev::Overflow;

/// What a routing is made for: equal on every rank, and agreed when it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoutingOptions {
    /// Experts of all ranks. Rank r has those from `r * experts / ranks` on: as evenly as it goes.
    pub experts: usize,
    /// Choices of each token (top-k), of which some may be none.
    pub choices: usize,
    /// Most tokens of a rank in one dispatch.
    pub tokens: u64,
    /// How received rows lie.
    pub layout: Layout,
    /// Rows that a rank has room for, where the layout is [`Layout::Compact`]; `None` for as many as there can
    /// be without padding: `ranks * tokens * choices`.
    pub capacity: Option<u64>,
    /// What happens to rows that do not fit.
    pub overflow: Overflow,
}

impl RoutingOptions {
    /// Rows by expert, with room for all there can be.
    #[must_use]
    pub fn new(experts: usize, choices: usize, tokens: u64) -> Self {
        RoutingOptions {
            experts,
            choices,
            tokens,
            layout: Layout::Compact { align: 0 },
            capacity: None,
            overflow: Overflow::Error,
        }
    }

    /// How received rows lie.
    #[must_use]
    pub fn layout(self, layout: Layout) -> Self {
        RoutingOptions { layout, ..self }
    }

    /// Rows that a rank has room for, of [`Layout::Compact`].
    #[must_use]
    pub fn capacity(self, rows: u64) -> Self {
        RoutingOptions { capacity: Some(rows), ..self }
    }

    /// What happens to rows that do not fit.
    #[must_use]
    pub fn overflow(self, overflow: Overflow) -> Self {
        RoutingOptions { overflow, ..self }
    }

    pub(crate) fn shape(&self, world: usize) -> Result<Shape, RoutingOptionsError> {
        let Self { experts, choices, tokens, layout, .. } = *self;
        if experts == 0 || u32::try_from(experts).is_err() {
            return Err(RoutingOptionsError::Experts { experts });
        }
        if choices == 0 || choices > MOST_CHOICES {
            return Err(RoutingOptionsError::Choices { choices, most: MOST_CHOICES });
        }
        if tokens >= 1 << 32 {
            return Err(RoutingOptionsError::Tokens { tokens });
        }
        let ranks = world as u64;
        let capacity = match layout {
            Layout::Compact { align } if align >= MOST_ROWS => None,
            Layout::Compact { .. } => match self.capacity {
                Some(rows) => Some(rows),
                None => ranks.checked_mul(tokens).and_then(|all| all.checked_mul(choices as u64)),
            },
            _ if self.capacity.is_some() => return Err(RoutingOptionsError::Capacity { layout }),
            Layout::Padded { rows } => rows.checked_mul(experts.div_ceil(world) as u64),
            Layout::RankMajor => Some(ranks * tokens),
        };
        match capacity {
            Some(capacity @ ..MOST_ROWS) => {
                Ok(Shape { world, experts, choices, tokens, capacity, layout })
            }
            _ => Err(RoutingOptionsError::Rows { most: MOST_ROWS - 1 }),
        }
    }

    pub(super) fn digest(&self, shape: Shape) -> u64 {
        let (layout, rows) = shape.layout.code();
        let drop = u64::from(self.overflow == Overflow::Drop);
        let words = [
            shape.experts as u64,
            shape.choices as u64,
            shape.tokens,
            shape.capacity,
            u64::from(layout) << 1 | drop,
            rows,
        ];
        Signature::new(Operation::Dispatch, None, None, &words).0
    }
}

/// Rows that a place can name, beside its rank.
const MOST_ROWS: u64 = 1 << super::plan::RANK_SHIFT;

/// Most choices of a token.
const MOST_CHOICES: usize = 1024;

/// Why options are none that a routing can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RoutingOptionsError {
    /// There is at least one expert, and no more than 32 bits count.
    #[error("{experts} experts: at least 1 is needed, and 32 bits must count them")]
    Experts {
        /// Experts asked for.
        experts: usize,
    },
    /// A token has at least one choice.
    #[error("{choices} choices of a token: 1 to {most} are possible")]
    Choices {
        /// Choices asked for.
        choices: usize,
        /// The most possible.
        most: usize,
    },
    /// Tokens are counted by 32 bits.
    #[error("{tokens} tokens of a rank: at most 2^32 - 1 are possible")]
    Tokens {
        /// Tokens asked for.
        tokens: u64,
    },
    /// A capacity is given for a layout that has its own.
    #[error("a capacity says how many rows Layout::Compact has; {layout:?} has its own")]
    Capacity {
        /// The layout asked for.
        layout: Layout,
    },
    /// A rank would need more rows than can be counted.
    #[error("more than {most} rows of a rank")]
    Rows {
        /// The most possible.
        most: u64,
    },
}

impl Fault for RoutingOptionsError {
    fn kind(&self) -> Kind {
        Kind::InvalidArgument
    }
}
