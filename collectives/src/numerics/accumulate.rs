//! Arithmetic on accumulators, one rounding an operation.
//!
//! Rust neither contracts `a * b + c` nor reassociates, so a plain `+` is the IEEE operation.

/// A type that sums and products are formed in.
pub(super) trait Accumulator: Copy {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    /// The quotient by the number of ranks, which is not zero: rounded to nearest for floats,
    /// toward zero for integers.
    fn divide(self, ranks: usize) -> Self;
}

macro_rules! floats {
    ($($float:ty),*) => {$(
        impl Accumulator for $float {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self * other
            }

            #[inline(always)]
            fn divide(self, ranks: usize) -> Self {
                self / ranks as $float
            }
        }
    )*};
}

floats!(f32, f64);

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Accumulator for $integer {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn divide(self, ranks: usize) -> Self {
                self.wrapping_div(ranks as Self)
            }
        }
    )*};
}

integers!(u8, u16, u32, u64, u128, i64, i128);

/// How a reduction folds values of `A`, and what it does to the last one.
///
/// Which side a value is on changes nothing that is left when all NaNs have become one.
pub(super) trait Operator<A> {
    fn combine(left: A, right: A) -> A;

    #[inline(always)]
    fn finish(folded: A, _ranks: usize) -> A {
        folded
    }
}

pub(super) struct Sum;
pub(super) struct Avg;
pub(super) struct Product;
pub(super) struct Min;
pub(super) struct Max;
pub(super) struct And;
pub(super) struct Or;
pub(super) struct Xor;

impl<A: Accumulator> Operator<A> for Sum {
    #[inline(always)]
    fn combine(left: A, right: A) -> A {
        left.add(right)
    }
}

impl<A: Accumulator> Operator<A> for Avg {
    #[inline(always)]
    fn combine(left: A, right: A) -> A {
        left.add(right)
    }

    #[inline(always)]
    fn finish(folded: A, ranks: usize) -> A {
        folded.divide(ranks)
    }
}

impl<A: Accumulator> Operator<A> for Product {
    #[inline(always)]
    fn combine(left: A, right: A) -> A {
        left.multiply(right)
    }
}

impl<A: Ord> Operator<A> for Min {
    #[inline(always)]
    fn combine(left: A, right: A) -> A {
        left.min(right)
    }
}

impl<A: Ord> Operator<A> for Max {
    #[inline(always)]
    fn combine(left: A, right: A) -> A {
        left.max(right)
    }
}

impl Operator<u8> for And {
    #[inline(always)]
    fn combine(left: u8, right: u8) -> u8 {
        left & right
    }
}

impl Operator<u8> for Or {
    #[inline(always)]
    fn combine(left: u8, right: u8) -> u8 {
        left | right
    }
}

impl Operator<u8> for Xor {
    #[inline(always)]
    fn combine(left: u8, right: u8) -> u8 {
        left ^ right
    }
}
