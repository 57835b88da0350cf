//! Generates the raw declarations of `symmem-sys` from the vendors' headers.
//!
//! Does: reads which symbols a library's table names (`sys/src/*/table.rs` is the only list), lets
//! bindgen declare them and the types they need, and writes `sys/src/*/bindings.rs`.
//!
//! Does not: link anything, or run as part of a build. The output is committed, so that building
//! symmem needs neither libclang nor a header.
//!
//! Choice: functions become *types* (`type cuInit = unsafe extern "C" fn(..)`), never `extern`
//! blocks, because an `extern` block would make every program link against the library.

mod libraries;
mod rewrite;
mod since;
mod symbols;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Parser;
use sha2::{Digest, Sha256};

use crate::libraries::{LIBRARIES, Library};

/// The release that Cargo.toml pins: another one may print the same declarations differently.
const BINDGEN: &str = "0.73.2";

#[derive(Parser)]
#[command(about = "Generates symmem-sys's raw declarations from the vendors' headers")]
struct Arguments {
    /// A folder that holds headers; may be given several times.
    #[arg(long = "include", value_name = "DIR", required = true)]
    includes: Vec<PathBuf>,

    /// Writes nothing; fails when a committed file differs from what would be written.
    #[arg(long)]
    check: bool,

    /// The libraries to generate; all by default.
    #[arg(value_name = "LIBRARY", value_parser = LIBRARIES.map(|library| library.module))]
    only: Vec<String>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut stale = Vec::new();
    for library in &LIBRARIES {
        if !arguments.only.is_empty() && !arguments.only.iter().any(|name| name == library.module) {
            continue;
        }
        let folder = source_folder().join(library.module);
        let text = generate(library, &folder, &arguments.includes)
            .with_context(|| format!("generating {}", library.module))?;
        let target = folder.join("bindings.rs");
        let current = fs::read_to_string(&target).unwrap_or_default();
        if current == text {
            println!("{}: up to date", target.display());
        } else if arguments.check {
            println!("{}: {}", target.display(), first_difference(&current, &text));
            stale.push(library.module);
        } else {
            fs::write(&target, &text).with_context(|| format!("writing {}", target.display()))?;
            println!("{}: written, {} lines", target.display(), text.lines().count());
        }
    }
    if !stale.is_empty() {
        bail!("not what these headers and tables give: {}; run without --check", stale.join(", "));
    }
    Ok(())
}

/// `sys/src` of the checkout that this tool was built from.
fn source_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sys/src")
}

fn generate(library: &Library, folder: &Path, includes: &[PathBuf]) -> Result<String> {
    let path = find(library.header, includes)?;
    let header = fs::read_to_string(&path)?;
    let hash: String = Sha256::digest(&header).iter().map(|byte| format!("{byte:02x}")).collect();
    if hash != library.sha256 {
        bail!(
            "{} is not that of {} (sha256 {hash}); to move to another release, change the pin in \
             tools/bindgen/src/libraries.rs",
            path.display(),
            library.package
        );
    }
    let table = folder.join("table.rs");
    let symbols = symbols::in_table(&table)?;
    let since = match library.typedefs {
        Some(name) => {
            since::versions(&header, &fs::read_to_string(find(name, includes)?)?, &symbols)
        }
        None => Vec::new(),
    };
    let raw = declare(library, &path, includes, &symbols)?;
    let declarations = rewrite::functions_to_types(&since::declaration(&since), &raw)?;
    if let Some(symbol) = symbols.iter().find(|symbol| !declarations.functions.contains(*symbol)) {
        bail!("{} names {symbol}, which {} does not declare", table.display(), library.header);
    }
    Ok(format!("{}\n{}", preamble(library, &header), declarations.text))
}

fn find(name: &str, includes: &[PathBuf]) -> Result<PathBuf> {
    includes
        .iter()
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .with_context(|| format!("{name} is in none of the folders given by --include"))
}

fn declare(
    library: &Library,
    header: &Path,
    includes: &[PathBuf],
    symbols: &[String],
) -> Result<String> {
    let mut builder = bindgen::builder()
        .header(header.to_str().context("the header's path is not UTF-8")?)
        .clang_args(library.defines.iter().map(|name| format!("-D{name}")))
        .clang_args(includes.iter().map(|folder| format!("-I{}", folder.display())))
        // A value that a newer library returns must not be undefined behaviour here, so a C
        // enumeration is an integer in a struct and never a Rust enum.
        .default_enum_style(bindgen::EnumVariation::NewType {
            is_bitfield: false,
            is_global: false,
        })
        .derive_default(true)
        .derive_eq(true)
        .generate_comments(false)
        .layout_tests(true)
        .use_core()
        .rust_target(rust_target()?)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .disable_header_comment()
        .formatter(bindgen::Formatter::None)
        .must_use_type(library.status);
    for symbol in symbols {
        builder = builder.allowlist_function(symbol);
    }
    for name in library.types {
        builder = builder.allowlist_type(name);
    }
    for name in library.constants {
        builder = builder.allowlist_var(name);
    }
    Ok(builder.generate()?.to_string())
}

/// The oldest Rust that the generated text must compile with.
fn rust_target() -> Result<bindgen::RustTarget> {
    bindgen::RustTarget::stable(85, 0).map_err(|error| anyhow::anyhow!("{error}"))
}

/// What stands at the head of a generated file: what it was made from, and the header's own notice,
/// which its terms ask to be kept in the comments of code that uses it.
fn preamble(library: &Library, header: &str) -> String {
    let mut out = format!(
        "// Generated by tools/bindgen; do not edit. See sys/NOTICE for the header's terms.\n\
         //\n\
         // header:  {} of {}\n\
         // sha256:  {}\n\
         // bindgen: {BINDGEN}\n\
         //\n\
         // Notice of the header:\n//\n",
        library.header, library.package, library.sha256,
    );
    for line in notice(header) {
        out.push_str(format!("// {line}").trim_end());
        out.push('\n');
    }
    out
}

/// The first comment of a header, without its comment marks.
fn notice(header: &str) -> Vec<&str> {
    let is_comment = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("//") || line.starts_with("/*") || line.starts_with('*')
    };
    let mut lines: Vec<&str> = header
        .lines()
        .map(str::trim)
        .take_while(is_comment)
        .map(|line| line.trim_start_matches(['/', '*']).trim_end_matches(['/', '*']).trim())
        .collect();
    let blank = |line: &&str| line.is_empty();
    let head = lines.iter().take_while(|line| blank(line)).count();
    lines.drain(..head);
    let tail = lines.iter().rev().take_while(|line| blank(line)).count();
    lines.truncate(lines.len() - tail);
    lines
}

fn first_difference(current: &str, expected: &str) -> String {
    if current.is_empty() {
        return "missing".into();
    }
    let mut pairs = current.lines().zip(expected.lines()).enumerate();
    match pairs.find(|(_, (a, b))| a != b) {
        Some((line, (a, b))) => {
            format!("differs at line {}\n  committed: {a}\n  generated: {b}", line + 1)
        }
        None => format!(
            "{} lines committed, {} generated",
            current.lines().count(),
            expected.lines().count()
        ),
    }
}
