//! Copies of a size for which the order of memory matters.

use std::ptr;

use super::has_avx2;
use super::order::Order;

/// Bytes of a block: two cache lines.
const BLOCK: usize = 128;
/// From here on the order is worth a loop of its own.
const LEAST: usize = 16 << 10;
/// Results of so many bytes are not in the private cache when they are next used: not even when they were.
const STREAMED: usize = 4 << 20;
/// So many cores wait for their own memory more than for each other's.
const FEW_CORES: usize = 2;

/// How to write a result that has so many bytes in all, where so many cores may do so at once.
pub(crate) fn copy_of(result_bytes: usize, cores: usize) -> unsafe fn(*const u8, *mut u8, usize) {
    if result_bytes >= STREAMED && cores > FEW_CORES { stream } else { copy }
}

/// Copies unless both are the same memory.
///
/// # Safety
/// `bytes` are readable at `from` and writable at `to`; the two are equal or do not overlap.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    if bytes == 0 || ptr::eq(from, to) {
        return;
    }
    // SAFETY (of both): the caller's promise; the processor has what it is asked for.
    #[cfg(target_arch = "x86_64")]
    if bytes >= LEAST && has_avx2() {
        // SAFETY: as above.
        return unsafe { copy_avx2(from, to, bytes) };
    }
    // SAFETY: as above.
    unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn copy_avx2(from: *const u8, to: *mut u8, bytes: usize) {
    let order = Order::new(bytes, 1, BLOCK, 1);
    for index in 0..order.blocks() {
        let start = order.start(index);
        // SAFETY: a block from `start` lies below `bytes`, the caller's promise covers it.
        unsafe {
            let block = from.add(start).cast::<[u8; BLOCK]>().read_unaligned();
            to.add(start).cast::<[u8; BLOCK]>().write_unaligned(block);
        }
    }
    let copied = order.blocks() * BLOCK;
    // SAFETY: what is left, less than a block.
    unsafe { ptr::copy_nonoverlapping(from.add(copied), to.add(copied), bytes - copied) };
}

/// As [`copy`], past the caches: memory that is written whole is not read before.
///
/// # Safety
/// As for [`copy`].
unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    if bytes >= LEAST && !ptr::eq(from, to) && has_avx2() {
        // SAFETY: the caller's promise; the processor has what it is asked for.
        return unsafe { stream_avx2(from, to, bytes) };
    }
    // SAFETY: the caller's promise.
    unsafe { copy(from, to, bytes) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn stream_avx2(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{_mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};
    const VECTOR: usize = 32;
    // Whole lines are written, so that nothing of them need be fetched.
    let head = to.align_offset(64).min(bytes);
    let order = Order::new(bytes - head, 1, BLOCK, 1);
    // SAFETY: head, blocks and tail lie below `bytes`, the caller's promise covers them; vectors of a block are aligned at
    // `to`, since the head ends on a cache line and blocks are multiples of one.
    unsafe {
        ptr::copy_nonoverlapping(from, to, head);
        for index in 0..order.blocks() {
            let start = head + order.start(index);
            let (from, to) = (from.add(start), to.add(start));
            let vectors: [_; BLOCK / VECTOR] =
                [0, 1, 2, 3].map(|vector| _mm256_loadu_si256(from.add(vector * VECTOR).cast()));
            for (vector, value) in vectors.into_iter().enumerate() {
                _mm256_stream_si256(to.add(vector * VECTOR).cast(), value);
            }
        }
        let copied = head + order.blocks() * BLOCK;
        ptr::copy_nonoverlapping(from.add(copied), to.add(copied), bytes - copied);
        // Such stores keep no order with the counter that says they are done.
        _mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_exact_at_every_length_and_alignment() {
        let from: Vec<u8> = (0..70_000u32).map(|number| (number * 7 + number / 256) as u8).collect();
        for bytes in [0, 1, 127, 4096, LEAST - 1, LEAST, LEAST + 129, 65_536, 69_000] {
            for skip in [0, 1, 33] {
                for copy in [copy_of(0, 16), copy_of(STREAMED, 16)] {
                    let mut to = vec![0xee; bytes + 64];
                    // SAFETY: both vectors are longer than what is copied, and distinct.
                    unsafe { copy(from.as_ptr().add(skip), to.as_mut_ptr().add(skip), bytes) };
                    assert_eq!(to[skip..skip + bytes], from[skip..skip + bytes]);
                    assert!(to[..skip].iter().chain(&to[skip + bytes..]).all(|byte| *byte == 0xee));
                }
            }
        }
    }
}
