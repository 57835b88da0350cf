//! How a test says what went wrong, with where it was found.

use core::fmt;
use core::panic::Location;
use std::error::Error;

/// What a test's body returns on each rank.
pub type Verdict = Result<(), TestError>;

/// Why a body ended before its end.
///
/// Any error becomes one by `?`, which notes the line.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TestError {
    /// Something is not as it should be.
    Failed {
        /// What.
        message: String,
        /// Where the test found it.
        at: &'static Location<'static>,
    },
    /// The test has no meaning here.
    Skipped {
        /// Why.
        reason: String,
    },
    /// Another rank has failed, and this one stops.
    GaveUp,
}

impl TestError {
    /// A failure at the caller's line.
    #[must_use]
    #[track_caller]
    pub fn failed(message: impl Into<String>) -> Self {
        TestError::Failed { message: message.into(), at: Location::caller() }
    }

    /// A skip.
    #[must_use]
    pub fn skipped(reason: impl Into<String>) -> Self {
        TestError::Skipped { reason: reason.into() }
    }
}

impl<E: Error> From<E> for TestError {
    #[track_caller]
    fn from(error: E) -> Self {
        TestError::Failed { message: error.to_string(), at: Location::caller() }
    }
}

impl fmt::Display for TestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TestError::Failed { message, at } => write!(f, "{at}: {message}"),
            TestError::Skipped { reason } => write!(f, "skipped: {reason}"),
            TestError::GaveUp => f.write_str("stopped, since another rank had failed"),
        }
    }
}

/// Fails the test unless the condition holds.
#[macro_export]
macro_rules! check {
    ($condition:expr $(,)?) => {
        $crate::check!($condition, "{} does not hold", stringify!($condition))
    };
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::runner::TestError::failed(format!($($text)+)));
        }
    };
}

/// Fails the test unless the first value, found, equals the second, expected.
#[macro_export]
macro_rules! check_eq {
    ($found:expr, $expected:expr $(,)?) => {
        $crate::check_eq!($found, $expected, "{}", stringify!($found))
    };
    ($found:expr, $expected:expr, $($text:tt)+) => {
        match (&$found, &$expected) {
            (found, expected) => $crate::check!(
                *found == *expected,
                "{}: expected {expected:?}, found {found:?}",
                format_args!($($text)+)
            ),
        }
    };
}

/// Fails the test unless the result is an error of this pattern; gives the error.
#[macro_export]
macro_rules! check_err {
    ($result:expr, $pattern:pat $(if $guard:expr)? $(,)?) => {
        match $result {
            Err(error) => {
                // Matched by reference, so that the pattern may name fields.
                let as_expected = match &error {
                    $pattern $(if $guard)? => true,
                    #[allow(unreachable_patterns, reason = "the pattern may match every error")]
                    _ => false,
                };
                $crate::check!(
                    as_expected,
                    "expected {}, found {error:?}: {error}",
                    stringify!($pattern $(if $guard)?)
                );
                error
            }
            Ok(_) => {
                return Err($crate::runner::TestError::failed(concat!(
                    "expected ", stringify!($pattern $(if $guard)?), ", found success"
                )));
            }
        }
    };
}
