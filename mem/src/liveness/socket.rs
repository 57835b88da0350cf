//! What a link is made of, and how messages cross it.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::sockopt;

use super::Message;
use super::fork::LinkFd;
use crate::exchange::frame;

/// Largest message on a link.
const MAX_MESSAGE: usize = 64;

/// After how much silence the kernel asks a host that it has a link to whether it is there, how often then,
/// and how many questions without an answer end the link: a host that is cut off says nothing.
const SILENCE: Duration = Duration::from_secs(5);
const ASK_AGAIN: Duration = Duration::from_secs(1);
const QUESTIONS: u32 = 5;

/// One end of a link.
#[derive(Debug)]
pub(super) struct Socket {
    fd: LinkFd,
    /// Of a link to another host, whose messages are a byte of length and so many bytes.
    stream: Option<Mutex<Buffers>>,
}

#[derive(Debug, Default)]
struct Buffers {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Socket {
    /// A pair's end, on one host: a datagram a message.
    pub fn near(fd: OwnedFd) -> Self {
        Socket { fd: LinkFd::new(fd), stream: None }
    }

    /// A connection to another host.
    pub fn far(stream: LinkFd) -> Result<Self, Errno> {
        rustix::io::ioctl_fionbio(&stream, true)?;
        sockopt::set_tcp_nodelay(&stream, true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, SILENCE)?;
        sockopt::set_tcp_keepintvl(&stream, ASK_AGAIN)?;
        sockopt::set_tcp_keepcnt(&stream, QUESTIONS)?;
        // What is said to a host that is cut off is not repeated for longer, either.
        let most = SILENCE + QUESTIONS * ASK_AGAIN;
        sockopt::set_tcp_user_timeout(
            &stream,
            u32::try_from(most.as_millis()).unwrap_or(u32::MAX),
        )?;
        Ok(Socket { fd: stream, stream: Some(Mutex::default()) })
    }

    pub fn fd(&self) -> &LinkFd {
        &self.fd
    }

    pub fn is_far(&self) -> bool {
        self.stream.is_some()
    }

    /// Sends a message whole. `Errno::AGAIN`: some of it may have been sent, and sending it again goes on.
    pub fn send(&self, message: &Message) -> Result<(), Errno> {
        let mut space = [0; MAX_MESSAGE];
        let bytes = postcard::to_slice(message, &mut space).map_err(|_| Errno::MSGSIZE)?;
        let Some(stream) = &self.stream else { return frame::send(self.fd.as_fd(), bytes, &[]) };
        let output = &mut stream.lock().output;
        if output.is_empty() {
            // At most MAX_MESSAGE.
            output.push(bytes.len() as u8);
            output.extend_from_slice(bytes);
        }
        while !output.is_empty() {
            let sent = rustix::net::send(&self.fd, output, rustix::net::SendFlags::NOSIGNAL)?;
            output.drain(..sent);
        }
        Ok(())
    }

    /// The next message, or what came in its place; `None` once the link is closed.
    pub fn receive(&self) -> Result<Option<postcard::Result<Message>>, Errno> {
        let mut space = [0; MAX_MESSAGE];
        let Some(stream) = &self.stream else {
            let received = frame::receive(self.fd.as_fd(), &mut space)?;
            return Ok(received.map(|(n, _)| postcard::from_bytes(&space[..n])));
        };
        let input = &mut stream.lock().input;
        loop {
            if let Some((length, rest)) = input.split_first()
                && let Some(body) = rest.get(..usize::from(*length))
            {
                let message = postcard::from_bytes(body);
                let length = 1 + body.len();
                input.drain(..length);
                return Ok(Some(message));
            }
            match rustix::io::read(&self.fd, &mut space)? {
                0 => return Ok(None),
                n => input.extend_from_slice(&space[..n]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn far(stream: TcpStream) -> Socket {
        Socket::far(LinkFd::new(stream.into())).unwrap()
    }

    fn pair() -> (Socket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (far(listener.accept().unwrap().0), theirs)
    }

    fn message(n: u64) -> Message {
        Message::Released { group: n << 40, ordinal: n }
    }

    fn awaited(socket: &Socket) -> Option<postcard::Result<Message>> {
        loop {
            match socket.receive() {
                Err(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
                other => return other.unwrap(),
            }
        }
    }

    #[test]
    fn messages_keep_their_bounds_in_a_stream() {
        let (ours, theirs) = pair();
        let theirs = far(theirs);
        for n in 0..100 {
            theirs.send(&message(n)).unwrap();
        }
        for n in 0..100 {
            assert_eq!(awaited(&ours).unwrap().unwrap(), message(n));
        }
        assert!(matches!(ours.receive(), Err(Errno::AGAIN)));
        drop(theirs);
        assert!(awaited(&ours).is_none());
    }

    #[test]
    fn halves_wait_and_garbage_is_told() {
        let (ours, mut theirs) = pair();
        let mut space = [0; MAX_MESSAGE];
        let body = postcard::to_slice(&message(3), &mut space).unwrap();
        theirs.write_all(&[body.len() as u8]).unwrap();
        theirs.write_all(&body[..2]).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(matches!(ours.receive(), Err(Errno::AGAIN)));
        theirs.write_all(&body[2..]).unwrap();
        theirs.write_all(&[1, 250]).unwrap();
        assert_eq!(awaited(&ours).unwrap().unwrap(), message(3));
        assert!(awaited(&ours).unwrap().is_err());
    }

    #[test]
    fn what_does_not_go_out_goes_on_later() {
        let (ours, theirs) = pair();
        let mut sent = 0u64;
        while ours.send(&message(sent)) != Err(Errno::AGAIN) {
            sent += 1;
        }
        let theirs = far(theirs);
        for n in 0..sent {
            assert_eq!(awaited(&theirs).unwrap().unwrap(), message(n));
        }
        while ours.send(&message(sent)) == Err(Errno::AGAIN) {}
        assert_eq!(awaited(&theirs).unwrap().unwrap(), message(sent));
    }
}
