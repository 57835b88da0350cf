//! The symbols a table names, read from its source so that there is one list of them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The symbols in the `table!` invocation of `path`, sorted.
pub fn in_table(path: &Path) -> Result<Vec<String>> {
    let source = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let file = syn::parse_file(&source)?;
    let table = file
        .items
        .into_iter()
        .find_map(|item| match item {
            syn::Item::Macro(item) if item.mac.path.is_ident("table") => Some(item.mac.tokens),
            _ => None,
        })
        .with_context(|| format!("{} has no table! {{ .. }}", path.display()))?;
    let mut symbols = listed(table);
    symbols.sort_unstable();
    if let Some(pair) = symbols.windows(2).find(|pair| pair[0] == pair[1]) {
        bail!("{} names {} twice", path.display(), pair[0]);
    }
    Ok(symbols)
}

/// The identifiers in the table's braces.
fn listed(tokens: TokenStream) -> Vec<String> {
    let in_braces = tokens.into_iter().filter_map(|token| match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group.stream()),
        _ => None,
    });
    in_braces
        .flatten()
        .filter_map(|token| match token {
            TokenTree::Ident(symbol) => Some(symbol.to_string()),
            _ => None,
        })
        .collect()
}
