//! Stores leave nothing behind. Alone in its process: it counts the process's descriptors and
//! threads.

#![allow(clippy::unwrap_used, missing_docs)]

use std::fs::read_dir;
use std::thread;
use std::time::{Duration, Instant};

use symmem_hal::{CancelToken, Wait};
use symmem_mem::store::Store;
use symmem_mem::store::tcp::{StoreServer, TcpStore};

fn held() -> (usize, usize) {
    (read_dir("/proc/self/fd").unwrap().count(), read_dir("/proc/self/task").unwrap().count())
}

/// One life of a server and its clients: waits given up, waits that make room, a client that
/// outlives the server.
fn round() {
    let wait = Wait::seconds(120);
    let server = StoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = server.local_addr().port();
    let stores: Vec<_> =
        (0..4).map(|_| TcpStore::connect("127.0.0.1", port, &wait).unwrap()).collect();
    let token = CancelToken::new();
    thread::scope(|scope| {
        for store in &stores {
            scope.spawn(|| store.get("late", &wait).unwrap());
            scope.spawn(|| {
                store.get("never", &wait.clone().with_cancel(token.clone())).unwrap_err()
            });
        }
        stores[0].set("late", b"1", &wait).unwrap();
        token.cancel();
    });
    stores[1].get("never", &Wait::millis(0)).unwrap_err();
    drop(server);
    stores[2].check(&["late"], &wait).unwrap_err();
}

#[test]
fn a_hundred_stores_leave_nothing() {
    let before = held();
    for _ in 0..100 {
        round();
    }
    // A thread that was joined may be listed for a moment longer.
    let until = Instant::now() + Duration::from_secs(30);
    while held() != before && Instant::now() < until {
        thread::yield_now();
    }
    assert_eq!(held(), before);
}
