//! Element types.

use core::fmt;

use half::{bf16, f16};

use super::{F8E4M3, F8E5M2};

/// The element type of a tensor.
///
/// The discriminants travel between ranks and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DType {
    /// IEEE binary64.
    F64 = 1,
    /// IEEE binary32.
    F32 = 2,
    /// IEEE binary16.
    F16 = 3,
    /// bfloat16: the upper half of a binary32.
    BF16 = 4,
    /// OCP 8-bit float `e4m3fn`: no infinities, largest finite value 448.
    F8E4M3 = 5,
    /// OCP 8-bit float `e5m2`: infinities and NaNs as IEEE.
    F8E5M2 = 6,
    /// Signed 8-bit integer.
    I8 = 7,
    /// Signed 16-bit integer.
    I16 = 8,
    /// Signed 32-bit integer.
    I32 = 9,
    /// Signed 64-bit integer.
    I64 = 10,
    /// Unsigned 8-bit integer.
    U8 = 11,
    /// Unsigned 16-bit integer.
    U16 = 12,
    /// Unsigned 32-bit integer.
    U32 = 13,
    /// Unsigned 64-bit integer.
    U64 = 14,
}

impl DType {
    /// Every element type, in the order of their codes.
    pub const ALL: [DType; 14] = [
        DType::F64,
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F8E4M3,
        DType::F8E5M2,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
    ];

    /// Bytes of one element: 1, 2, 4 or 8.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 | DType::U64 => 8,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 2,
            DType::F8E4M3 | DType::F8E5M2 | DType::I8 | DType::U8 => 1,
        }
    }

    /// Whether this is a floating-point type of any width.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DType::F64 | DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2
        )
    }

    /// The name that the command line, messages and files use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F8E4M3 => "f8e4m3",
            DType::F8E5M2 => "f8e5m2",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
        }
    }

    /// The code that travels between ranks.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The type of a code; `None` for a code of no type.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.code() == code)
    }

    /// The type of a [`name`](Self::name); `None` for an unknown one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.name() == name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is the element of a tensor.
///
/// # Safety
///
/// Sealed. An implementor is plain data: `size_of::<Self>() == DTYPE.size()`, no padding, and
/// every bit pattern is a value.
#[allow(unsafe_code)]
pub unsafe trait Element:
    sealed::Sealed + bytemuck::Pod + PartialEq + fmt::Debug + Send + Sync
{
    /// The matching [`DType`].
    const DTYPE: DType;
}

macro_rules! elements {
    ($($t:ty => $d:ident),* $(,)?) => {$(
        impl sealed::Sealed for $t {}
        // SAFETY: `Pod` gives plain data without padding; the size is asserted below. Holds for
        // the type itself, for ever.
        #[allow(unsafe_code)]
        unsafe impl Element for $t {
            const DTYPE: DType = DType::$d;
        }
        const _: () = assert!(size_of::<$t>() == DType::$d.size());
    )*};
}

elements!(f64 => F64, f32 => F32, f16 => F16, bf16 => BF16, F8E4M3 => F8E4M3, F8E5M2 => F8E5M2,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_round_trip() {
        for d in DType::ALL {
            assert_eq!(DType::from_code(d.code()), Some(d));
            assert_eq!(DType::from_name(d.name()), Some(d));
        }
        assert_eq!(DType::from_code(0), None);
        assert_eq!(DType::from_name("f31"), None);
    }
}
