//! What a device's driver says when a call fails.

use core::fmt;
use std::error::Error;
use std::sync::Arc;

use crate::fault::{Fault, Kind};

/// A driver's call that failed: which, with the driver's code, name and text for it. Clones share
/// the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverError(Arc<Told>);

#[derive(Debug, PartialEq, Eq)]
struct Told {
    call: &'static str,
    code: u32,
    name: String,
    text: String,
    kind: Kind,
}

impl DriverError {
    /// What `call` returned, in the driver's own words, and of which kind that is.
    #[must_use]
    pub fn new(call: &'static str, code: u32, name: String, text: String, kind: Kind) -> Self {
        DriverError(Arc::new(Told { call, code, name, text, kind }))
    }

    /// The function of the driver that failed.
    #[must_use]
    pub fn call(&self) -> &'static str {
        self.0.call
    }

    /// The code it returned.
    #[must_use]
    pub fn code(&self) -> u32 {
        self.0.code
    }

    /// The code's name, as in the driver's header.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The driver's words for it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0.text
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Told { call, code, name, text, .. } = &*self.0;
        write!(f, "{call}: {name} ({code}): {text}")
    }
}

impl Error for DriverError {}

impl Fault for DriverError {
    fn kind(&self) -> Kind {
        self.0.kind
    }
}
