//! Where the supervisor sleeps: everything that can wake it, in one call of poll.

use std::io;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::leadership::Leadership;
use super::signals::Signals;
use crate::spares::Spares;
use crate::workers::group::WorkerGroup;

/// What woke the supervisor.
#[derive(Debug)]
pub(super) struct Ready {
    /// A signal that is not to be handled wants to end the launcher.
    pub(super) fatal_signal: bool,
    /// Indexes for [`crate::output::Output::readable`].
    pub(super) output: Vec<usize>,
    pub(super) spares: bool,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Poller {
    signals: Signals,
}

impl Poller {
    pub(super) fn new(signals: Signals) -> Poller {
        Poller { signals }
    }

    /// Waits for a signal; true if none came.
    pub(super) fn pause(&self, time: Duration) -> bool {
        !matches!(poll(&mut self.signals.sources(), timeout(time)), Ok(count) if count > 0)
    }

    /// Sleeps until something happens or `due`.
    pub(super) fn wait(
        &self,
        due: Instant,
        leadership: &Leadership,
        group: Option<&WorkerGroup>,
        spares: &Spares,
    ) -> io::Result<Ready> {
        let mut sources = Vec::from(self.signals.sources());
        sources.extend(leadership.sources());
        let exits = group.into_iter().flat_map(WorkerGroup::exit_sources);
        sources.extend(exits.map(|source| PollFd::new(source, PollFlags::POLLIN)));
        let output_from = sources.len();
        let mut indexes = Vec::new();
        for (index, source) in group.into_iter().flat_map(|group| group.output.sources()) {
            indexes.push(index);
            sources.push(PollFd::new(source, PollFlags::POLLIN));
        }
        let spares_from = sources.len();
        sources.extend(spares.sources());
        match poll(&mut sources, timeout(due.saturating_duration_since(Instant::now()))) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |source: &PollFd<'_>| source.any().unwrap_or(false);
        let output = indexes.into_iter().zip(&sources[output_from..spares_from]);
        Ok(Ready {
            fatal_signal: is_ready(&sources[1]),
            output: output.filter(|(_, source)| is_ready(source)).map(|(index, _)| index).collect(),
            spares: sources[spares_from..].iter().any(is_ready),
        })
    }

    /// The next signal for the workers.
    pub(super) fn next_signal(&mut self) -> io::Result<Option<Signal>> {
        self.signals.next()
    }

    /// Lets a signal that is to end the launcher do so. Returns only if there is none.
    pub(super) fn exit_on_signal(&self) -> io::Result<()> {
        self.signals.end()
    }
}

fn timeout(time: Duration) -> PollTimeout {
    // Rounded up: waking before the deadline would only mean to sleep again.
    let millis = time.as_micros().div_ceil(1000).min(60_000);
    PollTimeout::from(u16::try_from(millis).unwrap_or(u16::MAX))
}
