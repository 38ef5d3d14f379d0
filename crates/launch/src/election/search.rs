//! A launcher's search for a coordinator, on a thread of its own: meanwhile the supervisor ends workers and shows
//! output.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use instep_policy::election::{Answer, Election, ElectionStep, HostPort};
use instep_policy::membership::Resumption;

use crate::background::BackgroundThread;
use crate::election::query::{self, Asker, QueryResult};
use crate::election::shared::SharedLeadership;

/// How a search ended.
#[derive(Debug)]
pub(crate) enum SearchOutcome {
    /// Another launcher leads there.
    Leader(HostPort),
    /// This launcher is to lead.
    Elected(Box<Resumption>),
    /// Time is up; what was seen last, for people.
    NotFound(String),
}

/// The search; dropping it stops and joins its thread.
#[derive(Debug)]
pub(crate) struct CoordinatorSearch {
    thread: BackgroundThread<SearchOutcome>,
    /// Closed by the thread at its end.
    ended: UnixStream,
}

impl CoordinatorSearch {
    /// Searches until `limit` has passed; `leadership` is where this launcher hears of others.
    pub(crate) fn start(
        election: Election,
        asker: Asker,
        limit: Duration,
        leadership: Option<Arc<SharedLeadership>>,
    ) -> io::Result<CoordinatorSearch> {
        let (ended, signal) = UnixStream::pair()?;
        ended.set_nonblocking(true)?;
        let thread = BackgroundThread::start("instep-search", move |stop| {
            let deadline = Instant::now() + limit;
            let outcome = search(election, &asker, leadership.as_deref(), |wait| {
                let goes_on = Instant::now() < deadline && !stop.is_set();
                if goes_on {
                    stop.wait(wait);
                }
                goes_on
            });
            // The supervisor also looks without being woken.
            let _ = (&signal).write_all(b".");
            outcome
        })?;
        Ok(CoordinatorSearch { thread, ended })
    }

    pub(crate) fn source(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// How the search ended, once.
    pub(crate) fn result(&mut self) -> Option<SearchOutcome> {
        let mut byte = [0u8; 1];
        // Anything but "nothing yet" is the end, also the end of a thread that panicked.
        if (&self.ended).read(&mut byte).is_err_and(|cause| cause.kind() == io::ErrorKind::WouldBlock) {
            return None;
        }
        let outcome = self.thread.join()?;
        Some(outcome.unwrap_or_else(|_| SearchOutcome::NotFound("the search ended".to_owned())))
    }
}

/// Asks the other launchers again and again; `pause` waits between two rounds of questions, or says that time is up.
fn search(
    mut election: Election,
    asker: &Asker,
    leadership: Option<&SharedLeadership>,
    pause: impl Fn(Duration) -> bool,
) -> SearchOutcome {
    loop {
        if let Some(hint) = leadership.and_then(SharedLeadership::take_leader_hint) {
            election.also_ask(hint);
        }
        let answers = query::query_all(election.targets(), asker, None);
        match election.decide(&answers) {
            ElectionStep::Join(leader) => return SearchOutcome::Leader(leader),
            ElectionStep::Lead(resumption) => return SearchOutcome::Elected(resumption),
            ElectionStep::Ask(wait) if pause(wait) => {}
            ElectionStep::Ask(_) => return SearchOutcome::NotFound(describe(&answers)),
        }
    }
}

/// What is known of the others, so that people see what this node could not know.
fn describe(answers: &[QueryResult]) -> String {
    let what = |(address, _, answer): &QueryResult| {
        let how = match answer {
            Answer::Ended => "has ended",
            Answer::Silent => "does not answer",
            Answer::Searching(_) => "has no coordinator either",
            Answer::Following(_) => "follows a coordinator that cannot be reached from here",
            Answer::Leading(_) => "leads, but does not know this node's last round",
        };
        format!("{}:{} {how}", address.host, address.port)
    };
    answers.iter().map(what).collect::<Vec<_>>().join("; ")
}
