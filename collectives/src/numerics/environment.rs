//! The floating-point environment of a reduction.
//!
//! Rust code assumes that subnormals are kept and results rounded to nearest even. Libraries
//! loaded beside it change that for a thread (`torch.set_flush_denormal`, objects linked with
//! `-ffast-math`), and a rank in such a thread would get other bits than its peers. So the
//! control register is looked at before each reduction and put right for its length.
#![allow(unsafe_code)] // The register is reached by instructions alone.

/// Holds the default environment from [`enter`](Self::enter) until it is dropped.
///
/// The compiler does not know that floating-point operations depend on the register: they must be
/// behind a call that is not inlined, between the two.
#[derive(Debug)]
pub(super) struct DefaultEnvironment {
    /// The register before, where it was not the default.
    replaced: Option<register::Value>,
}

impl DefaultEnvironment {
    #[inline]
    pub(super) fn enter() -> Self {
        let before = register::read();
        let replaced = (before & register::CONTROL != register::DEFAULT).then_some(before);
        if replaced.is_some() {
            // SAFETY: the default is the environment that Rust assumes.
            unsafe { register::write(register::DEFAULT) };
        }
        DefaultEnvironment { replaced }
    }
}

impl Drop for DefaultEnvironment {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.replaced {
            // SAFETY: the thread had this value when it called; whoever set it answers for it.
            unsafe { register::write(before) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(in crate::numerics) mod register {
    //! MXCSR.
    use core::arch::asm;

    pub(in crate::numerics) type Value = u32;

    /// Rounding, exception masks, flush-to-zero and denormals-are-zero: all but the sticky flags.
    pub(in crate::numerics) const CONTROL: Value = 0xffc0;
    /// All exceptions masked, round to nearest even, subnormals kept.
    pub(in crate::numerics) const DEFAULT: Value = 0x1f80;

    #[inline]
    pub(in crate::numerics) fn read() -> Value {
        let mut value = 0;
        // SAFETY: stores the register to a local of its size.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut value, options(nostack, preserves_flags)) };
        value
    }

    /// # Safety
    ///
    /// No reserved bit is set; floating-point operations until the next write may assume this
    /// environment alone.
    #[inline]
    pub(in crate::numerics) unsafe fn write(value: Value) {
        // SAFETY: loads the register from a local of its size; the rest is the caller's promise.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const value, options(nostack)) };
    }
}

#[cfg(target_arch = "aarch64")]
pub(in crate::numerics) mod register {
    //! FPCR.
    use core::arch::asm;

    pub(in crate::numerics) type Value = u64;

    pub(in crate::numerics) const CONTROL: Value = Value::MAX;
    /// No exception trapped, round to nearest even, subnormals kept, NaNs propagated.
    pub(in crate::numerics) const DEFAULT: Value = 0;

    #[inline]
    pub(in crate::numerics) fn read() -> Value {
        let value;
        // SAFETY: reads a register that user code may read.
        unsafe { asm!("mrs {}, fpcr", out(reg) value, options(nostack, preserves_flags)) };
        value
    }

    /// # Safety
    ///
    /// No reserved bit is set; floating-point operations until the next write may assume this
    /// environment alone.
    #[inline]
    pub(in crate::numerics) unsafe fn write(value: Value) {
        // SAFETY: writes a register that user code may write; the rest is the caller's promise.
        unsafe { asm!("msr fpcr, {}", in(reg) value, options(nostack)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(in crate::numerics) mod register {
    //! No register that a library is known to change.

    pub(in crate::numerics) type Value = u32;

    pub(in crate::numerics) const CONTROL: Value = 0;
    pub(in crate::numerics) const DEFAULT: Value = 0;

    #[inline]
    pub(in crate::numerics) fn read() -> Value {
        DEFAULT
    }

    /// # Safety
    ///
    /// None needed: the signature is that of the other architectures.
    #[inline]
    pub(in crate::numerics) unsafe fn write(_: Value) {}
}
