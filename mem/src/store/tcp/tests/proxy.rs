//! A network between clients and a server that cuts connections, byte for byte as it is told.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Where a connection is cut: after so many bytes one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// From the client to the server, which reads them all.
    Up(usize),
    /// From the server to the client.
    Down(usize),
}

/// Passes bytes on, to a server that can be changed, until it is dropped.
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    server: Mutex<SocketAddr>,
    /// What becomes of the connections, in the order in which they come; the rest are left alone.
    cuts: Mutex<Vec<Option<Cut>>>,
    /// Whether clients see another server than one of this crate.
    foreign: bool,
    ends: AtomicBool,
    /// How many cuts were made.
    made: AtomicUsize,
    open: Mutex<Vec<TcpStream>>,
}

/// The nonce of a client of this crate, as `wire::HELLO`, and one that says nothing.
const HELLO: [u8; 4] = 0xF553_4D01_u32.to_le_bytes();
const PLAIN: [u8; 4] = 4711_u32.to_le_bytes();

impl Proxy {
    pub fn new(server: SocketAddr, cuts: Vec<Option<Cut>>, foreign: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            server: Mutex::new(server),
            cuts: Mutex::new(cuts),
            foreign,
            ends: AtomicBool::new(false),
            made: AtomicUsize::new(0),
            open: Mutex::default(),
        });
        let accepting = shared.clone();
        let thread = std::thread::spawn(move || accepting.accept(&listener));
        Proxy { shared, address, thread: Some(thread) }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// How many cuts were made.
    pub fn made(&self) -> usize {
        self.shared.made.load(Ordering::SeqCst)
    }

    /// Leads new connections to another server.
    #[allow(dead_code, reason = "not in every test that includes this file")]
    pub fn lead_to(&self, server: SocketAddr) {
        *self.shared.server.lock().unwrap() = server;
    }

    /// Cuts all connections that there are.
    #[allow(dead_code, reason = "not in every test that includes this file")]
    pub fn cut_all(&self) {
        for stream in self.shared.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        for stream in self.shared.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while let Ok((client, _)) = listener.accept() {
            if self.ends.load(Ordering::SeqCst) {
                return;
            }
            // Without a server the client sees its connection end.
            let Ok(server) = TcpStream::connect(*self.server.lock().unwrap()) else { continue };
            let mut cuts = self.cuts.lock().unwrap();
            let cut = if cuts.is_empty() { None } else { cuts.remove(0) };
            drop(cuts);
            for stream in [&client, &server] {
                stream.set_nodelay(true).unwrap();
                self.open.lock().unwrap().push(stream.try_clone().unwrap());
            }
            let (up, down) = match cut {
                Some(Cut::Up(n)) => (Some(n), None),
                Some(Cut::Down(n)) => (None, Some(n)),
                None => (None, None),
            };
            let ends = (client.try_clone().unwrap(), server.try_clone().unwrap());
            let shared = self.clone();
            let hello = self.foreign.then_some((6, HELLO, PLAIN));
            std::thread::spawn(move || shared.pass(&client, &server, up, hello));
            let shared = self.clone();
            let hello = self.foreign.then_some((0, PLAIN, HELLO));
            std::thread::spawn(move || shared.pass(&ends.1, &ends.0, down, hello));
        }
    }

    /// Passes up to `limit` bytes on, and cuts. `(at, from, to)` is a nonce to be replaced.
    fn pass(
        &self,
        mut from: &TcpStream,
        mut to: &TcpStream,
        limit: Option<usize>,
        nonce: Option<(usize, [u8; 4], [u8; 4])>,
    ) {
        let mut passed = 0;
        let mut block = [0; 16 << 10];
        loop {
            let left = limit.map_or(block.len(), |limit| block.len().min(limit - passed));
            if left == 0 {
                self.made.fetch_add(1, Ordering::SeqCst);
                // What was passed on is read; what comes back has nobody who waits for it.
                let _ = to.shutdown(Shutdown::Write);
                let _ = from.shutdown(Shutdown::Both);
                return;
            }
            let n = match from.read(&mut block[..left]) {
                Ok(0) | Err(_) => {
                    let _ = to.shutdown(Shutdown::Write);
                    return;
                }
                Ok(n) => n,
            };
            for (i, byte) in block[..n].iter_mut().enumerate() {
                if let Some((at, old, new)) = nonce
                    && let Some(k) = (passed + i).checked_sub(at).filter(|k| *k < 4)
                {
                    assert_eq!(*byte, old[k]);
                    *byte = new[k];
                }
            }
            passed += n;
            if to.write_all(&block[..n]).is_err() {
                let _ = from.shutdown(Shutdown::Both);
                return;
            }
        }
    }
}
