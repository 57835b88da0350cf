//! At the meeting point, and at the processes of a run.

use std::env;
use std::fs::{self, File};
use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sockopt,
};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal};

use crate::Failed;
use crate::run::{PATIENT, Run, as_role};
use crate::users::NOBODY;

const DOOR: &str = "SYMMEM_TEST_DOOR";
const PROCESSES: &str = "SYMMEM_TEST_PROCESSES";

/// The name at which a run meets, and the process that leads: as every user of the host sees it, in
/// `/proc/net/unix`.
pub fn find(run: &Run) -> Result<(String, u32), Failed> {
    let table = fs::read_to_string("/proc/net/unix")?;
    // Num RefCount Protocol Flags Type St Inode Path
    let listening = table.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, "00010000", "0005", _, inode, path] = words[..] else { return None };
        Some((format!("socket:[{inode}]"), path.strip_prefix('@')?.to_owned()))
    });
    let listening: Vec<(String, String)> = listening.collect();
    for rank in &run.ranks {
        for entry in fs::read_dir(format!("/proc/{}/fd", rank.id()))? {
            // One may have been closed since it was listed.
            let Ok(target) = fs::read_link(entry?.path()) else { continue };
            let found = listening.iter().find(|(socket, _)| target.as_os_str() == &**socket);
            if let Some((_, name)) = found {
                return Ok((name.clone(), rank.id()));
            }
        }
    }
    Err("no rank listens".into())
}

/// A connection to the meeting point, whose reads and writes end at some time.
pub fn connect(door: &str) -> rustix::io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    for timeout in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(&socket, timeout, Some(PATIENT.duration()))?;
    }
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(door.as_bytes())?)?;
    Ok(socket)
}

pub fn send(socket: impl AsFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)
}

/// The next frame, empty at the end of the connection: a reset is an end too.
fn receive(socket: &OwnedFd) -> rustix::io::Result<Vec<u8>> {
    let mut space = [0; 1024];
    match rustix::net::recv(socket, &mut space, RecvFlags::empty()) {
        Ok((n, _)) => Ok(space[..n].to_vec()),
        Err(Errno::CONNRESET) => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// A second user tries all that leads to a run's memory; the run goes on.
pub fn another_user() -> Result<(), Failed> {
    let mut run = Run::started("users")?;
    run.goes_on()?;
    let (door, _) = find(&run)?;
    let processes: Vec<String> = run.ranks.iter().map(|rank| rank.id().to_string()).collect();
    let mut command = as_role("another user");
    command.env(DOOR, door).env(PROCESSES, processes.join(",")).uid(NOBODY).gid(NOBODY);
    let output = command.stdin(Stdio::null()).output()?;
    let got = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{got}");
    if !output.status.success() {
        return Err(format!("{got}{}", String::from_utf8_lossy(&output.stderr)).into());
    }
    // Each attempt, of two processes where it is one at a process.
    let attempts = got.lines().filter(|line| line.contains(" refused: ")).count();
    if attempts != 1 + 2 * AT_A_PROCESS {
        return Err(format!("{attempts} attempts: {got}").into());
    }
    run.goes_on()?;
    run.ends_well()
}

const AT_A_PROCESS: usize = 7;

/// What the other user does: says of each attempt what it got, and fails if one succeeds.
pub fn play_another_user() -> Result<(), Failed> {
    if rustix::process::geteuid().as_raw() != NOBODY {
        return Err("this is no other user".into());
    }
    let socket = connect(&env::var(DOOR)?)?;
    // Who is not of the run's user gets not even the challenge.
    match receive(&socket)? {
        frame if frame.is_empty() => println!("the meeting point refused: closed, nothing sent"),
        frame => return Err(format!("the meeting point says {frame:?}").into()),
    }
    for process in env::var(PROCESSES)?.split(',') {
        let number = process.parse()?;
        let pid = Pid::from_raw(number).ok_or("no process")?;
        let file = |name: &str| File::open(format!("/proc/{process}/{name}")).map(drop);
        let list = |name: &str| fs::read_dir(format!("/proc/{process}/{name}")).map(drop);
        let descriptors = || -> io::Result<()> {
            // By number, without the list: the first that can be had is too many.
            let each = (0..64).map(|n| file(&format!("fd/{n}")));
            each.reduce(Result::or).unwrap_or(Ok(()))
        };
        let taken = || -> io::Result<()> {
            let process = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
            let take = |n| rustix::process::pidfd_getfd(&process, n, PidfdGetfdFlags::empty());
            let each = (0..64).map(|n| take(n).map(drop).map_err(io::Error::from));
            each.reduce(Result::or).unwrap_or(Ok(()))
        };
        let attempts: [(&str, io::Result<()>); AT_A_PROCESS] = [
            ("its list of descriptors", list("fd")),
            ("a segment or link by its descriptor", descriptors()),
            ("a segment or link by pidfd_getfd", taken()),
            ("its list of mappings", list("map_files")),
            ("its memory", file("mem")),
            ("its environment", file("environ")),
            ("a signal", rustix::process::kill_process(pid, Signal::USR1).map_err(Into::into)),
        ];
        for (what, result) in attempts {
            match result {
                Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                    println!("process {process}, {what}, refused: {e}");
                }
                other => return Err(format!("process {process}, {what}: {other:?}").into()),
            }
        }
    }
    Ok(())
}

/// What a leader says to who must go: the text of its `Failed(Refused(..))`, by the encoding of frames.
fn refusal(socket: &OwnedFd) -> Result<String, Failed> {
    const FAILED: u8 = 7;
    const REFUSED: u8 = 3;
    let frame = receive(socket)?;
    let [FAILED, REFUSED, length, text @ ..] = &frame[..] else {
        return Err(format!("no refusal: {frame:?}").into());
    };
    if text.len() != usize::from(*length) {
        return Err(format!("a refusal of another length: {frame:?}").into());
    }
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// As [`connect`], and the leader's challenge has come.
fn challenged(door: &str) -> Result<OwnedFd, Failed> {
    let socket = connect(door)?;
    match receive(&socket)? {
        challenge if challenge.len() == 18 && challenge[0] == 0 => Ok(socket),
        other => Err(format!("no challenge: {other:?}").into()),
    }
}

/// A process of the same user that does not know the token.
pub fn without_the_token() -> Result<(), Failed> {
    let mut run = Run::started("tokens")?;
    run.goes_on()?;
    let (door, leader) = find(&run)?;
    // A nonce and a proof, as a member's, of no token.
    let hello: Vec<u8> = [&[1][..], &[7; 48]].concat();
    let long = vec![1; 120_000];
    let refused: [(&[u8], &str); 5] = [
        (&hello, "the token is another run's"),
        (&[8], "a frame out of turn"),
        (&hello[..40], "not a frame"),
        (&[hello.as_slice(), b"more"].concat(), "not a frame: 4 of 53 bytes are over"),
        (&[255; 1000], "not a frame"),
    ];
    for (frame, text) in refused {
        let socket = challenged(&door)?;
        send(&socket, frame)?;
        let told = refusal(&socket)?;
        if !told.starts_with(text) {
            return Err(format!("{text:?} was expected, found {told:?}").into());
        }
        if !receive(&socket)?.is_empty() {
            return Err(format!("after {told:?} something else").into());
        }
    }
    // Longer than any frame: closed without an answer.
    let socket = challenged(&door)?;
    send(&socket, &long)?;
    if !receive(&socket)?.is_empty() {
        return Err("an answer to what is no frame".into());
    }
    // More descriptors than any frame has, and as many as some have: not taken, and no round fails.
    for many in [5, 1] {
        let socket = challenged(&door)?;
        let file = File::open("/dev/null")?;
        let files: Vec<BorrowedFd<'_>> = (0..many).map(|_| file.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err("no space for descriptors".into());
        }
        let bytes = [IoSlice::new(&hello)];
        rustix::net::sendmsg(&socket, &bytes, &mut control, SendFlags::NOSIGNAL)?;
        let told = refusal(&socket)?;
        if told != "descriptors before a proof" {
            return Err(format!("{many} descriptors: {told:?}").into());
        }
    }
    // Links have no name: there is nothing to open in their place, even for the same user.
    let mut sockets = 0;
    for entry in fs::read_dir(format!("/proc/{leader}/fd"))? {
        let path = entry?.path();
        let is_socket =
            fs::read_link(&path).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
        if is_socket {
            sockets += 1;
            match File::open(&path) {
                Err(e) if e.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {}
                // Closed since it was listed.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                other => return Err(format!("a socket was opened: {other:?}").into()),
            }
        }
    }
    // The meeting point, the link, the store's connection.
    if sockets < 3 {
        return Err(format!("{sockets} sockets").into());
    }
    // Who says nothing is left in peace for a while, and harms nobody.
    let silent = challenged(&door)?;
    std::thread::sleep(Duration::from_millis(50));
    run.goes_on()?;
    drop(silent);
    run.ends_well()
}
