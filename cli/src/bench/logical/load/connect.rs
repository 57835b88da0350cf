//! Connections of many ranks to one server.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use symmem::mem::store::tcp::wire::{HELLO, Request, welcomed};

use super::LoadError;

/// How many are under way at a time: less than any server's backlog.
const AT_A_TIME: usize = 64;

/// How long a step of one may take. A server that looks up its clients' names needs long.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many leave from one address of the loopback. The system looks for a port among half of those that
/// it gives out, 14116 by default, before it turns to the others, and takes long where few are left.
const FROM_ONE: usize = 12_000;

/// Connects these ranks, all that this process drives, and shakes hands as the library's client does.
/// Sockets are non-blocking after. The bool says whether the server is one of this library.
pub fn connect(
    ranks: &[u32],
    server: SocketAddr,
    process: u32,
) -> Result<(Vec<TcpStream>, bool), LoadError> {
    let mut streams = Vec::with_capacity(ranks.len());
    let mut ours = false;
    for (batch, some) in ranks.chunks(AT_A_TIME).enumerate() {
        let from = source(server.ip(), process, batch * AT_A_TIME);
        let first = streams.len();
        for &rank in some {
            let failed = |cause| LoadError::Connect { rank, server, cause };
            streams.push(open(server, from).map_err(failed)?);
        }
        for (&rank, stream) in some.iter().zip(&mut streams[first..]) {
            let failed = |cause| LoadError::Connect { rank, server, cause };
            let mut nonce = [0; 4];
            stream.read_exact(&mut nonce).map_err(failed)?;
            let nonce = u32::from_le_bytes(nonce);
            ours = welcomed(nonce).is_some();
            if !ours && nonce != HELLO {
                let found = format!("{nonce:#x} came for {HELLO:#x}");
                return Err(LoadError::Handshake { rank, server, found });
            }
            stream.set_nonblocking(true).map_err(failed)?;
        }
    }
    Ok((streams, ours))
}

/// The address that the `index`-th connection of a process leaves from; `None` for the system's choice.
fn source(server: IpAddr, process: u32, index: usize) -> Option<Ipv4Addr> {
    let byte = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
    let (process, block) = (byte(process as usize), byte(index / FROM_ONE));
    match server {
        IpAddr::V4(address) if address.is_loopback() && (process, block) != (0, 0) => {
            Some(Ipv4Addr::new(127, 1, process, block))
        }
        _ => None,
    }
}

/// Connects, and sends the handshake.
fn open(server: SocketAddr, from: Option<Ipv4Addr>) -> io::Result<TcpStream> {
    let family = match server {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    // Ports of a run must not be missing in the next one for as long as the system would remember them.
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    for which in [Timeout::Send, Timeout::Recv] {
        sockopt::set_socket_timeout(&socket, which, Some(PATIENCE))?;
    }
    if let Some(from) = from {
        rustix::net::bind(&socket, &SocketAddr::from((from, 0)))?;
    }
    rustix::net::connect(&socket, &server)?;
    let mut stream = TcpStream::from(socket);
    let mut handshake = Vec::new();
    Request::Validate.encode(&mut handshake);
    Request::Ping { nonce: HELLO }.encode(&mut handshake);
    stream.write_all(&handshake)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::TcpListener;

    use symmem::mem::store::tcp::StoreServer;

    use super::*;

    #[test]
    fn many_leave_from_several_addresses() {
        let v4 = |last| IpAddr::from(Ipv4Addr::new(127, 0, 0, last));
        let from = |process, index| source(v4(1), process, index);
        assert_eq!(from(0, FROM_ONE - 1), None);
        assert_eq!(from(0, FROM_ONE), Some(Ipv4Addr::new(127, 1, 0, 1)));
        assert_eq!(from(1, 0), Some(Ipv4Addr::new(127, 1, 1, 0)));
        assert_eq!(from(255, 3 * FROM_ONE), Some(Ipv4Addr::new(127, 1, 255, 3)));
        assert_eq!(source(IpAddr::from([10, 0, 0, 1]), 1, FROM_ONE), None);
        let server = StoreServer::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let from = from(1, FROM_ONE);
        let stream = open(server.local_addr(), from).unwrap();
        assert_eq!(stream.local_addr().unwrap().ip(), from.unwrap());
    }

    #[test]
    fn a_server_is_told_from_what_is_none() {
        let server = StoreServer::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let (streams, ours) = connect(&[0, 1, 2], server.local_addr(), 0).unwrap();
        assert!(streams.len() == 3 && ours);
        for (answer, expected) in [(HELLO, Some(false)), (7, None)] {
            let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = other.local_addr().unwrap();
            let serve = std::thread::spawn(move || {
                let mut stream = other.accept().unwrap().0;
                stream.read_exact(&mut [0; 10]).unwrap();
                stream.write_all(&answer.to_le_bytes()).unwrap();
            });
            assert_eq!(connect(&[0], address, 0).ok().map(|(_, ours)| ours), expected);
            serve.join().unwrap();
        }
    }
}
