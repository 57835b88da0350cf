//! PyTorch's clients on our server.

use std::time::{Duration, Instant};

use symmem_hal::Wait;
use symmem_mem::store::tcp::{StoreServer, TcpStore};

use crate::as_python;
use crate::checks::long;
use crate::python::Python;

pub fn clients(python: &Python) {
    let server = StoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = server.local_addr().port();
    let store = as_python(TcpStore::connect("127.0.0.1", port, &long()).unwrap());
    store.set("from-rust", b"\x00\xff rust", &long()).unwrap();
    let mut script = python.script(["client", &port.to_string()]);
    let until = Instant::now() + Duration::from_secs(180);
    while let Err(error) = store.wait(&["ready"], &Wait::millis(100)) {
        assert!(script.runs() && Instant::now() < until, "{error}");
    }
    assert_eq!(store.get("text", &long()).unwrap(), b"from python");
    assert_eq!(store.get("count", &long()).unwrap(), b"-2");
    assert_eq!(store.get("b/a/k", &long()).unwrap(), b"prefixed");
    assert_eq!(store.get("larger", &long()).unwrap().len(), 24 << 20);
    assert_eq!(store.multi_get(&["m/1", "grown"], &long()).unwrap(), [&b"1"[..], b"one two"]);
    assert_eq!(store.queue_len("queues/q", &long()).unwrap(), 0);
    store.set("answer", b"42", &long()).unwrap();
    store.queue_push("queue-from-rust", b"pushed", &long()).unwrap();
    store.wait(&["rank/0", "rank/3"], &long()).unwrap();
    store.barrier("with-rust", 5, &long()).unwrap();
    store.wait(&["done"], &long()).unwrap();
    assert!(script.end().0);
    // The one that sent what is too large.
    assert_eq!(server.stats().expelled, 1);
}
