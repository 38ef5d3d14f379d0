//! A small seeded generator: the same seed gives the same simulation, on every machine and for ever.

use std::time::{SystemTime, UNIX_EPOCH};

/// SplitMix64: one word of state, good enough to shuffle events.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: usize) -> usize {
        assert!(limit > 0, "no number is below 0");
        (self.bits() % limit as u64) as usize
    }

    /// True once in `times` times.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of the items.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// The seeds of a simulation: the one in `SEED` alone if it is set (to replay a failure), else `fixed` that never
/// change, those `known` to have failed once, and `fresh` that nobody has seen before, or as many as `FRESH_SEEDS` says.
pub fn seeds(fixed: u64, fresh: u64, known: &[u64]) -> Vec<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number of seeds or a seed"));
    if let Some(seed) = number("SEED") {
        return vec![seed];
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let mut random = Random::new(now);
    let fresh = (0..number("FRESH_SEEDS").unwrap_or(fresh)).map(|_| random.bits());
    (0..fixed).chain(known.iter().copied()).chain(fresh).collect()
}
