//! What the examples with a real model share.
//!
//! The files of [all-MiniLM-L6-v2](https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2), its
//! encoder with places for the parts that an example spreads over ranks, the ranks of a command, and
//! how far results may be from those of the whole model.

mod checkpoint;
mod difference;
mod model;
mod ranks;
pub mod tiny;

pub use checkpoint::Checkpoint;
pub use difference::{Difference, TOLERANCE};
pub use model::{Attention, Batch, Config, Embeddings, Encoder, Hidden, Part, columns};
pub use ranks::{Args, share};
