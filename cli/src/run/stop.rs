//! How a job is brought to its end: what to send, and when.

use std::time::{Duration, Instant};

use rustix::process::Signal;

/// What a job ends for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A rank failed.
    Failure,
    /// The job's time is over.
    Timeout,
    /// The launcher was sent a signal.
    Signal(Signal),
}

/// The ladder from the cause to SIGKILL, one rung a grace period. Knows no processes.
#[derive(Debug)]
pub struct Stop {
    grace: Duration,
    next: Option<(Rung, Instant)>,
    sent: Vec<Signal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rung {
    Terminate,
    Kill,
    Done,
}

impl Stop {
    pub fn new(grace: Duration) -> Self {
        Stop { grace, next: None, sent: Vec::new() }
    }

    /// A cause to end the job; returns what to send now. The first failure leaves time to the other
    /// ranks. A second signal is impatience.
    pub fn cause(&mut self, cause: Cause, now: Instant) -> Option<Signal> {
        let (rung, send) = match (cause, self.next) {
            (Cause::Failure, None) => (Rung::Terminate, None),
            (Cause::Timeout, None) => (Rung::Kill, Some(Signal::TERM)),
            (Cause::Signal(signal), None) => (Rung::Terminate, Some(signal)),
            (Cause::Signal(_), Some(_)) => (Rung::Done, Some(Signal::KILL)),
            (Cause::Failure | Cause::Timeout, Some(_)) => return None,
        };
        self.next = Some((rung, now + self.grace));
        self.sent.extend(send);
        send
    }

    /// What to send, once it is time.
    pub fn due(&mut self, now: Instant) -> Option<Signal> {
        let (rung, at) = self.next?;
        if now < at {
            return None;
        }
        let (rung, send) = match rung {
            Rung::Terminate => (Rung::Kill, Some(Signal::TERM)),
            Rung::Kill => (Rung::Done, Some(Signal::KILL)),
            Rung::Done => (Rung::Done, None),
        };
        self.next = Some((rung, now + self.grace));
        self.sent.extend(send);
        send
    }

    /// Whether this signal was sent, so that a rank which it killed has not failed.
    pub fn sent(&self, signal: Option<i32>) -> bool {
        self.sent.iter().any(|sent| Some(sent.as_raw()) == signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(5);

    #[test]
    fn a_failure_leaves_time_then_terminates_then_kills() {
        let start = Instant::now();
        let mut stop = Stop::new(GRACE);
        assert_eq!(stop.due(start + 10 * GRACE), None);
        assert_eq!(stop.cause(Cause::Failure, start), None);
        assert_eq!(stop.cause(Cause::Failure, start + GRACE / 2), None);
        assert_eq!(stop.due(start + GRACE / 2), None);
        assert_eq!(stop.due(start + GRACE), Some(Signal::TERM));
        assert_eq!(stop.due(start + GRACE), None);
        assert_eq!(stop.due(start + 2 * GRACE), Some(Signal::KILL));
        assert_eq!(stop.due(start + 9 * GRACE), None);
    }

    #[test]
    fn a_timeout_terminates_at_once() {
        let start = Instant::now();
        let mut stop = Stop::new(GRACE);
        assert_eq!(stop.cause(Cause::Timeout, start), Some(Signal::TERM));
        assert_eq!(stop.due(start + GRACE), Some(Signal::KILL));
    }

    #[test]
    fn signals_are_passed_on_and_the_second_one_kills() {
        let start = Instant::now();
        let mut stop = Stop::new(GRACE);
        assert_eq!(stop.cause(Cause::Signal(Signal::INT), start), Some(Signal::INT));
        assert_eq!(stop.due(start + GRACE), Some(Signal::TERM));
        assert_eq!(stop.cause(Cause::Signal(Signal::INT), start + GRACE), Some(Signal::KILL));
        assert_eq!(stop.due(start + 9 * GRACE), None);
    }
}
