//! In an elastic job every launcher may have to lead it: how the others are asked who leads, and who leads next.
//!
//! The decisions are in `policy::election`; here are the threads and sockets that carry them out.

pub(crate) mod probe;
pub(crate) mod query;
pub(crate) mod search;
pub mod shared;
