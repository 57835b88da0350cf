//! Independent models of what the library computes: slow, wide, and written from the contract.

#[cfg(feature = "mem")]
pub mod collective;
pub mod float;
pub mod reduce;

#[cfg(test)]
mod tests;
