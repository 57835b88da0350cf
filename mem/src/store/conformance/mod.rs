//! What every store does, as one body of tests for all of them.

#![allow(clippy::unwrap_used)]

mod checks;

use std::sync::Arc;

use checks::{Ranks, every_check, long};

use super::tcp::{StoreServer, TcpStore};
use super::{LocalStore, PrefixStore, Store};

fn local() -> Ranks {
    let store = LocalStore::new();
    Box::new(move || Arc::new(store.clone()))
}

/// Each rank its own connection.
fn tcp() -> Ranks {
    let server = StoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    Box::new(move || {
        let port = server.local_addr().port();
        Arc::new(TcpStore::connect("127.0.0.1", port, &long()).unwrap())
    })
}

/// All ranks on one connection, as the threads of a process.
fn tcp_shared() -> Ranks {
    let server = StoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = server.local_addr().port();
    let store = TcpStore::connect("127.0.0.1", port, &long()).unwrap().hosting(server);
    Box::new(move || Arc::new(store.clone()))
}

fn prefixed() -> Ranks {
    let store: Arc<dyn Store> = Arc::new(LocalStore::new());
    Box::new(move || Arc::new(PrefixStore::new(store.clone(), "run/1")))
}

macro_rules! conformance {
    ($make:ident $($module:ident::{$($check:ident),* $(,)?},)*) => {
        mod $make {
            $($(#[test] fn $check() { super::checks::$module::$check(&super::$make()); })*)*
        }
    };
}

every_check!(conformance local);
every_check!(conformance tcp);
every_check!(conformance tcp_shared);
every_check!(conformance prefixed);

/// Not where ranks share a connection: there a wait may have to move to another one, and begins anew.
#[test]
fn a_key_that_came_counts_for_who_waited() {
    for make in [local, tcp, prefixed] {
        checks::values::a_key_that_came_counts_for_who_waited(&make());
    }
}
