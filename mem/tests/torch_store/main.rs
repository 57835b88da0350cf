//! The TCP store against PyTorch's: its clients on our server, our client on its servers, and ranks of
//! both that torchrun starts.
//!
//! Needs a Python that has torch, named by `SYMMEM_TEST_PYTHON`; without it the tests are skipped
//! and say so. The program is also the ranks.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

#[path = "../../src/store/conformance/checks/mod.rs"]
mod checks;
mod ours;
#[path = "../../src/store/tcp/tests/proxy.rs"]
mod proxy;
mod python;
mod torchrun;
mod torchs;

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use python::{Python, VARIABLE};
// What the checks know as the crate's.
use symmem_mem::store;
use symmem_mem::store::tcp::TcpStore;
use symmem_mem::store::{PrefixStore, Store};

fn main() -> ExitCode {
    if let Some(part) = torchrun::part() {
        return torchrun::rank(&part);
    }
    let python = env::var_os(VARIABLE).filter(|python| !python.is_empty()).map(Python);
    let trial = |name: &str, run: Box<dyn FnOnce(&Python) + Send>| {
        let (named, python) = (python.is_some(), python.clone());
        let run = move || -> Result<(), Failed> {
            if let Some(python) = python {
                run(&python);
            }
            Ok(())
        };
        Trial::test(name, run).with_ignored_flag(!named)
    };
    let mut trials = vec![
        trial("torch_clients_on_our_server", Box::new(ours::clients)),
        trial("torchrun::a_group_meets", Box::new(torchrun::a_group_meets)),
        trial("torchrun::it_meets_again_after_a_restart", Box::new(torchrun::restarted)),
        trial("torchrun::python_and_rust_meet", Box::new(torchrun::mixed)),
    ];
    trials.extend(torchs::trials(&trial));
    if python.is_none() {
        println!("skipped: {} tests: {VARIABLE} names no Python that has torch", trials.len());
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// The store as Python code sees it, which puts a slash before each key.
fn as_python(store: TcpStore) -> Arc<dyn Store> {
    Arc::new(PrefixStore::new(Arc::new(store), ""))
}
