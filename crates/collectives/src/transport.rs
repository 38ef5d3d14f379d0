//! The engines behind one face: shared memory where all ranks have it, TCP where no two have it, both otherwise.

use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::fate::Fate;
use crate::operation::Operation;
use crate::ticket::Output;
use crate::{engine, mixed, streams};

/// What does a group's collectives.
pub(crate) enum Engine {
    Arena(Box<engine::Engine>),
    Streams(Box<streams::Engine>),
    Mixed(Box<mixed::Engine>),
}

impl Engine {
    pub(crate) fn fate(&self) -> Fate {
        match self {
            Engine::Arena(engine) => Fate::Arena(Arc::clone(engine.arena())),
            Engine::Streams(engine) => Fate::Streams(Arc::clone(engine.alarm())),
            Engine::Mixed(engine) => engine.fate(),
        }
    }

    /// Runs an operation whose buffers are valid until it returns. After an error the group is aborted, except for an
    /// operation that contradicts itself, of which nothing was sent.
    pub(crate) fn run(&mut self, operation: &Operation, timeout: Duration) -> Result<(), Error> {
        match self {
            Engine::Arena(engine) => engine.run(operation, timeout),
            Engine::Streams(engine) => engine.run(operation, timeout),
            Engine::Mixed(engine) => engine.run(operation, timeout),
        }
    }

    /// Lets the peers know that the group is aborted, where they do not see it.
    pub(crate) fn tell(&mut self) {
        match self {
            Engine::Arena(_) => {}
            Engine::Streams(engine) => engine.tell(),
            Engine::Mixed(engine) => engine.tell(),
        }
    }

    /// Operations completed since the group was connected.
    pub(crate) fn completed(&self) -> u64 {
        match self {
            Engine::Arena(engine) => engine.completed(),
            Engine::Streams(engine) => engine.completed(),
            Engine::Mixed(engine) => engine.completed(),
        }
    }

    /// What survivors of the generation before agree to have completed.
    pub(crate) fn agreed(&self) -> Option<u64> {
        match self {
            Engine::Arena(engine) => engine.agreed(),
            Engine::Streams(engine) => engine.agreed(),
            Engine::Mixed(engine) => engine.agreed(),
        }
    }

    /// What the last operation that failed did to its output.
    pub(crate) fn output(&self) -> Output {
        match self {
            Engine::Arena(engine) => engine.output(),
            Engine::Streams(engine) => engine.output(),
            Engine::Mixed(engine) => engine.output(),
        }
    }

    pub(crate) fn rank(&self) -> usize {
        match self {
            Engine::Arena(engine) => engine.rank(),
            Engine::Streams(engine) => engine.rank(),
            Engine::Mixed(engine) => engine.rank(),
        }
    }

    pub(crate) fn uses_single_copy(&self) -> bool {
        match self {
            Engine::Arena(engine) => engine.uses_single_copy(),
            Engine::Streams(_) | Engine::Mixed(_) => false,
        }
    }
}
