//! Development only: seeded randomness for simulations, and (in `tests`) house rules as tests of all source files.

mod random;
mod sources;

pub use random::{Random, seeds};
pub use sources::{Source, root, sources};
