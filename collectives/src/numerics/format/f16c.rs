//! f16 by the conversions of x86 processors, which do the work of two dozen instructions.
#![allow(unsafe_code)] // Vector intrinsics.

use core::arch::x86_64::{
    _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_blendv_epi8, _mm_castps_si128, _mm_loadu_si128,
    _mm_packs_epi32, _mm_set1_epi16, _mm_storeu_si128, _mm256_castps256_ps128, _mm256_cmp_ps,
    _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_extractf128_ps, _mm256_loadu_ps, _mm256_storeu_ps,
};

use super::Format;

/// Eight f16, for code that is compiled with the features avx2 and f16c alone.
pub(in crate::numerics) struct F16c;

impl Format<8> for F16c {
    type Word = u128;
    type Acc = f32;

    #[inline(always)]
    fn unpack(word: u128) -> [f32; 8] {
        let mut values = [0.0; 8];
        // SAFETY: reads the 16 bytes of `word` and writes the 32 of `values`. That the processor
        // has the instructions is checked where the level is chosen.
        unsafe {
            let codes = _mm_loadu_si128((&raw const word).cast());
            _mm256_storeu_ps(values.as_mut_ptr(), _mm256_cvtph_ps(codes));
        }
        values
    }

    #[inline(always)]
    fn pack(values: [f32; 8]) -> u128 {
        let mut word = 0;
        // SAFETY: reads the 32 bytes of `values` and writes the 16 of `word`; as above.
        unsafe {
            let values = _mm256_loadu_ps(values.as_ptr());
            let codes = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values);
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(values, values);
            let nan = _mm_packs_epi32(
                _mm_castps_si128(_mm256_castps256_ps128(nan)),
                _mm_castps_si128(_mm256_extractf128_ps::<1>(nan)),
            );
            let codes = _mm_blendv_epi8(codes, _mm_set1_epi16(0x7fff), nan);
            _mm_storeu_si128((&raw mut word).cast(), codes);
        }
        word
    }
}
