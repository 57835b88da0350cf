//! Turns bindgen's `extern` blocks into types of function pointers.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use quote::quote;
use syn::{FnArg, ForeignItem, Item};

/// A rewritten file.
pub struct Declarations {
    pub text: String,
    /// The functions that became types.
    pub functions: BTreeSet<String>,
}

/// Puts `head` in front of `source` and replaces each `extern "C" { fn name(..) }` by `type name = unsafe extern "C" fn(..)`.
pub fn functions_to_types(head: &str, source: &str) -> Result<Declarations> {
    let mut file = syn::parse_file(&format!("{head}\n{source}"))?;
    let mut functions = BTreeSet::new();
    let mut items = Vec::with_capacity(file.items.len());
    for item in file.items {
        let Item::ForeignMod(block) = item else {
            items.push(item);
            continue;
        };
        for item in block.items {
            let ForeignItem::Fn(function) = item else {
                bail!("an extern block holds something other than functions");
            };
            let name = &function.sig.ident;
            let output = &function.sig.output;
            let arguments = function.sig.inputs.iter().map(|input| match input {
                FnArg::Typed(argument) => quote!(#argument),
                FnArg::Receiver(receiver) => quote!(#receiver),
            });
            items.push(syn::parse_quote! {
                pub type #name = unsafe extern "C" fn(#(#arguments),*) #output;
            });
            functions.insert(name.to_string());
        }
    }
    file.items = items;
    Ok(Declarations { text: prettyplease::unparse(&file), functions })
}
