//! A table by which algorithms are chosen, instead of the built-in one.
//!
//! `symmem tune` measures and writes one; a group is made with it by
//! [`Options::choices`](symmem_mem::Options) or the variable `SYMMEM_TUNE`, and its members agree on
//! its hash. It is TOML:
//!
//! ```toml
//! format = 1
//! symmem = "0.1.0"           # what measured it, where and when: for people
//! machine = "AMD EPYC, 2 cores"
//! date = "2026-11-29"
//!
//! [[row]]
//! operation = "all_reduce"
//! backend = "host"
//! ranks = 4                  # for groups of up to so many; the last row also for larger ones
//! steps = [
//!     { algorithm = "packet", up_to = 48 },       # bytes of the larger of a rank's buffers
//!     { algorithm = "one-shot", up_to = 16384 },
//!     { algorithm = "two-shot" },
//! ]
//! ```
//!
//! What has no row keeps the built-in choice; what its row's algorithms cannot take, too.

use core::fmt;

use serde::Deserialize;
use symmem_hal::types::{BackendKind, Bytes};
use symmem_mem::call::Operation;

use crate::choice::Algorithm;

/// The one version of the format.
const FORMAT: u32 = 1;

const BACKENDS: [BackendKind; 4] =
    [BackendKind::Host, BackendKind::Stub, BackendKind::Cuda, BackendKind::Hip];

/// Which algorithm is the fastest, by operation, backend, ranks and bytes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChoiceTable {
    format: u32,
    /// The release that measured it.
    pub symmem: String,
    /// Where.
    pub machine: String,
    /// When: year, month, day.
    pub date: String,
    /// For each operation and backend, by ascending ranks.
    #[serde(rename = "row", default)]
    pub rows: Vec<ChoiceRow>,
}

/// The choices of an operation, of groups up to a size.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChoiceRow {
    /// The operation's name.
    pub operation: String,
    /// The backend's name.
    pub backend: String,
    /// The most ranks it is for.
    pub ranks: usize,
    /// By ascending bytes; the last has no bound.
    pub steps: Vec<Step>,
}

/// Up to how many bytes an algorithm is the fastest.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The algorithm's name.
    pub algorithm: String,
    /// Bytes of the larger of a rank's buffers.
    #[serde(default)]
    pub up_to: Option<u64>,
}

/// Why a text is no table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// It is no TOML, or of other fields.
    #[error("the choice table is malformed: {0}; `symmem tune` writes one")]
    Malformed(String),
    /// It is of another format.
    #[error("the choice table has format {found}; this release reads format {FORMAT}: tune again")]
    Format {
        /// Its format.
        found: u32,
    },
    /// A row says what cannot be.
    #[error("row {row} of the choice table: {what}")]
    Row {
        /// Which, counted from 1.
        row: usize,
        /// What is wrong with it.
        what: String,
    },
}

impl ChoiceTable {
    /// A table of rows, by ascending ranks for each operation and backend.
    #[must_use]
    pub fn new(symmem: &str, machine: &str, date: &str, rows: Vec<ChoiceRow>) -> Self {
        let [symmem, machine, date] = [symmem, machine, date].map(str::to_owned);
        ChoiceTable { format: FORMAT, symmem, machine, date, rows }
    }

    /// The table of a text.
    ///
    /// # Errors
    ///
    /// [`TableError`]: names that nothing has, and rows or steps out of order, are errors, too.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        let malformed = |e: toml::de::Error| TableError::Malformed(e.to_string());
        // First, since another format may have other fields.
        let Format { format: found } = toml::from_str(text).map_err(malformed)?;
        if found != FORMAT {
            return Err(TableError::Format { found });
        }
        let table: ChoiceTable = toml::from_str(text).map_err(malformed)?;
        for (index, row) in table.rows.iter().enumerate() {
            let before = table.rows[..index].iter().rev().find(|before| before.is_like(row));
            let checked = match before {
                Some(before) if before.ranks >= row.ranks => Err(format!(
                    "its {} ranks follow {}: they must ascend",
                    row.ranks, before.ranks
                )),
                _ => row.check(),
            };
            checked.map_err(|what| TableError::Row { row: index + 1, what })?;
        }
        Ok(table)
    }

    /// The row of a group of `ranks`: the first for as many, else the last.
    pub(crate) fn row(
        &self,
        operation: Operation,
        backend: BackendKind,
        ranks: usize,
    ) -> Option<&ChoiceRow> {
        let names = (operation.name(), backend.name());
        let mut rows = self.rows.iter().filter(|r| (&*r.operation, &*r.backend) == names);
        let last = rows.clone().next_back();
        rows.find(|row| ranks <= row.ranks).or(last)
    }
}

/// The text that [`ChoiceTable::parse`] reads.
impl fmt::Display for ChoiceTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Which algorithm is the fastest; used where SYMMEM_TUNE names this file.")?;
        writeln!(f, "format = {}", self.format)?;
        for (key, value) in
            [("symmem", &self.symmem), ("machine", &self.machine), ("date", &self.date)]
        {
            writeln!(f, "{key} = {}", quoted(value))?;
        }
        for ChoiceRow { operation, backend, ranks, steps } in &self.rows {
            writeln!(f, "\n[[row]]")?;
            writeln!(f, "operation = {}", quoted(operation))?;
            writeln!(f, "backend = {}", quoted(backend))?;
            writeln!(f, "ranks = {ranks}")?;
            writeln!(f, "steps = [")?;
            for Step { algorithm, up_to } in steps {
                let bound = up_to.map(|bytes| format!(", up_to = {bytes}")).unwrap_or_default();
                writeln!(f, "    {{ algorithm = {}{bound} }},", quoted(algorithm))?;
            }
            writeln!(f, "]")?;
        }
        Ok(())
    }
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let escaped = text.chars().map(|c| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// The operation of a name.
fn operation(name: &str) -> Option<Operation> {
    (0..=u8::MAX).filter_map(Operation::from_code).find(|operation| operation.name() == name)
}

/// What every format has.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

impl ChoiceRow {
    fn is_like(&self, other: &Self) -> bool {
        self.operation == other.operation && self.backend == other.backend
    }

    fn check(&self) -> Result<(), String> {
        let Some(operation) = operation(&self.operation) else {
            return Err(format!("there is no operation {:?}", self.operation));
        };
        if !BACKENDS.iter().any(|backend| backend.name() == self.backend) {
            return Err(format!("there is no backend {:?}", self.backend));
        }
        let mut least = None;
        for (index, step) in self.steps.iter().enumerate() {
            let algorithm = Algorithm::from_name(&step.algorithm);
            if !algorithm.is_some_and(|known| Algorithm::of(operation).contains(&known)) {
                return Err(format!("{} has no algorithm {:?}", self.operation, step.algorithm));
            }
            let is_last = index + 1 == self.steps.len();
            match step.up_to {
                Some(bytes) if !is_last && least.is_none_or(|least| bytes > least) => {
                    least = Some(bytes);
                }
                None if is_last => {}
                Some(_) if is_last => return Err("its last step has a bound".to_owned()),
                Some(bytes) => return Err(format!("{bytes} bytes do not follow fewer")),
                None => return Err("a step that is not the last has no bound".to_owned()),
            }
        }
        if self.steps.is_empty() { Err("it has no steps".to_owned()) } else { Ok(()) }
    }

    /// The algorithm of a size, of those that fit.
    pub(crate) fn choose(
        &self,
        bytes: Bytes,
        fits: impl Fn(Algorithm) -> bool,
    ) -> Option<Algorithm> {
        let steps = self.steps.iter();
        let mut reaching = steps.filter(|step| step.up_to.is_none_or(|most| bytes.get() <= most));
        reaching.find_map(|step| Algorithm::from_name(&step.algorithm).filter(|a| fits(*a)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const HEAD: &str = "format = 1\nsymmem = \"0.1.0\"\nmachine = \"m\"\ndate = \"2026-11-29\"\n";

    fn row(ranks: usize, steps: &str) -> String {
        format!(
            "[[row]]\noperation = \"all_reduce\"\nbackend = \"host\"\nranks = {ranks}\nsteps = [{steps}]\n"
        )
    }

    fn table(rows: &[String]) -> Result<ChoiceTable, TableError> {
        ChoiceTable::parse(&(HEAD.to_owned() + &rows.concat()))
    }

    const STEPS: &str = "{ algorithm = \"packet\", up_to = 48 }, \
                         { algorithm = \"one-shot\", up_to = 4096 }, { algorithm = \"two-shot\" }";

    #[test]
    fn rows_are_by_ranks_and_steps_by_bytes() {
        let table = table(&[row(2, "{ algorithm = \"one-shot\" }"), row(8, STEPS)]).unwrap();
        let of = |ranks, bytes, packets| {
            let row = table.row(Operation::AllReduce, BackendKind::Host, ranks)?;
            row.choose(Bytes(bytes), |a| packets || a != Algorithm::Packet)
        };
        for (ranks, bytes, packets, expected) in [
            (1, 0, true, Algorithm::OneShot),
            (2, 1 << 30, true, Algorithm::OneShot),
            (3, 0, true, Algorithm::Packet),
            (3, 48, true, Algorithm::Packet),
            (3, 48, false, Algorithm::OneShot),
            (8, 49, true, Algorithm::OneShot),
            (8, 4096, true, Algorithm::OneShot),
            (8, 4097, true, Algorithm::TwoShot),
            (9, 4097, true, Algorithm::TwoShot),
        ] {
            assert_eq!(of(ranks, bytes, packets), Some(expected), "{ranks} ranks, {bytes} bytes");
        }
        assert_eq!(table.row(Operation::AllReduce, BackendKind::Stub, 2), None);
        assert_eq!(table.row(Operation::Custom, BackendKind::Host, 2), None);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let step = |algorithm: &str, up_to| Step { algorithm: algorithm.to_owned(), up_to };
        let row = |ranks, steps| ChoiceRow {
            operation: "all_reduce".to_owned(),
            backend: "host".to_owned(),
            ranks,
            steps,
        };
        let rows = vec![
            row(2, vec![step("two-shot", None)]),
            row(8, vec![step("packet", Some(48)), step("one-shot", None)]),
        ];
        let machine = "A \"quoted\" \\ machine\n\u{1} \u{e9}";
        let table = ChoiceTable::new("0.1.0", machine, "2026-11-29", rows);
        let text = table.to_string();
        assert_eq!(ChoiceTable::parse(&text), Ok(table), "{text}");
    }

    #[test]
    fn what_cannot_be_is_named() {
        let other = |from: &str, to: &str| table(&[row(2, STEPS).replace(from, to)]);
        for (found, expected) in [
            (other("all_reduce", "all_produce"), "no operation \"all_produce\""),
            (other("host", "ghost"), "no backend \"ghost\""),
            (other("two-shot", "ten-shot"), "no algorithm \"ten-shot\""),
            (other("4096", "48"), "48 bytes do not follow fewer"),
            (other(", up_to = 48", ""), "a step that is not the last has no bound"),
            (other("\"two-shot\"", "\"two-shot\", up_to = 9"), "its last step has a bound"),
            (other("ranks", "banks"), "unknown field `banks`"),
            (table(&[row(2, "")]), "it has no steps"),
            (table(&[row(4, STEPS), row(4, STEPS)]), "row 2 of the choice table: its 4 ranks"),
            (
                ChoiceTable::parse("format = 2\nnews = 1"),
                "has format 2; this release reads format 1",
            ),
            (ChoiceTable::parse("algorithm"), "malformed"),
        ] {
            let text = found.unwrap_err().to_string();
            assert!(text.contains(expected), "{expected} in {text}");
        }
        assert_eq!(table(&[]).unwrap().rows, []);
    }
}
