//! A message as a repeated piece of bytes: written and compared, whole or from any element on.

use serde::{Deserialize, Serialize};
use symmem::hal::AccessError;
use symmem::hal::types::{Bytes, DType, ReduceOp};
use symmem::mem::View;

use super::{Data, format, model};

/// Elements after which data repeats: a prime, and small enough for a cache.
const PERIOD: usize = 65_521;

/// The elements of a message, one period of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    dtype: DType,
    piece: Vec<u8>,
}

/// An output that is not what it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("index {index}: expected {expected}, found {found} ({wrong} of {count} are wrong)")]
pub struct Wrong {
    /// The first wrong element.
    pub index: u64,
    /// What it must be.
    pub expected: String,
    /// What it is.
    pub found: String,
    /// How many are wrong.
    pub wrong: u64,
    /// How many there are.
    pub count: u64,
}

impl Pattern {
    /// A rank's input.
    pub fn input(data: Data, dtype: DType, op: ReduceOp, rank: usize, count: u64) -> Self {
        Self::of(dtype, count, |index| data.bits(dtype, op, rank, index))
    }

    /// The reduction of the inputs of `ranks` ranks.
    pub fn reduced(data: Data, dtype: DType, op: ReduceOp, ranks: usize, count: u64) -> Self {
        match data {
            Data::Random(_) => {
                let mut bits = vec![0; ranks];
                Self::of(dtype, count, |index| {
                    for (rank, bits) in bits.iter_mut().enumerate() {
                        *bits = data.bits(dtype, op, rank, index);
                    }
                    model::fold(dtype, op, &bits)
                })
            }
            Data::Small(_) => {
                let mut values = vec![0; ranks];
                Self::of(dtype, count, |index| {
                    for (rank, value) in values.iter_mut().enumerate() {
                        *value = data.integer(dtype, op, rank, index);
                    }
                    model::exact(dtype, op, &values)
                })
            }
        }
    }

    /// One and the same bytes in every element.
    pub fn constant(dtype: DType, byte: u8) -> Self {
        // A whole period, since a device's memory is read a piece at a time.
        Pattern { dtype, piece: vec![byte; PERIOD * dtype.size()] }
    }

    fn of(dtype: DType, count: u64, mut element: impl FnMut(usize) -> u64) -> Self {
        let elements = usize::try_from(count).unwrap_or(PERIOD).min(PERIOD);
        let mut piece = Vec::with_capacity(elements * dtype.size());
        for index in 0..elements {
            let bits = element(index);
            match dtype.size() {
                1 => piece.push(bits as u8),
                2 => piece.extend((bits as u16).to_ne_bytes()),
                4 => piece.extend((bits as u32).to_ne_bytes()),
                _ => piece.extend(bits.to_ne_bytes()),
            }
        }
        Pattern { dtype, piece }
    }

    /// The pattern that differs from this one in every element.
    pub fn poison(&self) -> Self {
        Pattern { dtype: self.dtype, piece: self.piece.iter().map(|byte| !byte).collect() }
    }

    /// Fills a contiguous view of this type with the elements from `start` on.
    pub fn write(&self, view: &View, start: u64) -> Result<(), AccessError> {
        self.tiles(view, start, |offset, piece| view.memory().write(offset, piece))
    }

    /// Compares every element of a contiguous view of this type with those from `start` on.
    ///
    /// # Errors
    ///
    /// The outer one where the view cannot be read, the inner one where an element differs.
    pub fn compare(&self, view: &View, start: u64) -> Result<Result<(), Wrong>, AccessError> {
        let size = self.dtype.size();
        let longest = usize::try_from(view.bytes().get()).unwrap_or(usize::MAX);
        let mut found = vec![0; self.piece.len().min(longest)];
        let mut first = None;
        let mut wrong = 0;
        self.tiles(view, start, |offset, piece| {
            let found = &mut found[..piece.len()];
            view.memory().read(offset, found)?;
            if found != piece {
                let start = (offset.get() - view.offset().get()) / size as u64;
                let elements = piece.chunks_exact(size).zip(found.chunks_exact(size));
                for (index, (want, got)) in (start..).zip(elements).filter(|(_, (w, g))| w != g) {
                    wrong += 1;
                    first.get_or_insert_with(|| (index, self.spell(want), self.spell(got)));
                }
            }
            Ok(())
        })?;
        let count = view.count();
        Ok(match first {
            Some((index, expected, found)) => Err(Wrong { index, expected, found, wrong, count }),
            None => Ok(()),
        })
    }

    /// Calls `visit` for each piece of a view, with its offset in the view's memory.
    fn tiles(
        &self,
        view: &View,
        start: u64,
        mut visit: impl FnMut(Bytes, &[u8]) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let (offset, total) = (view.offset().get(), view.bytes().get());
        let period = self.piece.len() as u64;
        // Less than a piece, which is in memory.
        let mut phase = (start * self.dtype.size() as u64 % period) as usize;
        let mut done = 0;
        while done < total {
            let rest = usize::try_from(total - done).unwrap_or(usize::MAX);
            let piece = &self.piece[phase..];
            let piece = &piece[..rest.min(piece.len())];
            visit(Bytes(offset + done), piece)?;
            done += piece.len() as u64;
            phase = 0;
        }
        Ok(())
    }

    fn spell(&self, element: &[u8]) -> String {
        let mut word = [0; 8];
        let at = if cfg!(target_endian = "big") { 8 - element.len() } else { 0 };
        word[at..at + element.len()].copy_from_slice(element);
        format::spell(self.dtype, u64::from_ne_bytes(word))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use symmem::prelude::*;

    use super::super::Seed;
    use super::*;

    fn view(device: &Device, dtype: DType, count: u64) -> View {
        let bytes = Bytes((count + 16) * dtype.size() as u64);
        let allocation = Allocation::new(device, bytes).unwrap();
        let offset = Bytes(8 * dtype.size() as u64);
        View::new(&allocation, offset, dtype, Layout::flat(count)).unwrap()
    }

    #[test]
    fn every_single_corruption_is_found_and_named() {
        let period = PERIOD as u64;
        for device in [Device::host(), Device::stub(0)] {
            for count in [1, 2, period - 1, period, period + 1, 3 * period + 7] {
                let view = view(&device, DType::F32, count);
                let data = Data::Random(Seed::new(5));
                let expected = Pattern::reduced(data, DType::F32, ReduceOp::Sum, 3, count);
                expected.write(&view, 0).unwrap();
                assert_eq!(expected.compare(&view, 0).unwrap(), Ok(()));
                for index in [0, count / 2, count - 1] {
                    let at = Bytes(view.offset().get() + 4 * index + 3);
                    let mut byte = [0];
                    view.memory().read(at, &mut byte).unwrap();
                    view.memory().write(at, &[byte[0] ^ 1]).unwrap();
                    let wrong = expected.compare(&view, 0).unwrap().unwrap_err();
                    assert_eq!((wrong.index, wrong.wrong, wrong.count), (index, 1, count));
                    assert_ne!(wrong.expected, wrong.found);
                    view.memory().write(at, &byte).unwrap();
                }
                assert_eq!(expected.compare(&view, 0).unwrap(), Ok(()));
            }
        }
    }

    #[test]
    fn poison_is_wrong_everywhere() {
        for dtype in DType::ALL {
            let view = view(&Device::host(), dtype, 1000);
            let data = Data::Small(Seed::new(5));
            let expected = Pattern::reduced(data, dtype, ReduceOp::Sum, 2, 1000);
            expected.poison().write(&view, 0).unwrap();
            assert_eq!(expected.compare(&view, 0).unwrap().unwrap_err().wrong, 1000, "{dtype}");
        }
    }

    #[test]
    fn pieces_in_another_place_are_found() {
        let count = 1 << 20;
        let view = view(&Device::host(), DType::U8, count);
        let data = Data::Random(Seed::new(9));
        let expected = Pattern::input(data, DType::U8, ReduceOp::Sum, 0, count);
        expected.write(&view, 0).unwrap();
        let mut chunk = vec![0; 4096];
        let at = |offset: u64| Bytes(view.offset().get() + offset);
        view.memory().read(at(128 << 10), &mut chunk).unwrap();
        view.memory().write(at(256 << 10), &chunk).unwrap();
        let wrong = expected.compare(&view, 0).unwrap().unwrap_err();
        assert!(wrong.wrong > 4000, "{wrong}");
        assert!((256 << 10..260 << 10).contains(&wrong.index), "{wrong}");
    }

    #[test]
    fn a_message_goes_on_where_another_begins() {
        // Two halves of one message, the second of which begins in the middle of a period.
        let count = PERIOD as u64 + 1000;
        let whole = view(&Device::host(), DType::U16, 2 * count);
        let data = Data::Random(Seed::new(11));
        let pattern = Pattern::input(data, DType::U16, ReduceOp::Sum, 1, 2 * count);
        for start in [0, count] {
            pattern.write(&whole.slice(start, count).unwrap(), start).unwrap();
        }
        assert_eq!(pattern.compare(&whole, 0).unwrap(), Ok(()));
        let wrong = pattern.compare(&whole.slice(count, count).unwrap(), 0).unwrap().unwrap_err();
        assert!(wrong.wrong > count / 2, "{wrong}");
    }

    #[test]
    fn messages_name_index_expected_and_found() {
        let view = view(&Device::host(), DType::BF16, 4);
        let pattern = Pattern::of(DType::BF16, 4, |_| 0x3f80);
        pattern.write(&view, 0).unwrap();
        view.memory().write(Bytes(view.offset().get() + 4), &0xc000u16.to_ne_bytes()).unwrap();
        assert_eq!(
            pattern.compare(&view, 0).unwrap().unwrap_err().to_string(),
            "index 2: expected 1 (0x3f80), found -2 (0xc000) (1 of 4 are wrong)"
        );
    }
}
