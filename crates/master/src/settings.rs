//! The master's settings: one table of keys, gathered from defaults, a YAML file, the environment and the command line.
//!
//! Later sources win. Every value remembers where it came from, so that `instep master config show` can say so and an
//! error names the place to change. [`KEYS`] (module `keys`) is what can be said, [`Settings`] (`gather`) what was said, and
//! [`Options`](crate::server::Options) what it means (`options`).

mod gather;
mod keys;
mod options;
#[cfg(test)]
mod tests;

pub use self::gather::{Assignments, FILE_VARIABLE, Origin, Settings, SettingsError};
pub use self::keys::{KEYS, Key};
