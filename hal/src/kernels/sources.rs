//! Kernel sources, and what identifies a compilation of one.

use core::fmt;

use sha2::{Digest as _, Sha256};

/// One source file of kernels with every header it includes. Text, not paths: a program carries its
/// kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSource {
    /// Name of the set it belongs to: the crate's.
    pub name: &'static str,
    /// Name and text of the file.
    pub file: (&'static str, &'static str),
    /// Names, as `#include "..."` has them, and texts. No other header is found.
    pub headers: &'static [(&'static str, &'static str)],
}

/// One compilation: a source and its definitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit<'a> {
    /// What is compiled.
    pub source: &'static KernelSource,
    /// Macros, and what they are defined as.
    pub defines: &'a [(&'a str, &'a str)],
}

/// Every compilation that a crate can ask for, for those who make them ahead of time.
#[derive(Clone, Copy, Debug)]
pub struct KernelUnits {
    /// Name of the set: the crate's.
    pub name: &'static str,
    /// Headers that users' kernels may include.
    pub headers: &'static [(&'static str, &'static str)],
    /// Calls its argument with each of them.
    pub each: fn(Visit<'_>),
}

/// What is called with units.
pub type Visit<'v> = &'v mut dyn FnMut(&Unit<'_>);

impl fmt::Display for Unit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.source.name, self.source.file.0)?;
        for (index, (name, value)) in self.defines.iter().enumerate() {
            let before = if index == 0 { " with " } else { ", " };
            write!(f, "{before}{name}={value}")?;
        }
        Ok(())
    }
}

/// What a unit is compiled from and how, as a number: SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UnitHash(pub(super) [u8; 32]);

impl fmt::Display for UnitHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for UnitHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Options of every compilation: arithmetic is what IEEE 754 says, an operation at a time, so that
/// every backend gives the same bits.
pub const OPTIONS: &[&str] = &["-std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true"];

impl Unit<'_> {
    /// Over the file, the headers, the definitions and the options: all that decides the code but
    /// for the architecture, which stands beside it in every key.
    #[must_use]
    pub fn hash(&self) -> UnitHash {
        let mut fields = Fields::default();
        fields.source(self.source);
        fields.pairs(self.defines);
        fields.count(OPTIONS.len());
        OPTIONS.iter().for_each(|option| fields.text(option));
        UnitHash(fields.0.finalize().into())
    }
}

/// What ranks compare to know that their kernels are the same: over the sources in this order and
/// the options. 64 hexadecimal digits.
#[must_use]
pub fn source_hash(sources: &[&KernelSource]) -> String {
    let mut fields = Fields::default();
    fields.count(sources.len());
    sources.iter().for_each(|source| fields.source(source));
    OPTIONS.iter().for_each(|option| fields.text(option));
    UnitHash(fields.0.finalize().into()).to_string()
}

/// A hash over fields of stated lengths, so that no two lists of them are one string of bytes.
#[derive(Default)]
struct Fields(Sha256);

impl Fields {
    fn count(&mut self, count: usize) {
        self.0.update((count as u64).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.update(text);
    }

    fn pairs(&mut self, pairs: &[(&str, &str)]) {
        self.count(pairs.len());
        for (name, text) in pairs {
            self.text(name);
            self.text(text);
        }
    }

    fn source(&mut self, source: &KernelSource) {
        // A file's name is part of its code: messages and line tables carry it.
        self.pairs(&[source.file]);
        self.pairs(source.headers);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    static PLAIN: KernelSource = KernelSource { name: "a", file: ("a.cu", "ab"), headers: &[] };
    static SHIFTED: KernelSource = KernelSource { name: "a", file: ("a.cua", "b"), headers: &[] };
    static INCLUDES: KernelSource =
        KernelSource { name: "a", file: ("a.cu", "ab"), headers: &[("h", "x")] };
    static OTHER: KernelSource =
        KernelSource { name: "a", file: ("a.cu", "ab"), headers: &[("h", "y")] };

    #[test]
    fn whatever_differs_gives_another_hash() {
        let defines: [&[(&str, &str)]; 5] =
            [&[], &[("A", "1")], &[("A", "2")], &[("A1", "")], &[("A", "1"), ("B", "")]];
        let sources = [&PLAIN, &SHIFTED, &INCLUDES, &OTHER];
        let hash = |source, defines| Unit { source, defines }.hash();
        let all: HashSet<_> =
            sources.iter().flat_map(|s| defines.map(|defines| hash(s, defines))).collect();
        assert_eq!(all.len(), sources.len() * defines.len());
        assert_eq!(hash(&PLAIN, defines[1]), hash(&PLAIN, defines[1]));
    }

    #[test]
    fn sources_are_told_apart_and_so_is_their_order() {
        let hashes: HashSet<_> = [
            source_hash(&[]),
            source_hash(&[&PLAIN]),
            source_hash(&[&PLAIN, &OTHER]),
            source_hash(&[&OTHER, &PLAIN]),
            source_hash(&[&INCLUDES]),
        ]
        .into();
        assert_eq!(hashes.len(), 5);
        assert!(hashes.iter().all(|h| h.len() == 64));
    }

    #[test]
    fn a_unit_says_what_it_is() {
        let unit = Unit { source: &PLAIN, defines: &[("OP", "sum"), ("T", "f32")] };
        assert_eq!(unit.to_string(), "a/a.cu with OP=sum, T=f32");
        assert_eq!(Unit { source: &PLAIN, defines: &[] }.to_string(), "a/a.cu");
    }
}
