//! Arithmetic on accumulators, one rounding an operation.
//!
//! Rust neither contracts `a * b + c` nor reassociates, so a plain `+` is the IEEE operation.

/// A type that sums, products and extremes are formed in.
pub(super) trait Accumulator: Copy {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn minimum(self, other: Self) -> Self;
    fn maximum(self, other: Self) -> Self;
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

            // Selects only: what a library's fmin does with NaN and signed zeros differs by
            // platform. A comparison with NaN is false, which picks `other`, so only a NaN in
            // `self` needs a test. Equal values have equal bits unless they are zeros of both
            // signs, of which `|` keeps the minus and `&` drops it.
            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                if self == other {
                    return Self::from_bits(self.to_bits() | other.to_bits());
                }
                if (self < other) | self.is_nan() { self } else { other }
            }

            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                if self == other {
                    return Self::from_bits(self.to_bits() & other.to_bits());
                }
                if (self > other) | self.is_nan() { self } else { other }
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
            fn minimum(self, other: Self) -> Self {
                Ord::min(self, other)
            }

            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                Ord::max(self, other)
            }

            #[inline(always)]
            fn divide(self, ranks: usize) -> Self {
                self.wrapping_div(ranks as Self)
            }
        }
    )*};
}

integers!(i8, i16, i32, i64, i128, u8, u16, u32, u64, u128);

/// How a reduction folds values of `A`, and what it does to the last one.
pub(super) trait Operator<A> {
    fn combine(left: A, right: A) -> A;

    #[inline(always)]
    fn finish(folded: A, ranks: usize) -> A {
        let _ = ranks;
        folded
    }
}

pub(super) struct Sum;
pub(super) struct Avg;
pub(super) struct Min;
pub(super) struct Max;
pub(super) struct Product;
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

impl<A: Accumulator> Operator<A> for Min {
    #[inline(always)]
    fn combine(left: A, right: A) -> A {
        left.minimum(right)
    }
}

impl<A: Accumulator> Operator<A> for Max {
    #[inline(always)]
    fn combine(left: A, right: A) -> A {
        left.maximum(right)
    }
}

impl<A: Accumulator> Operator<A> for Product {
    #[inline(always)]
    fn combine(left: A, right: A) -> A {
        left.multiply(right)
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
