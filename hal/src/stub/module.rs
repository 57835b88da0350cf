//! Kernel sets of this backend: plain functions, nothing to compile.

use crate::backend::ModuleOps;
use crate::module::{Kernel, KernelSet};

/// A set of kernels of this backend.
#[derive(Clone, Copy, Debug)]
pub struct Module(pub(super) &'static KernelSet);

impl ModuleOps for Module {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn kernel(&self, name: &str) -> Option<&'static Kernel> {
        self.0.kernels.iter().find(|kernel| kernel.name == name)
    }
}
