//! Kernel sets of this backend: plain functions, nothing to compile.

use crate::backend::ModuleOps;
use crate::module::KernelSet;

/// A set of kernels of this backend.
#[derive(Clone, Copy, Debug)]
pub struct Module(pub(super) &'static KernelSet);

impl ModuleOps for Module {
    fn set(&self) -> &'static KernelSet {
        self.0
    }
}
