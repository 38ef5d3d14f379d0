//! Development only: seeded randomness for simulations, and (in `tests/tidy.rs`) house rules as tests.

mod random;

pub use random::{Random, seeds};
