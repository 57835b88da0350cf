//! At the store's port: whoever reaches it, speaking its protocol or not.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use symmem_mem::store::Store as _;
use symmem_mem::store::tcp::wire::{Query, Request};

use crate::Failed;
use crate::run::{LIMITS, PATIENT, Run, descriptors, most_memory};

/// The most that a store takes beside what it had before anybody came: what its limits allow, and for
/// each connection what the process and its allocator need for it.
const MEMORY: usize =
    LIMITS.stored + LIMITS.buffered + LIMITS.connections * (16 << 10) + (16 << 20);

/// Beside one for each connection: what the process had, and some that are just being turned away.
const DESCRIPTORS: usize = LIMITS.connections + 16;

fn connect(port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(PATIENT.duration()))?;
    stream.set_write_timeout(Some(Duration::from_millis(500)))?;
    Ok(stream)
}

fn encoded(requests: &[Request<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    requests.iter().for_each(|request| request.encode(&mut bytes));
    bytes
}

/// A connection that has sent this, as far as the server took it.
fn sent(port: u16, bytes: &[u8]) -> Option<TcpStream> {
    let mut stream = connect(port).ok()?;
    // The server may have closed it before all is written.
    let _ = stream.write_all(bytes);
    Some(stream)
}

/// Bytes without sense, other ones each time.
fn garbage(state: &mut u64) -> Vec<u8> {
    let mut bytes = vec![0; 200];
    for byte in &mut bytes {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *byte = *state as u8;
    }
    bytes
}

/// What strangers do, again and again, and how many of them at once.
fn attack(port: u16, kind: usize, turn: u64, held: &mut Vec<TcpStream>) {
    let validated = |more: &[u8]| [encoded(&[Request::Validate]), more.to_vec()].concat();
    let length = |code: Query, length: u64| [&[code.code()][..], &length.to_le_bytes()].concat();
    let value = vec![7; 256 << 10];
    let large = Request::Set { key: b"large", value: &value };
    let most = match kind {
        // Garbage, before a handshake and after one.
        0 => {
            let garbage = garbage(&mut (turn + 1));
            let bytes = match turn % 3 {
                0 => validated(&garbage),
                1 => garbage,
                // Sense, but for the handshake.
                _ => encoded(&[Request::CancelWait]),
            };
            held.extend(sent(port, &bytes));
            0
        }
        // Halves of messages.
        1 => {
            let whole = encoded(&[Request::Validate, large]);
            held.extend(sent(port, &whole[..whole.len() / 2]));
            40
        }
        // Huge lengths.
        2 => {
            let code = [Query::Set, Query::Get, Query::Wait, Query::MultiGet][turn as usize % 4];
            let huge = [u64::MAX, u64::MAX - 8, 1 << 40, 8 << 20][turn as usize / 4 % 4];
            held.extend(sent(port, &validated(&length(code, huge))));
            0
        }
        // Connections, and nothing else: thousands in a second.
        3 => {
            held.extend((0..100).filter_map(|_| connect(port).ok()));
            3000
        }
        // Who asks for much, and reads nothing of it.
        4 => {
            let mut bytes = encoded(&[Request::Validate, large]);
            (0..64).for_each(|_| Request::Get { key: b"large" }.encode(&mut bytes));
            held.extend(sent(port, &bytes));
            40
        }
        // A byte at a time.
        5 => {
            if let Some(mut stream) = sent(port, &[]) {
                let _ = stream.set_nodelay(true);
                let bytes = encoded(&[Request::Validate, Request::Add { key: b"slow", amount: 1 }]);
                for byte in bytes {
                    let _ = stream.write_all(&[byte]);
                    thread::sleep(Duration::from_millis(1));
                }
                let mut sum = [0; 8];
                if stream.read_exact(&mut sum).is_err() {
                    held.push(stream);
                }
            }
            10
        }
        // Who waits for what never comes.
        _ => {
            let key = vec![b'w'; 4 << 10];
            let bytes = encoded(&[Request::Validate, Request::Wait { keys: vec![&key; 20] }]);
            held.extend(sent(port, &bytes));
            40
        }
    };
    let over = held.len().saturating_sub(most);
    held.drain(..over);
}

const KINDS: usize = 7;

/// Ranks join, meet and leave while all of that goes on.
pub fn ranks_meet() -> Result<(), Failed> {
    let mut run = Run::new("ports")?;
    let (store, port) = (run.store.id(), run.port);
    let little = most_memory(store)?;
    let over = AtomicBool::new(false);
    let turns: [AtomicUsize; KINDS] = Default::default();
    let most = thread::scope(|scope| -> Result<usize, Failed> {
        for (kind, turns) in turns.iter().enumerate() {
            let over = &over;
            scope.spawn(move || {
                let mut held = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let turn = turns.fetch_add(1, Ordering::Relaxed);
                    attack(port, kind, turn as u64, &mut held);
                    // Two processors are shared by all of this.
                    thread::sleep(Duration::from_millis(2));
                }
            });
        }
        let mut most = 0;
        let mut watch = || -> Result<(), Failed> {
            // They join in the middle of it.
            thread::sleep(Duration::from_millis(300));
            run.start()?;
            for _ in 0..10 {
                run.goes_on()?;
                most = descriptors(store)?.max(most);
            }
            run.ends_well()
        };
        let watched = watch();
        over.store(true, Ordering::Relaxed);
        watched.map(|()| most)
    })?;
    let turns = turns.map(AtomicUsize::into_inner);
    let grown = most_memory(store)?.saturating_sub(little);
    println!(
        "turns of each kind {turns:?}: {most} descriptors at most, memory grew by {} KiB of {}",
        grown >> 10,
        MEMORY >> 10
    );
    if turns.iter().any(|turns| *turns < 5) {
        return Err(format!("a kind did not come: {turns:?}").into());
    }
    if most > DESCRIPTORS || grown > MEMORY {
        return Err(format!("{most} descriptors, {grown} bytes more").into());
    }
    // What each kind was refused for is told.
    let log = run.logs()?.into_iter().find(|(path, _)| path.ends_with("store"));
    let (_, log) = log.ok_or("no log of the store")?;
    for told in ["is over the limit of", "makes room", "is unknown", "is not VALIDATE"] {
        if !log.contains(told) {
            return Err(format!("the store's log does not say {told:?}").into());
        }
    }
    Ok(())
}

/// Each limit, exceeded: the connection is closed, the log has what was over it, and both numbers.
pub fn refusals_are_told() -> Result<(), Failed> {
    let run = Run::new("refusals")?;
    let good = run.client()?;
    good.set("k", b"text", &PATIENT)?;
    good.wait(&["k"], &PATIENT)?;
    let wire = LIMITS.wire;
    let length =
        |code: Query, length: usize| [&[code.code()][..], &(length as u64).to_le_bytes()].concat();
    let value = [length(Query::Set, 1), b"k".to_vec(), ((9u64 << 20).to_le_bytes()).to_vec()];
    let stored = vec![1; 6 << 20];
    let store = |key| Request::Set { key, value: &stored };
    let cases: [(Vec<u8>, String); 7] = [
        (
            length(Query::Get, wire.key + 1),
            format!("a key of {} is over the limit of {}", wire.key + 1, wire.key),
        ),
        (value.concat(), format!("a value of {} is over the limit of {}", 9 << 20, wire.value)),
        (
            length(Query::Wait, wire.keys + 1),
            format!("a list of keys of {} is over the limit of {}", wire.keys + 1, wire.keys),
        ),
        (
            encoded(&[store(b"a"), store(b"b"), store(b"c")]),
            format!("bytes more than the {} held is over the limit of {}", 0, LIMITS.stored),
        ),
        (
            encoded(&[Request::Gather { key: b"g", total: 1, slots: &[0; 4], value: b"" }]),
            "query GATHER (242) without the handshake for it".to_owned(),
        ),
        (
            encoded(&[Request::Wait { keys: vec![b"x"] }, Request::Wait { keys: vec![b"x"] }]),
            "a WAIT, BARRIER or GATHER while another is in progress".to_owned(),
        ),
        (
            encoded(&[Request::Add { key: b"k", amount: 1 }]),
            "the value that is to be added to is not a decimal number".to_owned(),
        ),
    ];
    for (bytes, _) in &cases {
        let bytes = [encoded(&[Request::Validate]), bytes.clone()].concat();
        let mut stream = sent(run.port, &bytes).ok_or("no connection")?;
        match stream.read_to_end(&mut Vec::new()) {
            Ok(0) => {}
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
            other => return Err(format!("not closed: {other:?}").into()),
        }
        if good.get("k", &PATIENT)? != b"text" {
            return Err("the value is another one".into());
        }
    }
    let logs = run.logs()?;
    let [(_, log)] = &logs[..] else { return Err(format!("{} logs", logs.len()).into()) };
    for (_, told) in &cases {
        // What was held before is the store's to count.
        let parts: Vec<&str> = told.split(" 0 ").collect();
        let line = log.lines().find(|line| parts.iter().all(|part| line.contains(part)));
        println!("{}", line.ok_or_else(|| format!("the log does not say {told:?}:\n{log}"))?);
    }
    Ok(())
}
