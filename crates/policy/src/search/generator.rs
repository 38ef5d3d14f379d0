//! Random numbers, bit for bit those of numpy's `RandomState`, so that a seed means the same search as in Determined.
//!
//! A snapshot is the seed and how many words were drawn: two numbers instead of 624.

use serde::{Deserialize, Serialize};

/// Words of state.
const WORDS: usize = 624;
/// How far apart the words are that are mixed.
const APART: usize = 397;
/// More draws than any search makes; a snapshot that says more is broken.
const MOST_DRAWN: u64 = 1 << 40;

/// The Mersenne Twister, MT19937, seeded with 32 bits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Snapshot", into = "Snapshot")]
pub struct Generator {
    seed: u32,
    drawn: u64,
    words: Box<[u32; WORDS]>,
    next: usize,
}

/// What is kept of a generator.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Snapshot {
    seed: u32,
    drawn: u64,
}

impl From<Generator> for Snapshot {
    fn from(generator: Generator) -> Snapshot {
        Snapshot { seed: generator.seed, drawn: generator.drawn }
    }
}

impl TryFrom<Snapshot> for Generator {
    type Error = String;

    fn try_from(snapshot: Snapshot) -> Result<Generator, String> {
        if snapshot.drawn > MOST_DRAWN {
            return Err(format!("a search cannot have drawn {} random numbers", snapshot.drawn));
        }
        let mut generator = Generator::new(snapshot.seed);
        // The last full set of words is skipped as a whole; what was drawn of the next one lies in it already.
        for _ in 0..snapshot.drawn.div_ceil(WORDS as u64) {
            generator.twist();
        }
        generator.drawn = snapshot.drawn;
        generator.next = match (snapshot.drawn % WORDS as u64) as usize {
            0 => WORDS,
            next => next,
        };
        Ok(generator)
    }
}

impl Generator {
    /// The generator of this seed.
    pub fn new(seed: u32) -> Generator {
        let mut words = Box::new([0u32; WORDS]);
        words[0] = seed;
        for index in 1..WORDS {
            let before = words[index - 1];
            words[index] = 1_812_433_253u32.wrapping_mul(before ^ (before >> 30)).wrapping_add(index as u32);
        }
        Generator { seed, drawn: 0, words, next: WORDS }
    }

    /// The next 32 random bits.
    pub fn bits(&mut self) -> u32 {
        if self.next == WORDS {
            self.twist();
        }
        let mut word = self.words[self.next];
        self.next += 1;
        self.drawn += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9D2C_5680;
        word ^= (word << 15) & 0xEFC6_0000;
        word ^ (word >> 18)
    }

    fn twist(&mut self) {
        for index in 0..WORDS {
            let joined = (self.words[index] & 0x8000_0000) | (self.words[(index + 1) % WORDS] & 0x7FFF_FFFF);
            let odd = if joined & 1 == 1 { 0x9908_B0DF } else { 0 };
            self.words[index] = self.words[(index + APART) % WORDS] ^ (joined >> 1) ^ odd;
        }
        self.next = 0;
    }

    /// A number from 0 to `largest`, all equally likely. Draws nothing where there is nothing to choose.
    pub fn up_to(&mut self, largest: u64) -> u64 {
        if largest == 0 {
            return 0;
        }
        let mask = u64::MAX >> largest.leading_zeros();
        loop {
            let bits = if largest <= u64::from(u32::MAX) {
                u64::from(self.bits())
            } else {
                (u64::from(self.bits()) << 32) | u64::from(self.bits())
            };
            if bits & mask <= largest {
                return bits & mask;
            }
        }
    }

    /// A number from 0 up to, and without, 1.
    pub fn unit(&mut self) -> f64 {
        let (high, low) = (self.bits() >> 5, self.bits() >> 6);
        (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0
    }

    /// A random UUID.
    pub fn uuid(&mut self) -> String {
        let mut bytes = [0u8; 16];
        for four in bytes.chunks_exact_mut(4) {
            four.copy_from_slice(&self.bits().to_le_bytes());
        }
        bytes[6] = (bytes[6] & 0x0F) | 0x40;
        bytes[8] = (bytes[8] & 0x3F) | 0x80;
        let mut text = String::with_capacity(36);
        for (index, byte) in bytes.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            for digit in [byte >> 4, byte & 15] {
                text.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_numpys() {
        let mut generator = Generator::new(42);
        let drawn: Vec<u64> = (0..10).map(|_| generator.up_to(9)).collect();
        assert_eq!(drawn, [6, 3, 7, 4, 6, 9, 2, 6, 7, 4]);
    }

    #[test]
    fn a_generator_goes_on_where_it_was() {
        let mut generator = Generator::new(3);
        for drawn in 0..2000u32 {
            let snapshot = serde_json::to_string(&generator).unwrap();
            let mut restored: Generator = serde_json::from_str(&snapshot).unwrap();
            assert_eq!(restored.clone().bits(), generator.clone().bits(), "after {drawn}");
            restored.bits();
            generator.bits();
            assert_eq!(restored.bits(), generator.clone().bits());
        }
        assert!(serde_json::from_str::<Generator>(r#"{"seed": 1, "drawn": 99999999999999}"#).is_err());
    }

    #[test]
    fn wide_ranges_are_drawn_from_two_words() {
        let mut generator = Generator::new(1);
        let drawn: Vec<u64> = (0..100).map(|_| generator.up_to(1 << 40)).collect();
        assert!(drawn.iter().all(|number| *number <= 1 << 40) && drawn.iter().any(|number| *number > 1 << 32));
    }
}
