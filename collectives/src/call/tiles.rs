//! Tensors of rows, and reductions of tiles that lie anywhere in such: what the layers above are given.

use symmem_hal::types::{Bytes, DType, Layout, ReduceOp};
use symmem_hal::{DevicePtr, Stream, Wait};
use symmem_mem::call::{Operation, Signature};
use symmem_mem::{Group, View};
use symmem_sync::Lane;

use super::{Block, Buffer, Geometry, Refused, Request, launch};
use crate::choice::{self, Algorithm};

/// Rows that have no gaps in them, and may have some between them; lengths in elements.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// How many.
    pub rows: u64,
    /// Elements of each.
    pub columns: u64,
    /// Elements from one to the next; those of one, where there is no next.
    pub stride: u64,
    /// Bytes of an element.
    element: u64,
}

impl Rows {
    /// Of two dimensions; `None` where they are none of rows.
    #[must_use]
    pub fn of(layout: &Layout, dtype: DType) -> Option<Self> {
        let element = dtype.size() as u64;
        match (layout.shape(), layout.strides()) {
            (&[rows, columns], &[stride, step])
                if (step == 1 || columns <= 1) && (stride >= columns || rows <= 1) =>
            {
                // One row has no next one.
                let stride = if rows <= 1 { columns } else { stride };
                Some(Rows { rows, columns, stride, element })
            }
            _ => None,
        }
    }

    /// Elements `from..to` along a dimension.
    pub(crate) fn cut(self, dim: usize, from: u64, to: u64, start: u64) -> Block {
        let Rows { rows, columns, stride, element } = self;
        let (rows, columns, at) = match dim {
            0 => (to - from, columns, from.saturating_mul(stride)),
            _ => (rows, to - from, from),
        };
        let block = Rows { rows, columns, stride, element }.block(start);
        Block { at: at.saturating_mul(element), ..block }
    }

    /// All of them.
    fn block(self, start: u64) -> Block {
        let Rows { rows, columns, element, .. } = self;
        // Where there are no elements, dimensions may be of any size; nothing is read by them.
        let row = columns.saturating_mul(element);
        let stride = self.stride_bytes();
        let (at, output, output_stride, owner) = (0, DevicePtr::NULL, row, 0);
        Block { start, at, rows, row, stride, output, output_stride, owner }
    }

    /// Bytes from one row to the next.
    fn stride_bytes(self) -> u64 {
        let stride = if self.rows <= 1 { self.columns } else { self.stride };
        stride.saturating_mul(self.element)
    }

    fn is_empty(self) -> bool {
        self.rows == 0 || self.columns == 0
    }
}

/// A tile: rows of a view.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Tile<'a> {
    /// All of it.
    pub view: &'a View,
    /// As rows.
    pub rows: Rows,
}

impl<'a> Tile<'a> {
    /// A view of two dimensions, or of one, which is a row; `None` for any that is not of rows.
    #[must_use]
    pub fn of(view: &'a View) -> Option<Self> {
        let (layout, dtype) = (view.layout(), view.dtype());
        let rows = match (layout.shape(), layout.strides()) {
            (&[columns], &[step]) => {
                Rows::of(&Layout::strided(&[1, columns], &[columns, step]).ok()?, dtype)
            }
            _ => Rows::of(layout, dtype),
        };
        Some(Tile { view, rows: rows? })
    }

    /// Whether two tiles share a byte; what lies between rows is of neither.
    #[must_use]
    pub fn overlaps(&self, other: &Tile<'_>) -> bool {
        if self.rows.is_empty() || other.rows.is_empty() || !self.view.overlaps(other.view) {
            return false;
        }
        let (few, many) =
            if self.rows.rows <= other.rows.rows { (self, other) } else { (other, self) };
        let (start, stride) = (many.start(), many.rows.stride_bytes());
        // The last row that begins before a row of the other's ends is the last to reach into it.
        (0..few.rows.rows).any(|row| {
            let from = few.start() + row * few.rows.stride_bytes();
            let Some(reach) = (from + few.row()).checked_sub(start + 1) else { return false };
            let last = reach.checked_div(stride).unwrap_or(0).min(many.rows.rows - 1);
            start + last * stride + many.row() > from
        })
    }

    /// Whether the two are the same elements.
    #[must_use]
    pub fn is(&self, other: &Tile<'_>) -> bool {
        self.view.ptr() == other.view.ptr() && self.rows == other.rows
    }

    fn start(&self) -> u64 {
        self.view.ptr().get()
    }

    /// Bytes of a row.
    fn row(&self) -> u64 {
        self.rows.columns * self.rows.element
    }

    /// One past the last byte.
    fn end(&self) -> u64 {
        self.start() + Buffer::of(self.view).extent().get()
    }
}

/// A reduction of tiles, each of which goes to one rank. The layer above has checked that types and shapes
/// fit, and that the output is this rank's tile or apart from all tiles.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct TileReduction<'a> {
    /// What it is called.
    pub operation: Operation,
    /// How elements are reduced.
    pub op: ReduceOp,
    /// What this rank has of each tile; at least one.
    pub tiles: &'a [Tile<'a>],
    /// Who gets each, as an index in the group: nobody gets two.
    pub owners: &'a [usize],
    /// Where this rank's goes, if it gets one.
    pub output: Option<Tile<'a>>,
}

impl TileReduction<'_> {
    /// Issues it.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub fn issue(
        &self,
        group: &Group,
        lane: &Lane<'_>,
        stream: &Stream,
        wait: &Wait,
        tag: u64,
    ) -> Result<(), Refused> {
        let (request, kept) = (self.request(group), launch::kept(group)?);
        let found = launch::Found::default();
        let algorithm = launch::choose(kept, group, lane, Algorithm::Auto, &request, &found)?;
        launch::launch(kept, group, lane, stream, wait, &request, algorithm, &found, tag)
    }

    fn request(&self, group: &Group) -> Request<'_> {
        // All others lie after the first one.
        let filled = self.tiles.iter().filter(|tile| !tile.rows.is_empty());
        let base = *filled.clone().min_by_key(|tile| tile.start()).unwrap_or(&self.tiles[0]);
        let place = |tile: &Tile<'_>| group.mapping(tile.view);
        let is_scattered = self.tiles.len() > 1 && {
            let first = place(&base);
            first.is_none() || filled.clone().any(|tile| place(tile) != first)
        };
        let end = match is_scattered {
            true => base.end(),
            false => filled.map(Tile::end).max().unwrap_or(base.end()),
        };
        let me = group.rank().index();
        let mut blocks: Vec<Block> = Vec::with_capacity(self.tiles.len());
        let mut start = 0;
        for (tile, owner) in self.tiles.iter().zip(self.owners) {
            let block = Block { owner: *owner as u64, ..tile.rows.block(start) };
            let at = if tile.rows.is_empty() { 0 } else { tile.start() - base.start() };
            let output = self.output.filter(|_| *owner == me);
            let output = output.map_or((DevicePtr::NULL, block.row), |output| {
                (output.view.ptr(), output.rows.stride_bytes())
            });
            start += block.bytes();
            blocks.push(Block { at, output: output.0, output_stride: output.1, ..block });
        }
        let digest = |of: fn(&Block) -> [u64; 3]| {
            blocks.iter().fold(blocks.len() as u64, |digest, block| {
                let [a, b, c] = of(block);
                Signature::new(self.operation, None, None, &[digest, a, b, c]).0
            })
        };
        let shape = [digest(|b| [b.rows, b.row, b.owner]), 0, 0];
        let places = digest(|b| [b.at, b.stride, 0]);
        let input = Buffer::of(base.view);
        let geometry = Geometry::flat(Bytes(start), Bytes::ZERO, Bytes::ZERO);
        let is_piecemeal = |block: &Block| choice::is_piecemeal(block.row, block.stride);
        Request {
            op: Some(self.op),
            input_bytes: Bytes(end - base.start()),
            // Results go to the blocks' own outputs.
            is_receiver: false,
            is_staged: is_scattered || blocks.iter().any(is_piecemeal),
            blocks,
            inputs: self.tiles,
            is_scattered,
            places,
            outputs: self.output.as_ref().map_or(&[], |tile| core::slice::from_ref(&tile.view)),
            ..Request::new(self.operation, input, input, geometry, shape)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use proptest::prelude::*;
    use symmem_hal::Device;
    use symmem_mem::Allocation;

    use super::*;

    fn view(memory: &Allocation, at: u64, shape: [u64; 2], stride: u64) -> View {
        let layout = Layout::strided(&shape, &[stride, 1]).unwrap();
        View::new(memory, Bytes(2 * at), DType::U16, layout).unwrap()
    }

    /// The indices of a view's elements.
    fn elements(at: u64, [rows, columns]: [u64; 2], stride: u64) -> Vec<u64> {
        (0..rows).flat_map(|row| (0..columns).map(move |c| at + row * stride + c)).collect()
    }

    #[test]
    fn what_is_a_tile() {
        let memory = Allocation::new(&Device::host(), Bytes::kib(4)).unwrap();
        let of = |shape: &[u64], strides: &[u64]| {
            let layout = Layout::strided(shape, strides).unwrap();
            let view = View::new(&memory, Bytes::ZERO, DType::F32, layout).unwrap();
            Tile::of(&view).map(|tile| [tile.rows.rows, tile.rows.columns, tile.rows.stride])
        };
        assert_eq!(of(&[3, 5], &[7, 1]), Some([3, 5, 7]));
        assert_eq!(of(&[3, 5], &[5, 1]), Some([3, 5, 5]));
        assert_eq!(of(&[3, 5], &[4, 1]), None);
        assert_eq!(of(&[3, 5], &[10, 2]), None);
        assert_eq!(of(&[3, 1], &[10, 2]), Some([3, 1, 10]));
        assert_eq!(of(&[1, 5], &[2, 1]), Some([1, 5, 5]));
        assert_eq!(of(&[5], &[1]), Some([1, 5, 5]));
        assert_eq!(of(&[5], &[2]), None);
        assert_eq!(of(&[1], &[2]), Some([1, 1, 1]));
        assert_eq!(of(&[0, 5], &[5, 1]), Some([0, 5, 5]));
        assert_eq!(of(&[], &[]), None);
        assert_eq!(of(&[2, 2, 2], &[4, 2, 1]), None);
    }

    proptest! {
        #[test]
        fn tiles_overlap_where_they_share_an_element(
            at in prop::array::uniform2(0_u64..40),
            shapes in prop::array::uniform2([0_u64..7, 0_u64..7]),
            gaps in prop::array::uniform2(0_u64..9),
        ) {
            let memory = Allocation::new(&Device::host(), Bytes::kib(4)).unwrap();
            let [a, b] = [0, 1].map(|i| (at[i], shapes[i], shapes[i][1] + gaps[i]));
            let views = [view(&memory, a.0, a.1, a.2), view(&memory, b.0, b.1, b.2)];
            let [x, y] = [0, 1].map(|i| Tile::of(&views[i]).unwrap());
            let mine = elements(a.0, a.1, a.2);
            let shared = elements(b.0, b.1, b.2).iter().any(|element| mine.contains(element));
            prop_assert_eq!(x.overlaps(&y), shared);
            prop_assert_eq!(y.overlaps(&x), shared);
            prop_assert!(x.is(&x) && (!x.is(&y) || mine == elements(b.0, b.1, b.2)));
        }
    }
}
