//! A reduction of tiles with everything around it that can be looked at.

use symmem_collectives::{CallError, ReduceOp};
use symmem_hal::types::{Bytes, DType, Layout, Rank};
use symmem_hal::{Stream, SyncError};
use symmem_mem::{Allocation, Failure, Group, View};
use symmem_moe::{Call, Moe as _, TileReduce, TileReduceError};

use crate::check;
use crate::model::reduce::reduce;
use crate::runner::{Context, PATIENT, TestError, Verdict};
use crate::suite::collectives::data::random;
use crate::suite::sync::{behind, stream_of};

/// What lies in outputs before they are written.
const POISON: u8 = 0xa5;

/// Where a tile lies: in elements of one of a case's memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub arena: usize,
    pub at: u64,
    pub rows: u64,
    pub columns: u64,
    /// From one row to the next.
    pub stride: u64,
}

impl Place {
    pub(super) fn new(arena: usize, at: u64, [rows, columns]: [u64; 2], stride: u64) -> Self {
        Place { arena, at, rows, columns, stride }
    }

    /// Where it is on a rank of a case in which that varies.
    fn on(self, rank: usize, varies: bool) -> Self {
        let rank = if varies { rank as u64 } else { 0 };
        Place { at: self.at + rank % 5, stride: self.stride + rank % 3, ..self }
    }

    fn layout(self) -> Result<Layout, TestError> {
        Ok(Layout::strided(&[self.rows, self.columns], &[self.stride, 1])?)
    }

    /// One past its last element.
    pub(super) fn end(self) -> u64 {
        match (self.rows, self.columns) {
            (0, _) | (_, 0) => self.at,
            _ => self.at + (self.rows - 1) * self.stride + self.columns,
        }
    }

    /// The indices of its elements, row after row.
    fn elements(self) -> impl Iterator<Item = usize> {
        let Place { at, rows, columns, stride, .. } = self;
        (0..rows).flat_map(move |row| (0..columns).map(move |c| (at + row * stride + c) as usize))
    }

    /// Its bytes in the image of its memory.
    fn read(self, image: &[u8], size: usize) -> Vec<u8> {
        self.elements().flat_map(|i| image[i * size..][..size].to_vec()).collect()
    }

    fn write(self, image: &mut [u8], bytes: &[u8], size: usize) {
        for (i, element) in self.elements().zip(bytes.chunks_exact(size)) {
            image[i * size..][..size].copy_from_slice(element);
        }
    }

    pub(super) fn view(self, memory: &Allocation, dtype: DType) -> Result<View, TestError> {
        Ok(View::new(memory, Bytes::new(self.at * dtype.size() as u64), dtype, self.layout()?)?)
    }
}

/// One call to be checked.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub dtype: DType,
    pub op: ReduceOp,
    pub tiles: Vec<Place>,
    /// By tile.
    pub roots: Vec<usize>,
    /// By tile, where its root's result goes.
    pub outputs: Vec<Place>,
    /// By arena, whether it is symmetric memory.
    pub symmetric: Vec<bool>,
    /// Whether tiles lie elsewhere on other ranks, with other strides.
    pub varies: bool,
    /// Whether it is the call of one tile, instead of that of several.
    pub is_one: bool,
}

impl Case {
    /// Sums of f32 in private memory; results go to the last arena, one element in, without gaps.
    pub(super) fn new(tiles: Vec<Place>, roots: Vec<usize>) -> Self {
        let arenas = tiles.iter().map(|tile| tile.arena).max().unwrap_or(0) + 2;
        let output =
            |tile: &Place| Place::new(arenas - 1, 1, [tile.rows, tile.columns], tile.columns);
        Case {
            dtype: DType::F32,
            op: ReduceOp::Sum,
            outputs: tiles.iter().map(output).collect(),
            roots,
            symmetric: vec![false; arenas],
            varies: false,
            is_one: tiles.len() == 1,
            tiles,
        }
    }

    /// All memory is symmetric.
    pub(super) fn symmetric(self) -> Self {
        Case { symmetric: vec![true; self.symmetric.len()], ..self }
    }

    /// Results replace tiles.
    pub(super) fn in_place(self) -> Self {
        Case { outputs: self.tiles.clone(), ..self }
    }

    fn tile(&self, index: usize, rank: usize) -> Place {
        self.tiles[index].on(rank, self.varies)
    }

    fn output(&self, index: usize) -> Place {
        let rank = self.roots[index];
        self.outputs[index].on(rank, self.varies)
    }

    /// The tile that a rank is the root of.
    pub(super) fn tile_of(&self, rank: usize) -> Option<usize> {
        self.roots.iter().position(|root| *root == rank)
    }

    /// Elements of a memory on a rank: what lies there, and some more.
    fn elements(&self, arena: usize, rank: usize) -> u64 {
        let tiles = (0..self.tiles.len()).map(|i| self.tile(i, rank));
        let places = tiles.chain(self.tile_of(rank).map(|i| self.output(i)));
        3 + places.filter(|place| place.arena == arena).map(Place::end).max().unwrap_or(0)
    }

    fn has_tiles(&self, arena: usize) -> bool {
        self.tiles.iter().any(|tile| tile.arena == arena)
    }

    /// What lies in a memory of a rank before the call.
    fn image(&self, context: &Context, number: u64, arena: usize, rank: usize) -> Vec<u8> {
        let count = self.elements(arena, rank);
        match self.has_tiles(arena) {
            true => {
                random(self.dtype, count, context.seed(), number * 8 + arena as u64, rank as u64)
            }
            false => vec![POISON; count as usize * self.dtype.size()],
        }
    }

    /// The bytes of a tile's reduction.
    fn reduced(&self, context: &Context, number: u64, index: usize) -> Vec<u8> {
        let part = |rank: usize| {
            let place = self.tile(index, rank);
            place.read(&self.image(context, number, place.arena, rank), self.dtype.size())
        };
        let parts: Vec<_> = (0..context.size()).map(part).collect();
        reduce(self.dtype, self.op, &parts)
    }
}

/// A case's memory on this rank.
pub(super) struct Scene {
    pub arenas: Vec<Allocation>,
    pub tiles: Vec<View>,
    /// Where there is a result for this rank; for a call of one tile, something everywhere.
    pub output: Option<View>,
    pub roots: Vec<Rank>,
}

impl Scene {
    /// Collective where memory is symmetric.
    pub(super) fn new(context: &Context, group: &Group, case: &Case) -> Result<Self, TestError> {
        let (me, size) = (context.rank(), case.dtype.size() as u64);
        let mut arenas = Vec::new();
        for (arena, symmetric) in case.symmetric.iter().enumerate() {
            // Symmetric memory is as large everywhere.
            let most = (0..context.size()).map(|rank| case.elements(arena, rank)).max();
            let elements = if *symmetric { most.unwrap_or(0) } else { case.elements(arena, me) };
            let memory = Allocation::new(context.device(), Bytes::new(elements * size))?;
            if *symmetric {
                let all = View::new(&memory, Bytes::ZERO, case.dtype, Layout::flat(elements))?;
                group.rendezvous(&all, &group.wait())?;
            }
            arenas.push(memory);
        }
        let view = |place: Place| place.view(&arenas[place.arena], case.dtype);
        let tiles: Vec<View> =
            (0..case.tiles.len()).map(|i| view(case.tile(i, me))).collect::<Result<_, _>>()?;
        let output = match case.tile_of(me) {
            Some(tile) => Some(view(case.output(tile))?),
            None => case.is_one.then(|| tiles[0].clone()),
        };
        let roots = case.roots.iter().map(|r| group.rank_at(*r)).collect::<Result<_, _>>()?;
        Ok(Scene { arenas, tiles, output, roots })
    }

    /// Issues the case's call.
    pub(super) fn issue(
        &self,
        group: &Group,
        stream: &Stream,
        case: &Case,
    ) -> Result<(), TileReduceError> {
        let tiles: Vec<&View> = self.tiles.iter().collect();
        match &self.output {
            Some(output) if case.is_one => {
                run(group.tile_reduce(tiles[0], output, self.roots[0]).op(case.op), stream)
            }
            output => {
                let call = group.multi_root_tile_reduce(&tiles, output.as_ref(), &self.roots);
                run(call.op(case.op), stream)
            }
        }
    }
}

/// Runs a case on fresh data and compares every byte of all its memory with what a plain reduction of each
/// tile leaves.
pub(super) fn check_case(context: &Context, group: &Group, case: &Case, number: u64) -> Verdict {
    context.step(format_args!("{case:?}"));
    let (me, size) = (context.rank(), case.dtype.size());
    let scene = Scene::new(context, group, case)?;
    let mut images: Vec<Vec<u8>> =
        (0..scene.arenas.len()).map(|arena| case.image(context, number, arena, me)).collect();
    for (memory, image) in scene.arenas.iter().zip(&images) {
        memory.memory().write(Bytes::ZERO, image)?;
    }
    scene.issue(group, &stream_of(group)?, case)?;
    let mut found = images.clone();
    for (memory, found) in scene.arenas.iter().zip(&mut found) {
        memory.memory().read(Bytes::ZERO, found)?;
        // It is this rank's again: whoever still read it would show.
        memory.memory().write(Bytes::ZERO, &vec![POISON; found.len()])?;
    }
    if let Some(index) = case.tile_of(me) {
        let output = case.output(index);
        output.write(&mut images[output.arena], &case.reduced(context, number, index), size);
    }
    for (arena, (found, expected)) in found.iter().zip(&images).enumerate() {
        let wrong = || (0..expected.len()).filter(|i| found[*i] != expected[*i]);
        if let Some(first) = wrong().next() {
            let wrong = wrong().count();
            return Err(TestError::failed(format!(
                "{case:?}: {wrong} bytes of memory {arena} are wrong, from element {} on",
                first / size
            )));
        }
    }
    check!(found.len() == images.len());
    Ok(())
}

/// Issues a call and waits until it has happened: the same on streams that run inline and on those that do
/// not.
pub(super) fn run(call: Call<'_, TileReduce<'_>>, stream: &Stream) -> Result<(), TileReduceError> {
    call.on(stream)?;
    match stream.synchronize(&PATIENT) {
        Ok(()) => Ok(()),
        Err(SyncError::Unhealthy(fault)) => Err(match behind::<Failure>(&*fault) {
            Some(failure) => failure.into(),
            None => CallError::from(SyncError::Unhealthy(fault)).into(),
        }),
        Err(error) => Err(CallError::from(error).into()),
    }
}
