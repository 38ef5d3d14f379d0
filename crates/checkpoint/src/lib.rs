//! Writes and reads sharded checkpoints in a folder that all ranks share.
//!
//! ```text
//! ROOT/UUID/                        a checkpoint: exists as a whole or not at all
//! ROOT/UUID/metadata.json           the user's, merged from all ranks
//! ROOT/UUID/instep-manifest.json    names, sizes and blake3 hashes of all other files
//! ROOT/UUID/…                       the ranks' files
//! ROOT/.instep-UUID/rank-N/         what rank N has written so far
//! ROOT/.instep-UUID/joined/         what becomes ROOT/UUID
//! ```
//!
//! A save, in [`Folder`]'s words: every rank [`Folder::begin`]s and writes into the path it is given, then
//! [`Folder::seal`]s, which hashes and syncs its files; the lists are exchanged by the caller and [merged](merge()), which
//! refuses names that two ranks use for different things; every rank [`Folder::join`]s its files; one rank
//! [`Folder::commit`]s. [`Folder::open`] verifies and gives the path back; [`verify`] does so for a copy elsewhere.
//!
//! Invariants, cited by the tests:
//!
//! 1. A checkpoint appears by one rename, after its manifest and all files are synced. A crash at any other moment
//!    leaves only a hidden folder, which [`Folder::abandon`] removes.
//! 2. What [`Folder::open`] gives has exactly the content that was sealed; anything else is an error that names the file.
//! 3. No name leads out of the checkpoint: absolute ones, `..`, links and reserved names are refused ([`Name`]).
//!
//! The layout is Determined's, so that its client reads our checkpoints and we read its; those have no manifest and are
//! opened as unverified. This crate does not talk between ranks and does not know the master.

mod error;
mod folder;
mod manifest;
mod merge;
mod name;

pub use error::{Error, Result};
pub use folder::{Folder, Opened, verify};
pub use manifest::{Entry, MANIFEST, METADATA, Manifest};
pub use merge::{Merged, merge};
pub use name::{Name, NameError};
