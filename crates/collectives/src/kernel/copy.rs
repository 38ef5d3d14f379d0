//! Copies of a size for which the order of memory matters.

use std::ptr;

use super::has_avx2;
use super::order::Order;

/// Bytes of a block: two cache lines.
const BLOCK: usize = 128;
/// From here on the order is worth a loop of its own.
const LEAST: usize = 16 << 10;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_exact_at_every_length_and_alignment() {
        let from: Vec<u8> = (0..70_000u32).map(|number| (number * 7 + number / 256) as u8).collect();
        for bytes in [0, 1, 127, 4096, LEAST - 1, LEAST, LEAST + 129, 65_536, 69_000] {
            for skip in [0, 1, 33] {
                let mut to = vec![0xee; bytes + 64];
                // SAFETY: both vectors are longer than what is copied, and distinct.
                unsafe { copy(from.as_ptr().add(skip), to.as_mut_ptr().add(skip), bytes) };
                assert_eq!(to[skip..skip + bytes], from[skip..skip + bytes]);
                assert!(to[..skip].iter().chain(&to[skip + bytes..]).all(|byte| *byte == 0xee));
            }
        }
    }
}
