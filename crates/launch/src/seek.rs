//! A launcher's search for a coordinator, on a thread of its own: meanwhile the loop ends workers and shows output.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use instep_policy::membership::Resumption;
use instep_policy::succession::{Answer, Place, Search, Step};

use crate::contact::{self, Asked};
use crate::post::Post;

/// How a search ended.
#[derive(Debug)]
pub(crate) enum Found {
    /// Somebody leads there.
    Leader(Place),
    /// This launcher leads.
    Ourselves(Box<Resumption>),
    /// Time is up; what was seen last, for people.
    Nobody(String),
}

/// The search; dropping it stops and joins its thread.
#[derive(Debug)]
pub(crate) struct Seek {
    thread: Option<JoinHandle<Found>>,
    stop: Arc<AtomicBool>,
    /// Closed by the thread at its end.
    ended: UnixStream,
}

impl Seek {
    /// Looks until `limit` has passed; `post` is where this launcher hears of others.
    pub(crate) fn start(
        mut search: Search,
        run_id: String,
        limit: Duration,
        post: Option<Arc<Post>>,
    ) -> io::Result<Seek> {
        let (ended, signal) = UnixStream::pair()?;
        ended.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let sweep = move || {
            let deadline = Instant::now() + limit;
            let found = loop {
                if let Some(place) = post.as_ref().and_then(|post| post.rumour()) {
                    search.also_ask(place);
                }
                let answers = contact::ask_all(search.targets(), &run_id, None);
                match search.decide(&answers) {
                    Step::Join(place) => break Found::Leader(place),
                    Step::Lead(resumption) => break Found::Ourselves(resumption),
                    Step::Ask(_) if Instant::now() >= deadline || stopped.load(Ordering::Acquire) => {
                        break Found::Nobody(describe(&answers));
                    }
                    Step::Ask(wait) => std::thread::park_timeout(wait),
                }
            };
            // The loop also looks without being woken.
            let _ = (&signal).write_all(b".");
            found
        };
        let thread = std::thread::Builder::new().name("instep-seek".to_owned()).spawn(sweep)?;
        Ok(Seek { thread: Some(thread), stop, ended })
    }

    pub(crate) fn source(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// What was found, once.
    pub(crate) fn result(&mut self) -> Option<Found> {
        let mut byte = [0u8; 1];
        // Anything but "nothing yet" is the end, also the end of a thread that panicked.
        if (&self.ended).read(&mut byte).is_err_and(|cause| cause.kind() == io::ErrorKind::WouldBlock) {
            return None;
        }
        let found = self.thread.take()?.join();
        Some(found.unwrap_or_else(|_| Found::Nobody("the search ended".to_owned())))
    }
}

impl Drop for Seek {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic was reported by the thread itself.
            let _ = thread.join();
        }
    }
}

/// What is known of the others, so that people see what this node could not know.
fn describe(answers: &[Asked]) -> String {
    let what = |(place, _, answer): &Asked| {
        let how = match answer {
            Answer::Ended => "has ended",
            Answer::Silent => "does not answer",
            Answer::Searching(_) => "has no coordinator either",
            Answer::Following(_) => "follows a coordinator that cannot be reached from here",
            Answer::Leading(_) => "leads, but does not know this node's last round",
        };
        format!("{}:{} {how}", place.address, place.port)
    };
    answers.iter().map(what).collect::<Vec<_>>().join("; ")
}
