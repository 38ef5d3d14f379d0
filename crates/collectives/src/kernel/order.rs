//! In which order memory is walked.
//!
//! The processor fetches ahead within a page and starts anew at the next. Walking several pages side by side keeps more
//! fetches in flight than walking one: on the machine where this was tuned, a core read memory 1.6 times as fast.

/// What the processor fetches ahead within.
const PAGE_BYTES: usize = 4096;
/// Pages walked side by side.
const PAGES: usize = 4;

/// Calls `visit` with the start of every whole block of `block` elements among `count`, each once, several pages side by
/// side. Returns how many elements that were. `element` is the size of one; blocks divide a page.
#[inline(always)]
pub(super) fn by_pages(count: usize, element: usize, block: usize, mut visit: impl FnMut(usize)) -> usize {
    let page = PAGE_BYTES / element;
    let side_by_side = count - count % (PAGES * page);
    for first in (0..side_by_side).step_by(PAGES * page) {
        for within in (0..page).step_by(block) {
            for number in 0..PAGES {
                visit(first + number * page + within);
            }
        }
    }
    let whole = count - count % block;
    for start in (side_by_side..whole).step_by(block) {
        visit(start);
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_visited_once() {
        for (element, block) in [(1, 32), (2, 512), (4, 32), (8, 32), (1, 128)] {
            for count in [0, 1, block, 4096, 4 * 4096 - 1, 4 * 4096, 9 * 4096 + 3 * block + 5] {
                let mut starts = Vec::new();
                let whole = by_pages(count, element, block, |start| starts.push(start));
                starts.sort_unstable();
                assert_eq!(starts, (0..count / block).map(|number| number * block).collect::<Vec<_>>());
                assert_eq!(whole, count / block * block);
            }
        }
    }
}
