//! The collectives as Python classes: memory comes as addresses, what goes wrong as exceptions.
//!
//! Nothing here knows torch. Callers give the address and the length of memory that they keep valid until the operation
//! has ended; `submit` and its kin also hold on to an object until then, so that a caller who forgets cannot crash.
//!
//! [`CollectiveGroup`] (module `group`) does an [`Operation`] (`operation`) at once, or queues it and gives a [`Ticket`]
//! (`ticket`) to wait for.

mod group;
mod operation;
mod ticket;

pub(crate) use self::group::CollectiveGroup;
pub(crate) use self::operation::{Operation, data_type, data_type_names, reduction, reduction_names};
pub(crate) use self::ticket::{Ticket, stop_callbacks};
