//! Moves and reduces tensors between ranks: through shared memory in a host, over TCP between hosts.
//!
//! | module | what it is for |
//! |---|---|
//! | [`Group`] | the ranks that work together: bind, connect, submit, abort, reconfigure |
//! | [`Operation`] | what a group can do, on buffers given as [`Source`] and [`Target`] |
//! | [`DataType`], [`Reduction`] | what is in the buffers and how it becomes one |
//! | [`Address`] | where a rank listens; exchanging them is the caller's job |
//! | [`Error`] | what can go wrong, with the ranks and calls by name |
//! | `partition` | how buffers are cut into steps, segments and shares, as data |
//! | `schedule` | what each rank sends, receives and reduces between hosts, as data |
//! | `kernel` | the loops that reduce |
//! | `transport` | what all transports do, and which one a group gets |
//! | `shm` | collectives through shared memory, among the ranks of a host |
//! | `tcp` | the same over TCP, where ranks do not share memory |
//! | `hierarchical` | both: inside every host first, then between hosts |
//! | `p2p` | send and receive between two ranks |
//! | `abort` | whether a group is aborted, and why |
//! | [`Standby`] | a rank that is to take another's place, before it is connected |
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
//! let bound = [Group::bind(Options::default())?, Group::bind(Options::default())?];
//! let addresses: Vec<_> = bound.iter().map(|bound| bound.address().clone()).collect();
//! std::thread::scope(|scope| {
//!     for (rank, bound) in bound.into_iter().enumerate() {
//!         let addresses = &addresses;
//!         scope.spawn(move || {
//!             let group = bound.connect(Rank(rank), addresses, 0, Duration::from_secs(10)).unwrap();
//!             let mut gradient = [1.0f32, 2.0, rank as f32];
//!             group.all_reduce(&mut gradient, Reduction::Sum).unwrap();
//!             assert_eq!(gradient, [2.0, 4.0, 1.0]);
//!         });
//!     }
//! });
//! # Ok::<(), instep_collectives::Error>(())
//! ```
//!
//! Not here: ranks with different GPUs. The network must be trusted, unless [`Options::encrypt`] is set. Linux 5.3 or newer.

mod abort;
mod address;
mod bootstrap;
mod call;
mod deadline;
mod device;
mod dtype;
mod error;
mod flight_recorder;
mod group;
mod half;
mod hierarchical;
mod kernel;
mod operation;
mod options;
mod p2p;
mod partition;
mod queue;
mod rank;
mod schedule;
mod shm;
mod socket;
mod standby;
mod sync;
mod tcp;
mod ticket;
mod transport;

/// Everything that reads bytes from outside, for the fuzzers.
#[doc(hidden)]
pub mod untrusted;

pub use address::Address;
pub use bootstrap::Bound;
pub use call::{Call, Kind};
pub use deadline::NewestGeneration;
pub use device::{DeviceGroup, DeviceTicket};
pub use dtype::{DataType, Element, Reduction, UnsupportedReduction};
pub use error::{Error, LossCause};
pub use group::{Group, Reconfigured};
pub use operation::{Operation, Source, Target};
pub use options::{Options, TransportChoice};
pub use rank::Rank;
pub use standby::Standby;
pub use tcp::secret::Secret;
pub use ticket::{Output, Ticket};
