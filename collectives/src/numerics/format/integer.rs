//! Integers.

use core::marker::PhantomData;

use bytemuck::Pod;

use super::Format;

/// An integer that is its own accumulator.
pub(in crate::numerics) struct Native<T>(PhantomData<T>);

impl<T: Pod> Format<1> for Native<T> {
    type Word = T;
    type Acc = T;

    #[inline(always)]
    fn unpack(word: T) -> [T; 1] {
        [word]
    }

    #[inline(always)]
    fn pack([value]: [T; 1]) -> T {
        value
    }
}

/// An integer accumulated in a type that holds the sum of 2^32 of them exactly.
pub(in crate::numerics) struct Exact<T>(PhantomData<T>);

macro_rules! exact {
    ($($integer:ty => $wide:ty),* $(,)?) => {$(
        impl Format<1> for Exact<$integer> {
            type Word = $integer;
            type Acc = $wide;

            #[inline(always)]
            fn unpack(word: $integer) -> [$wide; 1] {
                [word as $wide]
            }

            #[inline(always)]
            fn pack([value]: [$wide; 1]) -> $integer {
                value as $integer
            }
        }
    )*};
}

exact!(i8 => i64, i16 => i64, i32 => i64, i64 => i128);
exact!(u8 => u64, u16 => u64, u32 => u64, u64 => u128);
