#![allow(clippy::unwrap_used, clippy::panic)]

mod captured;
mod connect;
mod launchers;
mod places;
mod torchrun;
