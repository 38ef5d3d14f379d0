//! Looks for the nodes that a coordinator misses, twice a second, beside the server's thread.
//!
//! What the coordinator wishes to know is in the [`Post`]; what is found goes to it as a message on its own port.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use instep_policy::succession::Answer;

use crate::control::{self, Scouted, ToCoordinator};
use crate::election::query;
use crate::election::shared::Post;
use crate::rendezvous::endpoint::connect_to_self;

/// Shorter than the time that a coordinator at the endpoint waits before its first round.
const INTERVAL: Duration = Duration::from_millis(500);

/// The thread that looks; dropping it stops and joins the thread.
#[derive(Debug)]
pub(crate) struct Scout {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Scout {
    /// For the coordinator at this port of this machine.
    pub(crate) fn start(post: Arc<Post>, run_id: String, port: u16, host_token: u64) -> std::io::Result<Scout> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let look = move || {
            while !stopped.load(Ordering::Acquire) {
                if let Some(found) = look_once(&post, &run_id, port, host_token) {
                    // The server is ending if it cannot be told.
                    let _ = connect_to_self(port)
                        .and_then(|mut stream| stream.write_all(&control::encode(&ToCoordinator::Scouted(found))));
                }
                std::thread::park_timeout(INTERVAL);
            }
        };
        let thread = std::thread::Builder::new().name("instep-scout".to_owned()).spawn(look)?;
        Ok(Scout { stop, thread: Some(thread) })
    }
}

impl Drop for Scout {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic was reported by the thread itself.
            let _ = thread.join();
        }
    }
}

fn look_once(post: &Post, run_id: &str, port: u16, host_token: u64) -> Option<Scouted> {
    let errands = post.errands()?;
    let own = errands.claim.launcher;
    let mut found = Scouted { host_token, dead: Vec::new(), leading: Vec::new() };
    let mut leaders = Vec::new();
    for (place, expected, answer) in query::ask_all(errands.targets, run_id, Some((errands.claim, port))) {
        match (answer, expected) {
            (Answer::Ended, Some(launcher)) => found.dead.push(launcher),
            (Answer::Leading(claim), _) if claim.launcher != own => found.leading.push((place, claim)),
            (Answer::Following(place), _) => leaders.push((place, None)),
            _ => {}
        }
    }
    leaders.sort();
    leaders.dedup();
    if !leaders.is_empty() {
        for (place, _, answer) in query::ask_all(leaders, run_id, Some((errands.claim, port))) {
            if let Answer::Leading(claim) = answer
                && claim.launcher != own
            {
                found.leading.push((place, claim));
            }
        }
    }
    (!found.dead.is_empty() || !found.leading.is_empty()).then_some(found)
}
