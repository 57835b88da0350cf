//! When each symbol came, read from the header of versioned function pointer types.
//!
//! That header names a type `PFN_<function>_v<version>` for each form that a function has had, and
//! the library exports the forms as `<function>`, `<function>_v2` and so on. The newest type belongs
//! to the newest form, the one before it to the form before.

use std::collections::BTreeSet;

/// For each symbol whose origin is known: its name and the version (1000 * major + 10 * minor).
pub fn versions(header: &str, typedefs: &str, symbols: &[String]) -> Vec<(String, u32)> {
    let declared: BTreeSet<&str> = words(header).collect();
    let types: BTreeSet<&str> = words(typedefs).collect();
    symbols
        .iter()
        .filter_map(|symbol| {
            let (function, form) = split_form(symbol);
            let newest = (2..10)
                .rev()
                .find(|n| declared.contains(format!("{function}_v{n}").as_str()))
                .unwrap_or(1);
            let prefix = format!("PFN_{function}_v");
            let known: BTreeSet<u32> = types
                .range(prefix.as_str()..)
                .take_while(|name| name.starts_with(&prefix))
                .filter_map(|name| name[prefix.len()..].parse().ok())
                .collect();
            let since = known.into_iter().rev().nth(newest - form)?;
            Some((symbol.clone(), since))
        })
        .collect()
}

/// `cuMemAlloc_v2` is form 2 of `cuMemAlloc`.
fn split_form(symbol: &str) -> (&str, usize) {
    symbol
        .rsplit_once("_v")
        .and_then(|(function, form)| Some((function, form.parse().ok()?)))
        .unwrap_or((symbol, 1))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The list as Rust source.
pub fn declaration(since: &[(String, u32)]) -> String {
    let rows: String =
        since.iter().map(|(symbol, version)| format!("(\"{symbol}\", {version}),")).collect();
    format!("pub const SINCE: &[(&str, u32)] = &[{rows}];")
}
