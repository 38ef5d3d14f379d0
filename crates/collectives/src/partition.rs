//! How a buffer is cut: into steps that fit a slot of the arena, and a step into the segments that ranks reduce.
//!
//! Pure data. All of it is a function of what the ranks agree on (world size, length, element size, slot size), so every
//! rank cuts alike without a word.
//!
//! The order of summation is fixed: element by element in the order of ranks, wherever the cuts fall. Cuts and thresholds
//! may therefore be tuned without changing a bit of any result.

use std::ops::Range;

/// A segment starts on a cache line, so that two ranks never write to the same one.
const LINE_BYTES: usize = 64;

/// Channels unless somebody asks for more.
const DEFAULT_CHANNELS: usize = 4;
/// The most that a rank has for collectives between hosts, and how many connections they may take together.
const MAX_NETWORK_CHANNELS: usize = 8;
const MAX_NETWORK_CONNECTIONS: usize = 64;

/// A part of a buffer, cut into steps. Never empty: an operation on nothing has one step that moves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Elements of the whole part.
    count: usize,
    /// Elements of a full step.
    step: usize,
}

impl Cut {
    /// Cuts `count` elements of `element` bytes into steps of at most `capacity` bytes.
    pub(crate) fn new(count: usize, element: usize, capacity: usize) -> Cut {
        Cut { count, step: (capacity / element).max(1) }
    }

    pub(crate) fn steps(&self) -> usize {
        self.count.div_ceil(self.step).max(1)
    }

    /// The elements of a step; empty after the last.
    pub(crate) fn range(&self, step: usize) -> Range<usize> {
        let start = step.saturating_mul(self.step).min(self.count);
        start..start.saturating_add(self.step).min(self.count)
    }
}

/// A buffer that ranks reduce by segments: steps as long as each other but for the last, and in each a segment for every
/// rank, at the same place of every step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segments {
    pub(crate) cut: Cut,
    /// Elements of a full segment: whole cache lines.
    length: usize,
}

impl Segments {
    /// For `count` elements of `element` bytes, over steps of at most `capacity` bytes.
    pub(crate) fn new(count: usize, element: usize, capacity: usize, world: usize) -> Segments {
        let line = (LINE_BYTES / element).max(1);
        let longest = (capacity / element / world / line).max(1) * line;
        let steps = count.div_ceil(longest * world).max(1);
        let length = count.div_ceil(steps).div_ceil(world).next_multiple_of(line).clamp(line, longest);
        Segments { cut: Cut { count, step: length * world }, length }
    }

    /// The elements that `rank` reduces, within the step.
    pub(crate) fn of(&self, step: usize, rank: usize) -> Range<usize> {
        let count = self.cut.range(step).len();
        (self.length * rank).min(count)..(self.length * (rank + 1)).min(count)
    }
}

/// The elements that `rank` takes out of `count`.
pub(crate) fn segment(count: usize, element: usize, world: usize, rank: usize) -> Range<usize> {
    let line = (LINE_BYTES / element).max(1);
    let length = count.div_ceil(world).next_multiple_of(line);
    (length * rank).min(count)..(length * (rank + 1)).min(count)
}

/// The bytes that one of several channels takes of a buffer.
pub(crate) fn share(bytes: usize, element: usize, channels: usize, channel: usize) -> Range<usize> {
    let range = segment(bytes / element, element, channels, channel);
    range.start * element..range.end * element
}

/// How many threads of each of so many ranks may work on one operation: as many as each has cores.
pub(crate) fn channels(ranks: usize, cores: usize) -> usize {
    (cores / ranks).clamp(1, DEFAULT_CHANNELS)
}

/// The same for threads that also encrypt.
pub(crate) fn encrypted_channels(ranks: usize, cores: usize) -> usize {
    (cores / ranks).clamp(1, MAX_NETWORK_CHANNELS)
}

/// How many channels ranks have for collectives between hosts, and what each must have to move to be worth waking. Also what a
/// rank offers: then all do as the most modest of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NetworkChannels {
    count: u8,
    least_bytes: u32,
}

impl NetworkChannels {
    /// One channel for everything.
    pub(crate) const ONE: NetworkChannels = NetworkChannels { count: 1, least_bytes: 0 };

    pub(crate) fn new(count: usize, least_bytes: usize) -> NetworkChannels {
        let least_bytes = u32::try_from(least_bytes).unwrap_or(u32::MAX);
        match count.clamp(1, MAX_NETWORK_CHANNELS) {
            1 => NetworkChannels::ONE,
            count => NetworkChannels { count: count as u8, least_bytes },
        }
    }

    /// What ranks have that offer these, where each is connected with so many others: many connections are enough to fill a
    /// network, and a process may not open any number.
    pub(crate) fn agreed(offers: impl Iterator<Item = NetworkChannels>, peers: usize) -> NetworkChannels {
        let most = NetworkChannels::new(MAX_NETWORK_CONNECTIONS / peers.max(1), 0);
        offers.fold(most, |one, other| {
            let least_bytes = one.least_bytes.max(other.least_bytes);
            NetworkChannels::new(one.count().min(other.count()), least_bytes as usize)
        })
    }

    pub(crate) fn count(self) -> usize {
        usize::from(self.count)
    }

    pub(crate) fn numbers(self) -> Range<u8> {
        0..self.count
    }

    pub(crate) fn least_bytes(self) -> u32 {
        self.least_bytes
    }

    /// How many of them take part in moving so many bytes.
    pub(crate) fn worth(self, bytes: usize) -> usize {
        (bytes / (self.least_bytes as usize).max(1)).clamp(1, self.count())
    }
}

/// How much of a slot a step uses: what stays in the private caches until the others have read it, or four times as much
/// when ranks outnumber cores. Those wait for a core at every synchronisation, so there should be few.
pub(crate) fn step_bytes(slot_bytes: usize, world: usize, cores: usize) -> usize {
    if world > cores { slot_bytes / 2 } else { slot_bytes / 8 }
}

/// Whether the result of a segment stays in the slot of who reduced it. Few ranks better get it back in the slots of their
/// own, where it costs no trip of its own from core to core; but whoever reduces writes it once for each of them.
pub(crate) fn results_stay(world: usize) -> bool {
    world >= 8
}

/// Up to how many bytes one synchronisation with everybody reducing everything beats two with a segment each. When ranks outnumber
/// cores a synchronisation costs as much as reducing many kilobytes, of which each rank reads those of all.
pub(crate) fn small_bytes(world: usize, cores: usize) -> usize {
    if world > cores { (32 << 10).min((256 << 10) / world) } else { 8 << 10 }
}

/// Bytes of a slot that belong to one of `world` destinations: whole cache lines.
pub(crate) fn compartment(slot_bytes: usize, world: usize) -> usize {
    let share = slot_bytes / world;
    share - share % LINE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_cover_every_element_once() {
        for count in [0, 1, 2, 63, 64, 65, 1000] {
            for element in [1, 2, 4, 8, 16] {
                for capacity in [16, 64, 100, 4096] {
                    let cut = Cut::new(count, element, capacity);
                    let mut next = 0;
                    for step in 0..cut.steps() {
                        let range = cut.range(step);
                        assert_eq!(range.start, next);
                        assert!(range.len() * element <= capacity);
                        next = range.end;
                    }
                    assert_eq!(next, count);
                    assert!(cut.range(cut.steps()).is_empty());
                    assert!(cut.steps() >= 1);
                }
            }
        }
    }

    #[test]
    fn segments_of_all_steps_cover_every_element_once_and_fit_the_slot() {
        for count in [0, 1, 15, 16, 17, 100, 1000, 65536, 65537] {
            for element in [1, 2, 4, 8, 16] {
                for (world, capacity) in (1..10).flat_map(|world| [1024, 4096, 5000].map(|capacity| (world, capacity)))
                {
                    let segments = Segments::new(count, element, capacity, world);
                    let mut next = 0;
                    for step in 0..segments.cut.steps() {
                        let range = segments.cut.range(step);
                        assert!(range.len() * element <= capacity);
                        for rank in 0..world {
                            let segment = segments.of(step, rank);
                            assert_eq!(range.start + segment.start, next, "{count} × {element} over {world}");
                            let start = rank * segments.length;
                            assert!(segment.is_empty() || segment.start == start, "the same in every step");
                            assert!((start * element).is_multiple_of(LINE_BYTES));
                            next = range.start + segment.end;
                        }
                    }
                    assert_eq!(next, count);
                }
            }
        }
    }

    #[test]
    fn segments_cover_every_element_once_and_start_on_cache_lines() {
        for count in [0, 1, 15, 16, 17, 100, 1000, 65536] {
            for element in [1, 2, 4, 8, 16] {
                for world in 1..10 {
                    let mut next = 0;
                    for rank in 0..world {
                        let range = segment(count, element, world, rank);
                        assert_eq!(range.start, next, "{count} × {element} over {world}");
                        assert!(range.is_empty() || (range.start * element).is_multiple_of(LINE_BYTES));
                        next = range.end;
                    }
                    assert_eq!(next, count);
                }
            }
        }
    }

    #[test]
    fn ranks_without_a_core_each_synchronise_less_often() {
        assert_eq!((step_bytes(1 << 20, 2, 2), small_bytes(2, 2)), (128 << 10, 8 << 10));
        assert_eq!((step_bytes(1 << 20, 4, 2), small_bytes(4, 2)), (512 << 10, 32 << 10));
        assert_eq!(small_bytes(64, 2), 4 << 10);
    }

    #[test]
    fn channels_have_a_core_each() {
        let found = [(2, 2), (2, 7), (2, 16), (8, 16), (16, 8), (1, 64)].map(|(ranks, cores)| channels(ranks, cores));
        assert_eq!(found, [1, 3, 4, 2, 1, 4]);
        let found = [(2, 2), (2, 16), (8, 16), (1, 64)].map(|(ranks, cores)| encrypted_channels(ranks, cores));
        assert_eq!(found, [1, 8, 2, 8]);
    }

    #[test]
    fn ranks_have_as_many_network_channels_as_the_most_modest_offers() {
        let agreed = |offers: &[(usize, usize)], peers| {
            NetworkChannels::agreed(offers.iter().map(|(count, least)| NetworkChannels::new(*count, *least)), peers)
        };
        let found = agreed(&[(4, 10), (3, 30), (8, 20)], 1);
        assert_eq!((found.count(), found.least_bytes()), (3, 30));
        assert_eq!([0, 29, 59, 60, 89, 90, 1000].map(|bytes| found.worth(bytes)), [1, 1, 1, 2, 2, 3, 3]);
        assert_eq!(agreed(&[(4, 10), (1, 10)], 1), NetworkChannels::ONE);
        // No more than so many connections for each rank.
        assert_eq!([1, 16, 21, 32, 64, 300].map(|peers| agreed(&[(4, 1), (4, 1)], peers).count()), [4, 4, 3, 2, 1, 1]);
        assert_eq!(NetworkChannels::new(0, 5), NetworkChannels::ONE);
        assert_eq!(NetworkChannels::new(usize::MAX, usize::MAX).count(), MAX_NETWORK_CHANNELS);
    }

    #[test]
    fn no_channel_has_a_larger_share_than_the_first() {
        for largest in 0..2000 {
            let first = share(largest, 4, 3, 0).len();
            assert!((0..=largest).all(|bytes| (0..3).all(|channel| share(bytes, 4, 3, channel).len() <= first)));
        }
    }

    #[test]
    fn compartments_fit() {
        for world in 1..200 {
            assert!(compartment(1 << 18, world) * world <= 1 << 18);
            assert!(compartment(1 << 18, world) >= LINE_BYTES);
        }
    }
}
