//! What an output must hold: parts of ranks' inputs and of their reduction, one after another.

use std::rc::Rc;

use symmem::hal::AccessError;
use symmem::hal::types::{DType, ReduceOp};
use symmem::mem::{View, ViewError};

use super::{Data, Pattern, Wrong};

/// What a part of an output is a copy of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A rank's input.
    Input(usize),
    /// The reduction of all inputs.
    Reduced,
    /// Nothing: the operation leaves it as it was.
    Untouched,
}

/// Consecutive elements of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub source: Source,
    /// Where in the source they begin.
    pub start: u64,
    pub count: u64,
}

/// The inputs of one operation.
#[derive(Clone, Copy, Debug)]
pub struct Inputs {
    pub data: Data,
    pub dtype: DType,
    /// What the inputs are reduced with, if they are.
    pub op: Option<ReduceOp>,
    pub ranks: usize,
    /// Elements of each.
    pub count: u64,
}

/// What one output must hold.
#[derive(Debug)]
pub struct Expected(Vec<(Rc<Patterns>, Part)>);

/// What a part must hold afterwards, and what it is given before.
#[derive(Debug)]
struct Patterns {
    after: Pattern,
    before: Pattern,
}

/// What stays where nothing is written.
const UNTOUCHED: u8 = 0xa5;

/// Why an output cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error(transparent)]
    View(#[from] ViewError),
    #[error(transparent)]
    Range(#[from] AccessError),
}

impl symmem::hal::Fault for LookError {
    fn kind(&self) -> symmem::hal::Kind {
        match self {
            LookError::View(e) => e.kind(),
            LookError::Range(e) => e.kind(),
        }
    }
}

impl Inputs {
    /// A rank's input.
    pub fn of(&self, rank: usize) -> Pattern {
        // Data that is only moved may be any data.
        let op = self.op.unwrap_or(ReduceOp::Sum);
        Pattern::input(self.data, self.dtype, op, rank, self.count)
    }

    /// The output that consists of these parts.
    pub fn expected(&self, parts: &[Part]) -> Expected {
        let mut known: Vec<(Source, Rc<Patterns>)> = Vec::new();
        let mut pattern = |source| match known.iter().find(|(of, _)| *of == source) {
            Some((_, pattern)) => pattern.clone(),
            None => {
                let after = self.pattern(source);
                let before = match source {
                    Source::Untouched => after.clone(),
                    _ => after.poison(),
                };
                let patterns = Rc::new(Patterns { after, before });
                known.push((source, patterns.clone()));
                patterns
            }
        };
        Expected(parts.iter().map(|part| (pattern(part.source), *part)).collect())
    }

    fn pattern(&self, source: Source) -> Pattern {
        let op = self.op.unwrap_or(ReduceOp::Sum);
        match source {
            Source::Input(rank) => self.of(rank),
            Source::Reduced => Pattern::reduced(self.data, self.dtype, op, self.ranks, self.count),
            Source::Untouched => Pattern::constant(self.dtype, UNTOUCHED),
        }
    }
}

impl Expected {
    /// Makes an output wrong in every element that the operation must write, and gives the others
    /// what they must keep.
    pub fn spoil(&self, output: &View) -> Result<(), LookError> {
        let mut at = 0;
        for (patterns, part) in &self.0 {
            patterns.before.write(&output.slice(at, part.count)?, part.start)?;
            at += part.count;
        }
        Ok(())
    }

    /// Compares every element of an output.
    pub fn compare(&self, output: &View) -> Result<Result<(), Wrong>, LookError> {
        let mut first: Option<Wrong> = None;
        let (mut wrong, mut at) = (0, 0);
        for (patterns, part) in &self.0 {
            let view = output.slice(at, part.count)?;
            if let Err(here) = patterns.after.compare(&view, part.start)? {
                wrong += here.wrong;
                first.get_or_insert(Wrong { index: at + here.index, ..here });
            }
            at += part.count;
        }
        let count = output.count();
        Ok(first.map_or(Ok(()), |first| Err(Wrong { wrong, count, ..first })))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use symmem::prelude::*;

    use super::super::Seed;
    use super::*;

    #[test]
    fn parts_are_told_apart_and_indices_are_the_outputs() {
        let data = Data::Random(Seed::new(2));
        let inputs = Inputs { data, dtype: DType::F32, op: None, ranks: 2, count: 100 };
        let part = |source, start| Part { source, start, count: 50 };
        let parts =
            [part(Source::Input(1), 50), part(Source::Untouched, 0), part(Source::Input(0), 0)];
        let expected = inputs.expected(&parts);
        let allocation = Allocation::new(&Device::host(), Bytes(600)).unwrap();
        let output = View::new(&allocation, Bytes::ZERO, DType::F32, Layout::flat(150)).unwrap();
        expected.spoil(&output).unwrap();
        let wrong = expected.compare(&output).unwrap().unwrap_err();
        assert_eq!((wrong.index, wrong.wrong, wrong.count), (0, 100, 150));
        inputs.of(1).write(&output.slice(0, 50).unwrap(), 50).unwrap();
        let wrong = expected.compare(&output).unwrap().unwrap_err();
        assert_eq!((wrong.index, wrong.wrong), (100, 50));
        inputs.of(0).write(&output.slice(100, 50).unwrap(), 0).unwrap();
        assert_eq!(expected.compare(&output).unwrap(), Ok(()));
        // What must stay must stay.
        output.memory().write(Bytes(4 * 70), &[1]).unwrap();
        let wrong = expected.compare(&output).unwrap().unwrap_err();
        assert_eq!((wrong.index, wrong.wrong), (70, 1));
    }
}
