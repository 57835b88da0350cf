//! The ranks' output, a prefix before each line.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use console::Style;

/// What is shown at once of a line that does not end.
const LONGEST: u64 = 64 << 10;

/// Where output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Output,
    Errors,
}

/// Copies streams of ranks to this process's, whole lines at a time.
pub struct Output {
    ranks: usize,
    open: Receiver<()>,
    opener: Sender<()>,
}

impl Output {
    pub fn new(ranks: usize) -> Self {
        let (opener, open) = mpsc::channel();
        Output { ranks, open, opener }
    }

    /// Copies one stream of a rank until it ends.
    pub fn copy(&self, rank: usize, stream: Stream, from: impl Read + Send + 'static) {
        let prefix = prefix(rank, self.ranks, stream);
        let opener = self.opener.clone();
        thread::spawn(move || {
            match stream {
                Stream::Output => lines(from, &prefix, io::stdout),
                Stream::Errors => lines(from, &prefix, io::stderr),
            }
            drop(opener);
        });
    }

    /// Waits until all streams have ended. False if the time is over before: somebody holds one.
    pub fn drain(self, time: Duration) -> bool {
        let Output { open, opener, .. } = self;
        drop(opener);
        let until = Instant::now() + time;
        loop {
            match open.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) => return false,
            }
        }
    }
}

/// Each rank has its colour, on a terminal.
fn prefix(rank: usize, ranks: usize, stream: Stream) -> String {
    let width = (ranks - 1).to_string().len();
    let style = match rank % 6 {
        0 => Style::new().cyan(),
        1 => Style::new().green(),
        2 => Style::new().yellow(),
        3 => Style::new().blue(),
        4 => Style::new().magenta(),
        _ => Style::new().red(),
    };
    let style = if stream == Stream::Errors { style.for_stderr() } else { style.for_stdout() };
    format!("{} ", style.apply_to(format!("[{rank:width$}]")))
}

/// Copies line by line. A destination that is gone takes nothing, and the source still ends: a rank
/// is not to block on its output.
fn lines<W: Write>(from: impl Read, prefix: &str, to: impl Fn() -> W) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        line.extend_from_slice(prefix.as_bytes());
        match from.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        // One call, so that lines of several ranks do not mix.
        let mut to = to();
        let _ = to.write_all(&line).and_then(|()| to.flush());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            if let Ok(mut kept) = self.0.lock() {
                kept.extend_from_slice(data);
            }
            Ok(data.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn copied(from: &[u8]) -> Vec<u8> {
        let kept = Kept::default();
        lines(from, "[3] ", || kept.clone());
        kept.0.lock().map(|kept| kept.clone()).unwrap_or_default()
    }

    #[test]
    fn every_line_has_its_prefix() {
        assert_eq!(copied(b""), b"");
        assert_eq!(copied(b"a\n\nb"), b"[3] a\n[3] \n[3] b\n");
        assert_eq!(copied(b"\xff\r\n"), b"[3] \xff\r\n");
    }

    #[test]
    fn a_line_without_end_is_shown_in_pieces() {
        let long = vec![b'x'; LONGEST as usize + 1];
        let shown = copied(&long);
        assert_eq!(shown.len(), long.len() + 2 * "[3] \n".len());
        assert!(shown.ends_with(b"\n[3] x\n"));
    }

    #[test]
    fn prefixes_are_as_wide_as_the_last() {
        console::set_colors_enabled(false);
        assert_eq!(prefix(3, 11, Stream::Output), "[ 3] ");
        assert_eq!(prefix(0, 1, Stream::Output), "[0] ");
    }
}
