//! Tensors of an exchange by splits, and what must come of them.

use symmem_hal::types::{DType, Layout};
use symmem_mem::{Group, Tensor, View};
use symmem_moe::{AllToAllVdev, Call, Moe as _};

use super::super::model::{Form, Received, Splits, byte, bytes};
use crate::runner::{Context, TestError, Verdict};
use crate::support::random::Random;
use crate::{check, check_eq};

/// Bytes that nobody may touch.
pub(super) const POISON: u8 = 0xa5;

pub(super) const FORMS: [Form; 5] = [
    Form::Flat,
    Form::Dispatch { align: 1 },
    Form::Dispatch { align: 8 },
    Form::Dispatch { align: 0 },
    Form::Combine,
];

/// Tensors of one call, with room before and behind.
pub(super) struct Scene<'c> {
    pub(super) context: &'c Context,
    pub(super) group: Group,
    pub(super) row: usize,
    pub(super) room: u64,
    pub(super) input: Tensor<u8>,
    pub(super) in_splits: Tensor<i64>,
    pub(super) output: Tensor<u8>,
    pub(super) out_splits: Tensor<i64>,
}

/// Rows of poison around an output.
pub(super) const MARGIN: u64 = 2;

impl<'c> Scene<'c> {
    /// With room for so many rows on either side, and splits for so many experts of each rank.
    pub(super) fn new(
        context: &'c Context,
        group: Group,
        row: usize,
        (rows, room): (u64, u64),
        experts: usize,
    ) -> Result<Self, TestError> {
        let device = context.device();
        let count = (experts * group.size()) as u64;
        let input = Tensor::zeros(device, &[rows.max(1), row as u64])?;
        let in_splits = Tensor::zeros(device, &[2 * count])?;
        let output = Tensor::zeros(device, &[room + 2 * MARGIN, row as u64])?;
        let out_splits = Tensor::zeros(device, &[2 * count])?;
        group.rendezvous(&output, &group.wait())?;
        Ok(Scene { context, group, row, room, input, in_splits, output, out_splits })
    }

    /// For a case, with an output that is as large as it must be.
    pub(super) fn of(
        context: &'c Context,
        group: Group,
        row: usize,
        all: &Splits,
    ) -> Result<Self, TestError> {
        let rows = all.rows.iter().copied().max().unwrap_or(0);
        Self::new(context, group, row, (rows, all.room()), all.experts)
    }

    /// The tensors of a case, poisoned where they are written.
    pub(super) fn fill(&self, all: &Splits, seed: u64, capacity: u64) -> Result<Views, TestError> {
        let (me, row) = (self.group.rank().index(), self.row as u64);
        let rows = all.rows[me];
        let splits = all.input(me);
        let view = |tensor: &Tensor<u8>, start: u64, rows: u64| -> Result<_, TestError> {
            let flat = tensor.slice(start * row, rows * row)?;
            let layout = Layout::contiguous(&[rows, row])?;
            let allocation = flat.allocation().ok_or_else(|| TestError::failed("no allocation"))?;
            Ok(View::new(allocation, flat.offset(), DType::U8, layout)?)
        };
        self.input.slice(0, rows * row)?.write(&bytes(seed, me, rows, self.row))?;
        self.output.write(&vec![POISON; self.output.count() as usize])?;
        self.in_splits.slice(0, splits.len() as u64)?.write(&splits)?;
        self.out_splits.write(&vec![-7; self.out_splits.count() as usize])?;
        Ok(Views {
            input: view(&self.input, 0, rows)?,
            in_splits: self.in_splits.slice(0, splits.len() as u64)?,
            output: view(&self.output, MARGIN, capacity)?,
            out_splits: self.out_splits.slice(0, 2 * all.splits[me].len() as u64)?,
        })
    }

    /// That all is as it should be, and nothing else was touched.
    pub(super) fn check(
        &self,
        all: &Splits,
        seed: u64,
        views: &Views,
        expected: &Received,
    ) -> Verdict {
        let me = self.group.rank().index();
        let count = all.splits[me].len();
        let found = views.out_splits.to_vec()?;
        check_eq!(found[..count], expected.splits[..], "splits received");
        check_eq!(found[count..], expected.offsets[..], "where they begin");
        check_eq!(views.in_splits.to_vec()?, all.input(me), "input splits");
        let output = self.output.to_vec()?;
        for (at, bytes) in output.chunks_exact(self.row.max(1)).enumerate() {
            let row =
                (at as u64).checked_sub(MARGIN).and_then(|row| expected.rows.get(row as usize));
            let from = row.copied().flatten();
            let right = bytes.iter().enumerate().all(|(i, found)| match from {
                Some((rank, row)) => *found == byte(seed, rank, row, i),
                None => *found == POISON,
            });
            check!(right, "row {at} of the output, {MARGIN} of them before it, is not {from:?}");
        }
        Ok(())
    }

    /// Poisons, calls and checks.
    pub(super) fn round(&self, all: &Splits, seed: u64) -> Verdict {
        let views = self.fill(all, seed, self.room)?;
        views.call(&self.group, all.form).run()?;
        let expected = all.received(self.group.rank().index(), self.room);
        self.check(all, seed, &views, &expected)
    }
}

pub(super) struct Views {
    pub(super) input: View,
    pub(super) in_splits: Tensor<i64>,
    pub(super) output: View,
    pub(super) out_splits: Tensor<i64>,
}

impl Views {
    pub(super) fn call<'a>(&'a self, group: &'a Group, form: Form) -> Call<'a, AllToAllVdev<'a>> {
        let Views { input, in_splits, output, out_splits } = self;
        match form {
            Form::Flat => group.all_to_all_vdev(input, in_splits, output, out_splits),
            Form::Dispatch { align } => {
                let call = group.all_to_all_vdev_2d(input, in_splits, output, out_splits);
                if align == 1 { call } else { call.major_align(align) }
            }
            Form::Combine => group.all_to_all_vdev_2d_offset(input, in_splits, output, out_splits),
        }
    }
}

pub(super) fn random(context: &Context, name: u64) -> Random {
    Random::new(context.seed(), &[name])
}

/// Fewer where every rank computes what all others have for it.
pub(super) fn rounds(context: &Context, few: u64) -> u64 {
    if context.size() > 8 { 1 } else { few }
}
