//! How bytes travel between hosts, as data: for every rank a list of what to send, receive and reduce, and in which order.
//!
//! Pure: a schedule is a function of the operation, its sizes and the number of members, so every member derives its part
//! without communication, and the parts fit. `tcp` executes schedules; the tests here do so in memory, with buffers of a
//! few bytes and a scheduler that is as mean as it can.
//!
//! Two members of the same schedule exchange *messages*, in the order in which they stand in both lists: the n-th send to a
//! member is its n-th receive from this one. Between different members, and beside the work on memory, only [`Step::after`]
//! gives an order; everything else overlaps.
//!
//! | operation | schedule | bytes that a member sends |
//! |---|---|---|
//! | all_reduce up to [`Thresholds::small`] | the whole input to all; everybody reduces all of it | (n − 1) · B |
//! | all_reduce | segment p to member p, which reduces it and sends the result to all | (B − s) + (n − 1) · s |
//! | reduce | the same; results to the root alone | (B − s) + s, the root B − s |
//! | reduce_scatter | part p to member p, which reduces it | (n − 1) · B |
//! | all_gather | the own part to all | (n − 1) · B |
//! | gather, scatter, all_to_all | straight to where it belongs | what it has for others |
//! | broadcast up to [`Thresholds::direct`] or between two | from the root to all | the root (n − 1) · B |
//! | broadcast | from member to member, piece by piece | B, the last 0 |
//! | barrier | nothing, to all | 0 |
//!
//! B is the size of a buffer or part, n the number of members, s the own segment, about B / n. That is the least that any
//! schedule can do for a member's link, and two messages one after the other are the least a large all_reduce can do; the price
//! is a connection between every two members. Members are hosts where a host has several ranks: [`crate::hierarchical`] reduces
//! inside them first.
//!
//! In every schedule each member first hears from all others, if only an empty message: calls that differ are found out, and
//! nobody returns before all have entered. (But for all_to_all in channels beside the first: see [`crate::tcp::channels`].)

mod builder;
mod cursor;
#[cfg(test)]
mod tests;
mod topology;

use std::ops::Range;

pub(crate) use builder::schedule;
pub(crate) use cursor::Cursor;
pub(crate) use topology::Topology;

/// What is to be done, as far as a schedule needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Collective {
    /// `count` elements of `element` bytes.
    AllReduce {
        count: usize,
        element: usize,
    },
    Reduce {
        count: usize,
        element: usize,
        root: usize,
    },
    ReduceScatter {
        count: usize,
        element: usize,
    },
    Broadcast {
        bytes: usize,
        root: usize,
    },
    AllGather {
        bytes: usize,
    },
    Gather {
        bytes: usize,
        root: usize,
    },
    Scatter {
        bytes: usize,
        root: usize,
    },
    /// Bytes for, and from, every member. Those that have nothing for each other exchange messages only if all do.
    AllToAll {
        sends: Vec<usize>,
        expects: Vec<usize>,
        with_all: bool,
    },
    Barrier,
}

/// Where schedules change and how finely they cut; the same on every member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thresholds {
    /// Up to so many bytes everybody reduces everything.
    pub(crate) small: usize,
    /// Up to so many bytes a broadcast comes straight from its root.
    pub(crate) direct: usize,
    /// The longest message, in bytes.
    pub(crate) message: usize,
    /// The most memory beside the buffers, in bytes; messages of reductions are shorter where many members share it.
    pub(crate) scratch: usize,
}

/// Memory of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Buffer {
    /// The input, or that part of it.
    Input(usize),
    /// The output, or that part of it.
    Output(usize),
    /// Beside the buffers.
    Scratch,
}

/// Some bytes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) buffer: Buffer,
    pub(crate) start: usize,
    pub(crate) bytes: usize,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Primitive {
    Send {
        to: usize,
        span: Span,
    },
    Receive {
        from: usize,
        span: Span,
    },
    /// Reduces the values of all members, in their order: `own` and those at `base + member × stride` of the scratch memory.
    Fold {
        base: usize,
        stride: usize,
        own: Span,
        into: Span,
    },
    Copy {
        from: Span,
        into: Span,
    },
}

/// One line of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) primitive: Primitive,
    /// Lines that must be finished before this one starts.
    pub(crate) after: Range<usize>,
}

/// What one member does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Schedule {
    pub(crate) steps: Vec<Step>,
    /// Bytes of memory that it needs beside the buffers.
    pub(crate) scratch: usize,
}
