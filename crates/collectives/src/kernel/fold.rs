//! The loops: a block of every input is folded in registers, then written to every output.
//!
//! A block is read whole before anything of it is written, which lets the compiler vectorise without asking whether
//! outputs and inputs overlap.

use std::ptr;

use super::has_avx2;
use super::order::Order;
use super::rule::{Number, Rule};
use crate::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// Elements of a block: at most half of the vector registers, leaving the others for what is added.
const BLOCK: usize = 32;
/// Elements of a block of half-precision numbers, which is kept in the first-level cache.
const HALF_BLOCK: usize = 512;

/// What a rule needs beside the values.
#[derive(Clone, Copy)]
pub(super) struct Rest {
    pub(super) factor: f64,
    /// How many ranks' values the result is of.
    pub(super) ranks: usize,
}

/// Folds numbers in their own precision.
///
/// # Safety
/// As for [`super::reduce`], with `count` elements of `T`.
pub(super) unsafe fn fold<T: Copy, R: Rule<T>>(inputs: &[*const u8], outputs: &[*mut u8], count: usize, rest: Rest) {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        // SAFETY: the processor has the features; the rest is the caller's promise.
        return unsafe { fold_avx2::<T, R>(inputs, outputs, count, rest) };
    }
    // SAFETY: the caller's promise.
    unsafe { fold_plain::<T, R>(inputs, outputs, count, rest) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn fold_avx2<T: Copy, R: Rule<T>>(inputs: &[*const u8], outputs: &[*mut u8], count: usize, rest: Rest) {
    // SAFETY: the caller's promise.
    unsafe { fold_plain::<T, R>(inputs, outputs, count, rest) }
}

#[inline(always)]
unsafe fn fold_plain<T: Copy, R: Rule<T>>(inputs: &[*const u8], outputs: &[*mut u8], count: usize, rest: Rest) {
    let (first, others) = inputs.split_first().expect("a reduction has at least one input");
    let order = Order::new(count, size_of::<T>(), BLOCK, inputs.len());
    for index in 0..order.blocks() {
        let start = order.start(index);
        // SAFETY: `start + BLOCK <= count` elements are readable in every input and writable in every output.
        unsafe {
            let read = |input: &*const u8| input.cast::<T>().add(start).cast::<[T; BLOCK]>().read_unaligned();
            let mut result = read(first);
            for value in &mut result {
                *value = R::enter(*value, rest.factor);
            }
            for input in others {
                let values = read(input);
                for (so_far, value) in result.iter_mut().zip(values) {
                    *so_far = R::combine(*so_far, R::enter(value, rest.factor));
                }
            }
            for value in &mut result {
                *value = R::leave(*value, rest.ranks);
            }
            for output in outputs {
                output.cast::<T>().add(start).cast::<[T; BLOCK]>().write_unaligned(result);
            }
        }
    }
    for at in order.blocks() * BLOCK..count {
        // SAFETY: `at < count`.
        unsafe {
            let read = |input: &*const u8| R::enter(input.cast::<T>().add(at).read_unaligned(), rest.factor);
            let result = others.iter().fold(read(first), |so_far, input| R::combine(so_far, read(input)));
            let result = R::leave(result, rest.ranks);
            for output in outputs {
                output.cast::<T>().add(at).write_unaligned(result);
            }
        }
    }
}

/// A 16-bit float that is accumulated in f32.
pub(super) trait Half {
    fn widen(half: u16) -> f32;
    fn narrow(value: f32) -> u16;
    /// Widens as many as the processor does at a time, at the front of `length`; says how many that were.
    ///
    /// # Safety
    /// The processor has AVX2 and F16C; `length` elements are readable at `from` and writable at `to`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn widen_front(from: *const u16, to: *mut f32, length: usize) -> usize;
    /// The way back.
    ///
    /// # Safety
    /// As for `widen_front`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn narrow_front(from: *const f32, to: *mut u16, length: usize) -> usize;
}

/// IEEE half precision.
pub(super) struct F16;
/// bfloat16.
pub(super) struct BF16;

impl Half for F16 {
    #[inline(always)]
    fn widen(half: u16) -> f32 {
        f16_to_f32(half)
    }
    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        f32_to_f16(value)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn widen_front(from: *const u16, to: *mut f32, length: usize) -> usize {
        use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
        let whole = length - length % 8;
        for at in (0..whole).step_by(8) {
            // SAFETY: eight elements from `at` lie below `length`.
            unsafe { _mm256_storeu_ps(to.add(at), _mm256_cvtph_ps(_mm_loadu_si128(from.add(at).cast()))) };
        }
        whole
    }
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn narrow_front(from: *const f32, to: *mut u16, length: usize) -> usize {
        use std::arch::x86_64::{_mm_storeu_si128, _mm256_cvtps_ph, _mm256_loadu_ps};
        let whole = length - length % 8;
        for at in (0..whole).step_by(8) {
            // SAFETY: eight elements from `at` lie below `length`. 0 is round to nearest even.
            unsafe { _mm_storeu_si128(to.add(at).cast(), _mm256_cvtps_ph::<0>(_mm256_loadu_ps(from.add(at)))) };
        }
        whole
    }
}

impl Half for BF16 {
    #[inline(always)]
    fn widen(half: u16) -> f32 {
        bf16_to_f32(half)
    }
    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        f32_to_bf16(value)
    }
    // The compiler vectorises shifts and selects by itself: the plain loop takes all.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn widen_front(_from: *const u16, _to: *mut f32, _length: usize) -> usize {
        0
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn narrow_front(_from: *const f32, _to: *mut u16, _length: usize) -> usize {
        0
    }
}

/// Folds 16-bit floats in f32 and rounds once.
///
/// # Safety
/// As for [`super::reduce`], with `count` 16-bit elements.
pub(super) unsafe fn fold_half<H: Half, R: Rule<f32>>(
    inputs: &[*const u8],
    outputs: &[*mut u8],
    count: usize,
    rest: Rest,
) {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        // SAFETY: the processor has the features; the rest is the caller's promise.
        return unsafe { fold_half_avx2::<H, R>(inputs, outputs, count, rest) };
    }
    // SAFETY: the caller's promise.
    unsafe { fold_half_plain::<H, R, false>(inputs, outputs, count, rest) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn fold_half_avx2<H: Half, R: Rule<f32>>(inputs: &[*const u8], outputs: &[*mut u8], count: usize, rest: Rest) {
    // SAFETY: the caller's promise.
    unsafe { fold_half_plain::<H, R, true>(inputs, outputs, count, rest) }
}

#[inline(always)]
pub(super) unsafe fn fold_half_plain<H: Half, R: Rule<f32>, const AVX2: bool>(
    inputs: &[*const u8],
    outputs: &[*mut u8],
    count: usize,
    rest: Rest,
) {
    let mut result = [f32::ZERO; HALF_BLOCK];
    let mut values = [f32::ZERO; HALF_BLOCK];
    let mut narrow = [0u16; HALF_BLOCK];
    let order = Order::new(count, 2, HALF_BLOCK, inputs.len());
    // The last block may be shorter, or empty.
    for index in 0..=order.blocks() {
        let start = order.start(index);
        let length = HALF_BLOCK.min(count - start);
        for (index, input) in inputs.iter().enumerate() {
            let mut done = 0;
            // SAFETY: `start + length <= count` elements are readable, and `values` holds `length`.
            unsafe {
                let input = input.cast::<u16>().add(start);
                #[cfg(target_arch = "x86_64")]
                if AVX2 {
                    done = H::widen_front(input, values.as_mut_ptr(), length);
                }
                for (at, value) in values[..length].iter_mut().enumerate().skip(done) {
                    *value = H::widen(input.add(at).read_unaligned());
                }
            }
            if index == 0 {
                for (result, value) in result[..length].iter_mut().zip(&values) {
                    *result = R::enter(*value, rest.factor);
                }
            } else {
                for (result, value) in result[..length].iter_mut().zip(&values) {
                    *result = R::combine(*result, R::enter(*value, rest.factor));
                }
            }
        }
        for value in &mut result[..length] {
            *value = R::leave(*value, rest.ranks);
        }
        let mut done = 0;
        #[cfg(target_arch = "x86_64")]
        if AVX2 {
            // SAFETY: both arrays hold `length` elements.
            done = unsafe { H::narrow_front(result.as_ptr(), narrow.as_mut_ptr(), length) };
        }
        for (narrow, value) in narrow[..length].iter_mut().zip(&result).skip(done) {
            *narrow = H::narrow(*value);
        }
        for output in outputs {
            // SAFETY: the output is writable for `count` elements and is not on this stack frame.
            unsafe {
                let to = output.cast::<u16>().add(start).cast();
                ptr::copy_nonoverlapping(narrow.as_ptr().cast::<u8>(), to, 2 * length);
            }
        }
    }
}
