// numerics.cuh: how elements are reduced; the same bits as the crate's module `numerics`.
//
// One element type for each compilation, SYMMEM_DTYPE, and one operator, SYMMEM_OP, or all that the type has,
// of which the kernel is told one: by their codes. Operands are folded in rank order in the accumulator,
// rounded once an operation, and converted once.
// Every NaN result is one quiet NaN.

#ifndef SYMMEM_NUMERICS_CUH
#define SYMMEM_NUMERICS_CUH

#include "symmem.cuh"

namespace symmem {

enum DType { F64 = 1, F32, F16, BF16, F8E4M3, F8E5M2, I8, I16, I32, I64, U8, U16, U32, U64 };
enum Op { SUM = 1, AVG, MIN, MAX, PRODUCT, AND, OR, XOR };

// Whether kernels have one operator; else OP is the one whose accumulators do for all.
#ifdef SYMMEM_OP
__device__ constexpr bool ONE_OP = true;
__device__ constexpr int OP = SYMMEM_OP;
#else
__device__ constexpr bool ONE_OP = false;
__device__ constexpr int OP = AVG;
#endif

SYMMEM_FN u32 bits_of(float value) { return __builtin_bit_cast(u32, value); }
SYMMEM_FN float float_of(u32 bits) { return __builtin_bit_cast(float, bits); }
SYMMEM_FN u64 bits_of(double value) { return __builtin_bit_cast(u64, value); }

template <class A, class B> struct Same { static constexpr bool value = false; };
template <class A> struct Same<A, A> { static constexpr bool value = true; };

// ------------------------------------------------------------------------ narrow floats

// Floats of at most 16 bits whose exponent is narrower than f32's. OVERFLOW is the magnitude that what
// overflows becomes; without INFINITY the highest code alone is NaN.
template <u32 BITS, u32 MANTISSA, u32 BIAS, u32 OVERFLOW, bool INFINITE> struct Minifloat {
  static constexpr u32 NAN_CODE = (1u << (BITS - 1)) - 1;

  static SYMMEM_FN float widen(u32 code) {
    constexpr u32 lowest = (127 + 1 - BIAS) << 23;
    u32 magnitude = code & NAN_CODE, shifted = magnitude << (23 - MANTISSA);
    u32 normal = shifted + ((127 - BIAS) << 23);
    u32 subnormal = bits_of(float_of(shifted + lowest) - float_of(lowest));
    u32 bits = magnitude < (1u << MANTISSA) ? subnormal : normal;
    if (INFINITE ? magnitude >= OVERFLOW : magnitude == NAN_CODE) bits = INFINITE ? shifted | 0x7f800000 : 0x7fffffff;
    return float_of(bits | (code >> (BITS - 1) & 1) << 31);
  }

  static SYMMEM_FN u32 narrow(float value) {
    constexpr u32 shift = 23 - MANTISSA, anchor = (127 + 1 - BIAS + shift) << 23;
    u32 bits = bits_of(value) & 0x7fffffff;
    u32 subnormal = bits_of(float_of(bits) + float_of(anchor)) - anchor;
    u32 rounded = (bits + (1u << (shift - 1)) - 1 + (bits >> shift & 1)) >> shift;
    u32 normal = rounded - ((127 - BIAS) << MANTISSA);
    u32 finite = bits < (127 + 1 - BIAS) << 23 ? subnormal : normal;
    u32 magnitude = finite < OVERFLOW ? finite : OVERFLOW;
    bool nan = INFINITE ? bits > 0x7f800000 : magnitude == NAN_CODE;
    return nan ? NAN_CODE : magnitude | bits_of(value) >> 31 << (BITS - 1);
  }
};

// Whether two floats of 16 bits are converted at once.
#if defined(SYMMEM_HIP) || defined(SYMMEM_SOFT_FLOATS)
__device__ constexpr bool NARROWS_PAIRS = false;
#else
__device__ constexpr bool NARROWS_PAIRS = true;
#endif

#ifdef SYMMEM_SOFT_FLOATS
using Half = Minifloat<16, 10, 15, 0x7c00, true>;
#else
struct Half {
#ifdef SYMMEM_HIP
  static SYMMEM_FN float widen(u32 code) { return (float)__builtin_bit_cast(_Float16, (u16)code); }
  static SYMMEM_FN u32 narrow(float value) {
    u32 bits = __builtin_bit_cast(u16, (_Float16)value);
    return (bits & 0x7fff) > 0x7c00 ? 0x7fff : bits;
  }
#else
  static SYMMEM_FN float widen(u32 code) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)code));
    return value;
  }
  // A NaN becomes 0x7fff.
  static SYMMEM_FN u32 narrow(float value) {
    u16 code;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(value));
    return code;
  }
  static SYMMEM_FN u32 narrow_pair(float low, float high) {
    u32 codes;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(codes) : "f"(high), "f"(low));
    return codes;
  }
#endif
};
#endif

struct BFloat {
  static SYMMEM_FN float widen(u32 code) { return float_of(code << 16); }
#if defined(SYMMEM_HIP) || defined(SYMMEM_SOFT_FLOATS)
  static SYMMEM_FN u32 narrow(float value) {
    u32 bits = bits_of(value), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : rounded;
  }
#else
  // A NaN becomes 0x7fff.
  static SYMMEM_FN u32 narrow(float value) {
    u16 code;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(code) : "f"(value));
    return code;
  }
  static SYMMEM_FN u32 narrow_pair(float low, float high) {
    u32 codes;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(codes) : "f"(high), "f"(low));
    return codes;
  }
#endif
};

using E4M3 = Minifloat<8, 3, 7, 0x7f, false>;
using E5M2 = Minifloat<8, 2, 15, 0x7c, true>;

// ----------------------------------------------------------------------------- wide sums

// The exact sum of any number of ranks' 64-bit integers.
struct Wide {
  u64 low;
  i64 high;
};

SYMMEM_FN Wide wide_add(Wide a, Wide b) {
  u64 low = a.low + b.low;
  return {low, (i64)((u64)a.high + (u64)b.high + (low < a.low))};
}

// The quotient by a number of ranks, toward zero.
SYMMEM_FN u64 wide_divide(Wide sum, u32 ranks) {
  bool negative = sum.high < 0;
  u64 low = sum.low, high = (u64)sum.high;
  if (negative) {
    low = ~low + 1;
    high = ~high + (low == 0);
  }
  // The magnitude of the quotient fits in 64 bits, so that high < ranks.
  u64 upper = high % ranks << 32 | low >> 32;
  u64 lower = upper % ranks << 32 | (low & 0xffffffff);
  u64 quotient = upper / ranks << 32 | lower / ranks;
  return negative ? ~quotient + 1 : quotient;
}

// --------------------------------------------------------------------------- element types

template <int D> struct Size { static constexpr u32 value = 1; };
template <> struct Size<F64> { static constexpr u32 value = 8; };
template <> struct Size<I64> { static constexpr u32 value = 8; };
template <> struct Size<U64> { static constexpr u32 value = 8; };
template <> struct Size<F32> { static constexpr u32 value = 4; };
template <> struct Size<I32> { static constexpr u32 value = 4; };
template <> struct Size<U32> { static constexpr u32 value = 4; };
template <> struct Size<F16> { static constexpr u32 value = 2; };
template <> struct Size<BF16> { static constexpr u32 value = 2; };
template <> struct Size<I16> { static constexpr u32 value = 2; };
template <> struct Size<U16> { static constexpr u32 value = 2; };

// An unsigned word of N bytes.
template <u32 N> struct Word;
template <> struct Word<1> { using Type = u8; };
template <> struct Word<2> { using Type = u16; };
template <> struct Word<4> { using Type = u32; };
template <> struct Word<8> { using Type = u64; };

// How an element of type D becomes an accumulator of operator O, and back.
template <int D, int O, class Enable = void> struct Element;

__device__ constexpr bool is_signed(int d) { return d >= I8 && d <= I64; }
__device__ constexpr bool is_integer(int d) { return d >= I8; }
__device__ constexpr bool is_bitwise(int o) { return o >= AND; }

template <int D> struct Convert;
template <> struct Convert<F16> : Half {};
template <> struct Convert<BF16> : BFloat {};
template <> struct Convert<F8E4M3> : E4M3 {};
template <> struct Convert<F8E5M2> : E5M2 {};
template <> struct Convert<F32> {
  static SYMMEM_FN float widen(u32 code) { return float_of(code); }
  static SYMMEM_FN u32 narrow(float value) {
    u32 bits = bits_of(value);
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fffffff : bits;
  }
};

template <bool> struct If {};
template <> struct If<true> { using Type = void; };

// Floats but f64: in f32.
template <int D, int O> struct Element<D, O, typename If<D >= F32 && D <= F8E5M2>::Type> {
  using Acc = float;
  static SYMMEM_FN Acc load(u64 code) { return Convert<D>::widen((u32)code); }
  static SYMMEM_FN Acc finish(Acc value, u32 ranks) { return O == AVG ? value / (float)ranks : value; }
  static SYMMEM_FN u64 store(Acc value, u32 ranks) { return Convert<D>::narrow(finish(value, ranks)); }
  static SYMMEM_FN Acc fold(Acc a, Acc b) {
    if constexpr (O == SUM || O == AVG) return a + b;
    else if constexpr (O == PRODUCT) return a * b;
    else return extreme(a, b);
  }
  // The minimum and maximum of IEEE 754-2019.
  static SYMMEM_FN Acc extreme(Acc a, Acc b) {
#ifdef SYMMEM_HIP
    if (a != a || b != b) return float_of(0x7fffffff);
    // Equal values differ in the sign of zero at most.
    if (a == b) return float_of(O == MIN ? bits_of(a) | bits_of(b) : bits_of(a) & bits_of(b));
    return (O == MIN) == (a < b) ? a : b;
#else
    Acc result;
    if constexpr (O == MIN) asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    else asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
#endif
  }
};

template <int O> struct Element<F64, O> {
  using Acc = double;
  static SYMMEM_FN Acc load(u64 code) { return __builtin_bit_cast(double, code); }
  static SYMMEM_FN u64 store(Acc value, u32 ranks) {
    u64 bits = bits_of(O == AVG ? value / (double)ranks : value);
    return (bits & 0x7fffffffffffffff) > 0x7ff0000000000000 ? 0x7fffffffffffffff : bits;
  }
  static SYMMEM_FN Acc fold(Acc a, Acc b) {
    if constexpr (O == SUM || O == AVG) return a + b;
    else if constexpr (O == PRODUCT) return a * b;
    else {
      if (a != a) return a;
      if (b != b) return b;
      if (a == b) {
        u64 bits = O == MIN ? bits_of(a) | bits_of(b) : bits_of(a) & bits_of(b);
        return __builtin_bit_cast(double, bits);
      }
      return (O == MIN) == (a < b) ? a : b;
    }
  }
};

// Integers: sums and products wrap, so that any width of at least the element's will do; averages
// divide the exact sum; minimum and maximum compare with the element's sign. Where one kernel has all
// operators, accumulators are as wide as averages need them.
template <int D, int O> struct Element<D, O, typename If<is_integer(D)>::Type> {
  static constexpr u32 BITS = 8 * Size<D>::value;
  static constexpr bool EXACT = O == AVG || !ONE_OP, WIDE = BITS == 64 && EXACT;
  template <bool, class A, class B> struct Pick { using Type = A; };
  template <class A, class B> struct Pick<false, A, B> { using Type = B; };
  using Acc = typename Pick<WIDE, Wide, typename Pick<BITS == 64 || EXACT, u64, u32>::Type>::Type;

  static SYMMEM_FN i64 extended(u64 code) {
    if constexpr (D == I8) return (i8)code;
    else if constexpr (D == I16) return (i16)code;
    else if constexpr (D == I32) return (i32)code;
    else return (i64)code;
  }
  static SYMMEM_FN Acc load(u64 code) {
    if constexpr (WIDE) return Wide{code, is_signed(D) && (i64)code < 0 ? -1 : 0};
    else return (Acc)extended(code);
  }
  static SYMMEM_FN u64 store(Acc value, u32 ranks) {
    if constexpr (WIDE) return O == AVG ? wide_divide(value, ranks) : value.low;
    else if constexpr (O == AVG) return is_signed(D) ? (u64)((i64)value / (i64)ranks) : value / ranks;
    else return value;
  }
  static SYMMEM_FN Acc fold(Acc a, Acc b) {
    if constexpr (WIDE && (O == SUM || O == AVG)) return wide_add(a, b);
    else if constexpr (WIDE) return Wide{word(a.low, b.low), 0};
    else return word(a, b);
  }
  // Of what is no wider than a word.
  template <class A> static SYMMEM_FN A word(A a, A b) {
    if constexpr (O == SUM || O == AVG) return a + b;
    else if constexpr (O == PRODUCT) return a * b;
    else if constexpr (O == AND) return a & b;
    else if constexpr (O == OR) return a | b;
    else if constexpr (O == XOR) return a ^ b;
    else {
      bool less;
      if constexpr (is_signed(D) && sizeof(A) == 8) less = (i64)a < (i64)b;
      else if constexpr (is_signed(D)) less = (i32)a < (i32)b;
      else less = a < b;
      return (O == MIN) == less ? a : b;
    }
  }
};

// ------------------------------------------------------------------------------- vectors

// 16 bytes of elements under way: accumulators, one an element. `op` is the operator where the kernel has
// more than one.
template <int D, int O> struct Fold {
  using E = Element<D, O>;
  using Acc = typename E::Acc;
  static constexpr u32 COUNT = 16 / Size<D>::value;
  Acc acc[COUNT];

  static SYMMEM_FN u64 element(const Vector& v, u32 i) {
    constexpr u32 size = Size<D>::value;
    if constexpr (size == 8) return v.w[2 * i] | (u64)v.w[2 * i + 1] << 32;
    else return v.w[i * size / 4] >> (8 * (i * size % 4)) & (size == 4 ? ~0u : (1u << (8 * size % 32)) - 1);
  }

  SYMMEM_FN void first(const Vector& v) {
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) acc[i] = E::load(element(v, i));
  }

  SYMMEM_FN void next(const Vector& v, u32 op) {
    Acc theirs[COUNT];
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) theirs[i] = E::load(element(v, i));
    if constexpr (ONE_OP) {
      fold<O>(theirs);
    } else {
      switch (op) {
        case MIN: return fold<MIN>(theirs);
        case MAX: return fold<MAX>(theirs);
        case PRODUCT: return fold<PRODUCT>(theirs);
        case AND: return fold<AND>(theirs);
        case OR: return fold<OR>(theirs);
        case XOR: return fold<XOR>(theirs);
        default: return fold<SUM>(theirs);
      }
    }
  }

  SYMMEM_FN Vector result(u32 ranks, u32 op) const {
    if constexpr (ONE_OP) return store<O>(ranks);
    else return op == AVG ? store<AVG>(ranks) : store<SUM>(ranks);
  }

 private:
  template <int P> SYMMEM_FN void fold(const Acc (&theirs)[COUNT]) {
    // Floats have no bits to combine.
    if constexpr (is_integer(D) || !is_bitwise(P)) {
#pragma unroll
      for (u32 i = 0; i < COUNT; i++) acc[i] = Element<D, P>::fold(acc[i], theirs[i]);
    }
  }

  template <int P> SYMMEM_FN Vector store(u32 ranks) const {
    using T = Element<D, P>;
    constexpr u32 size = Size<D>::value;
    Vector v = {};
    if constexpr (NARROWS_PAIRS && (D == F16 || D == BF16)) {
#pragma unroll
      for (u32 i = 0; i < 4; i++)
        v.w[i] = Convert<D>::narrow_pair(T::finish(acc[2 * i], ranks), T::finish(acc[2 * i + 1], ranks));
    } else {
#pragma unroll
      for (u32 i = 0; i < COUNT; i++) {
        u64 code = T::store(acc[i], ranks);
        if constexpr (size == 8) {
          v.w[2 * i] = (u32)code;
          v.w[2 * i + 1] = (u32)(code >> 32);
        } else {
          u32 low = (u32)code & (size == 4 ? ~0u : (1u << (8 * size % 32)) - 1);
          v.w[i * size / 4] |= low << (8 * (i * size % 4));
        }
      }
    }
    return v;
  }
};

}  // namespace symmem

#endif  // SYMMEM_NUMERICS_CUH
