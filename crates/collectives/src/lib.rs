//! Moves and reduces tensors between ranks: through shared memory in a host, over TCP between hosts.
//!
//! | module | what it is for |
//! |---|---|
//! | [`Group`] | the ranks that work together: bind, connect, submit, abort, reconfigure |
//! | [`Operation`] | what a group can do, on buffers given as [`Source`] and [`Target`] |
//! | [`DataType`], [`Reduction`] | what is in the buffers and how it becomes one |
//! | [`Address`] | where a rank can be met; exchanging them is the caller's job |
//! | [`Error`] | what can go wrong, with the ranks and calls by name |
//! | `plan` | how buffers are cut, as data |
//! | `route` | how bytes travel between hosts, as data |
//! | `kernel` | the loops that reduce |
//! | `arena` | the shared memory: layout, hand-over, waiting, who is alive |
//! | `engine` | one operation after the other on an arena |
//! | `streams` | the same over TCP, where ranks do not share memory |
//! | `mixed` | both: inside every host first, then between hosts |
//! | `mail` | send and receive between two ranks |
//! | [`DeviceGroup`] | the same on memory of a GPU that the ranks share |
//!
//! Promises:
//!
//! 1. The same bits on every rank and from run to run. The order of summation is that of the ranks; where some hosts have
//!    several, that of the ranks in each host and then that of the hosts.
//! 2. Every wait has a deadline, and notices that a rank it needs is gone: within 100 ms in a host; at once when its host
//!    says so, within 1 s when that says nothing more. A process that is stopped is not gone: that is what deadlines are for.
//! 3. Ranks that call different things get an error that names both, in every collective: none returns before all ranks
//!    have entered it.
//! 4. Nothing outlives the processes: the arena is an anonymous file, the socket's name is abstract.
//!
//! Two ranks, here as threads; as processes they exchange the bytes of their addresses through a store:
//!
//! ```
//! use std::time::Duration;
//! use instep_collectives::{Group, Options, Rank, Reduction};
//!
//! let places = [Group::bind(Options::default())?, Group::bind(Options::default())?];
//! let addresses: Vec<_> = places.iter().map(|place| place.address().clone()).collect();
//! std::thread::scope(|scope| {
//!     for (rank, place) in places.into_iter().enumerate() {
//!         let addresses = &addresses;
//!         scope.spawn(move || {
//!             let group = place.connect(Rank(rank), addresses, 0, Duration::from_secs(10)).unwrap();
//!             let mut gradient = [1.0f32, 2.0, rank as f32];
//!             group.all_reduce(&mut gradient, Reduction::Sum).unwrap();
//!             assert_eq!(gradient, [2.0, 4.0, 1.0]);
//!         });
//!     }
//! });
//! # Ok::<(), instep_collectives::Error>(())
//! ```
//!
//! Not here: ranks with different GPUs; encryption, so the network must be trusted. Linux 5.3 or newer.

mod address;
mod arena;
mod bound;
mod call;
mod device;
mod diary;
mod dtype;
mod engine;
mod error;
mod fate;
mod group;
mod half;
mod kernel;
mod mail;
mod mixed;
mod operation;
mod plan;
mod queue;
mod route;
mod socket;
mod streams;
mod ticket;
mod transport;

/// Everything that reads bytes from outside, for the fuzzers.
#[doc(hidden)]
pub mod untrusted;

use std::fmt;

pub use address::Address;
pub use bound::{Bound, Options, Transport};
pub use call::{Call, Kind};
pub use device::{DeviceGroup, DeviceTicket};
pub use dtype::{DataType, Element, Reduction};
pub use error::{Error, Noticed};
pub use group::{Group, Reconfigured};
pub use operation::{Operation, Source, Target};
pub use streams::secret::Secret;
pub use ticket::{Output, Ticket};

/// A member's number in its group, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub usize);

impl fmt::Display for Rank {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}
