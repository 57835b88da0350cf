//! Reductions of tiles to the ranks that are their roots.

use smallvec::SmallVec;
use symmem_collectives::{CallError, Tile, TileReduction};
use symmem_hal::types::{DType, Layout, Rank, ReduceOp};
use symmem_mem::call::Operation;
use symmem_mem::{Failure, Group, View};

use crate::call::{At, Call, Exchange, failed};
use crate::verdict::Refusal;

/// Why a reduction of tiles did not happen, or did not end well.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TileReduceError {
    /// The group has failed, or this rank has left it. The output is unspecified if the operation itself
    /// failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// It could not be issued.
    #[error(transparent)]
    Call(#[from] CallError),
    /// An all-to-all-v before it on this lane was refused, which nobody had asked for yet; this one has been
    /// issued.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A call is of one tile at least: of none there is no type.
    #[error("no tiles: pass at least one, of no elements if need be")]
    NoTiles,
    /// Each tile has one root.
    #[error("{roots} roots for {tiles} tiles")]
    Roots {
        /// How many tiles.
        tiles: usize,
        /// How many roots.
        roots: usize,
    },
    /// A rank has one output.
    #[error("{rank} is the root of the tiles {first} and {second}: a rank can be the root of one")]
    RootTwice {
        /// The rank.
        rank: Rank,
        /// One of its tiles.
        first: usize,
        /// Another.
        second: usize,
    },
    /// This rank is a root and has passed no output.
    #[error("this rank is the root of tile {tile}: pass an output tile")]
    NoOutput {
        /// Which tile.
        tile: usize,
    },
    /// This rank is no root and has passed an output.
    #[error("this rank is no root: pass no output tile")]
    NeedlessOutput,
    /// A tile is one dimension or two, with rows that have no gaps in them and do not overlap.
    #[error(
        "tile {tile} is {layout:?}: a tile is a row, or rows without gaps in them that do not overlap"
    )]
    NotRows {
        /// Which tile.
        tile: usize,
        /// Its layout.
        layout: Box<Layout>,
    },
    /// As [`NotRows`](Self::NotRows), of the output.
    #[error(
        "the output tile is {layout:?}: a tile is a row, or rows without gaps in them that do not overlap"
    )]
    OutputNotRows {
        /// Its layout.
        layout: Box<Layout>,
    },
    /// The output is of another shape than this rank's tile.
    #[error("the output tile has {} rows of {}, the tile {} of {}", output.0, output.1, tile.0, tile.1)]
    Shape {
        /// Rows and columns of the tile.
        tile: (u64, u64),
        /// Rows and columns of the output.
        output: (u64, u64),
    },
    /// All tiles of a call are of one type.
    #[error("tile {tile} holds {found}, the first one {expected}")]
    Types {
        /// Which tile.
        tile: usize,
        /// The type of the first tile.
        expected: DType,
        /// Its own type.
        found: DType,
    },
}

symmem_collectives::faults!(TileReduceError: Refused);

/// Tiles, and who gets each.
#[derive(Clone, Copy, Debug)]
enum Form<'a> {
    /// One, whose output all ranks pass.
    One(&'a View, Rank),
    /// Any number.
    Several(&'a [&'a View], &'a [Rank]),
}

/// Each tile's reduction goes to one rank; see [`Moe::tile_reduce`](crate::Moe::tile_reduce) and the one
/// after it.
#[derive(Clone, Copy, Debug)]
pub struct TileReduce<'a> {
    form: Form<'a>,
    output: Option<&'a View>,
    op: ReduceOp,
}

/// Tiles, and the ranks that get them.
type Tiles<'a> = SmallVec<[Tile<'a>; 4]>;
type Owners = SmallVec<[usize; 4]>;

impl<'a> TileReduce<'a> {
    pub(crate) fn one(tile: &'a View, output: &'a View, root: Rank) -> Self {
        TileReduce { form: Form::One(tile, root), output: Some(output), op: ReduceOp::Sum }
    }

    pub(crate) fn several(
        tiles: &'a [&'a View],
        output: Option<&'a View>,
        roots: &'a [Rank],
    ) -> Self {
        TileReduce { form: Form::Several(tiles, roots), output, op: ReduceOp::Sum }
    }

    fn tiles(&self) -> Result<Tiles<'a>, TileReduceError> {
        let views = match &self.form {
            Form::One(tile, _) => core::slice::from_ref(tile),
            Form::Several(tiles, _) => tiles,
        };
        let expected = views.first().ok_or(TileReduceError::NoTiles)?.dtype();
        let tile = |(tile, view): (usize, &&'a View)| {
            if view.dtype() != expected {
                return Err(TileReduceError::Types { tile, expected, found: view.dtype() });
            }
            let layout = || Box::new(view.layout().clone());
            Tile::of(view).ok_or_else(|| TileReduceError::NotRows { tile, layout: layout() })
        };
        views.iter().enumerate().map(tile).collect()
    }

    fn owners(&self, group: &Group, tiles: usize) -> Result<Owners, TileReduceError> {
        let roots = match &self.form {
            Form::One(_, root) => core::slice::from_ref(root),
            Form::Several(_, roots) => roots,
        };
        if roots.len() != tiles {
            return Err(TileReduceError::Roots { tiles, roots: roots.len() });
        }
        let mut owners = Owners::new();
        let mut tile_of: SmallVec<[Option<usize>; 16]> = SmallVec::from_elem(None, group.size());
        for (second, rank) in roots.iter().enumerate() {
            let owner = group.index_of(*rank).map_err(CallError::from)?;
            if let Some(first) = tile_of[owner].replace(second) {
                return Err(TileReduceError::RootTwice { rank: *rank, first, second });
            }
            owners.push(owner);
        }
        Ok(owners)
    }

    /// Where the result of this rank's tile goes.
    fn output(
        &self,
        tiles: &[Tile<'_>],
        mine: Option<usize>,
    ) -> Result<Option<Tile<'a>>, TileReduceError> {
        let Some(index) = mine else {
            return match (self.form, self.output) {
                (Form::Several(..), Some(_)) => Err(TileReduceError::NeedlessOutput),
                _ => Ok(None),
            };
        };
        let view = self.output.ok_or(TileReduceError::NoOutput { tile: index })?;
        let layout = || Box::new(view.layout().clone());
        let output =
            Tile::of(view).ok_or_else(|| TileReduceError::OutputNotRows { layout: layout() })?;
        let own = &tiles[index];
        let (input, found) = (own.view.dtype(), view.dtype());
        if input != found {
            return Err(CallError::DType { input, output: found }.into());
        }
        let shape = |tile: &Tile<'_>| (tile.rows.rows, tile.rows.columns);
        if shape(own) != shape(&output) {
            return Err(TileReduceError::Shape { tile: shape(own), output: shape(&output) });
        }
        let overlaps = |(at, tile): (usize, &Tile<'_>)| {
            output.overlaps(tile) && !(at == index && output.is(tile))
        };
        if tiles.iter().enumerate().any(overlaps) {
            return Err(CallError::Overlap.into());
        }
        Ok(Some(output))
    }
}

impl<'a> Call<'a, TileReduce<'a>> {
    /// The operator, instead of the sum.
    #[inline]
    pub fn op(mut self, op: ReduceOp) -> Self {
        self.what.op = op;
        self
    }
}

impl Exchange for TileReduce<'_> {
    type Error = TileReduceError;

    fn launch(&self, at: &At<'_>) -> Result<(), TileReduceError> {
        let tiles = self.tiles()?;
        let owners = self.owners(at.group, tiles.len())?;
        let me = at.group.rank().index();
        let output = self.output(&tiles, owners.iter().position(|owner| *owner == me))?;
        let operation = match self.form {
            Form::One(..) => Operation::TileReduce,
            Form::Several(..) => Operation::MultiRootTileReduce,
        };
        let reduction =
            TileReduction { operation, op: self.op, tiles: &tiles, owners: &owners, output };
        let issued = reduction.issue(at.group, at.lane, at.stream, at.wait, at.tag);
        issued.map_err(failed)
    }
}
