//! Several threads for one operation on much memory, where a host has cores to spare.
//!
//! However a core asks for lines that another core has written, it gets a few gigabytes of them a second; two cores get
//! twice as much. A *lane* is one thread of every rank, with counters and slots of its own (see [`crate::arena`]). It takes
//! its share of every buffer through them, the same share on every rank, as if that was an operation by itself. The thread
//! that has the operation is the first lane; the others are made when they are needed first, and sleep in between.
//!
//! No bit of a result depends on the number of lanes: see [`crate::plan`].

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::{Engine, Progress, Stop, Watch, Work};
use crate::Error;

/// What a lane is asked to do, with its own place in the arena.
type Job = Box<dyn FnOnce(&mut Engine) -> Result<(), Error> + Send>;

/// The lanes of a rank beside the first.
pub(super) struct Lanes {
    /// How many all ranks have, with the first.
    pub(super) count: usize,
    /// What each must have to move to be worth waking.
    pub(super) least_bytes: usize,
    threads: Vec<Lane>,
}

struct Lane {
    jobs: Sender<Job>,
    answers: Receiver<Answer>,
}

struct Answer {
    result: Result<(), Error>,
    touched: bool,
}

/// Jobs under way: their memory is lent until all have ended.
struct UnderWay<'a> {
    lanes: &'a [Lane],
    touched: bool,
}

impl Lanes {
    /// Only the thread that has the operation.
    pub(super) fn first() -> Lanes {
        Lanes { count: 1, least_bytes: 0, threads: Vec::new() }
    }

    /// How many are worth waking for an operation that moves so many bytes.
    pub(super) fn worth(&self, bytes: usize) -> usize {
        (bytes / self.least_bytes.max(1)).clamp(1, self.count)
    }
}

impl Lane {
    /// Its thread ends when this is dropped, which a forked child may do as well: nobody waits for it.
    fn start(mut engine: Engine) -> Result<Lane, Error> {
        let (jobs, wanted) = channel::<Job>();
        let (ended, answers) = channel();
        let work = move || {
            for job in wanted {
                let result = job(&mut engine);
                if ended.send(Answer { result, touched: engine.touched }).is_err() {
                    return;
                }
            }
        };
        let named = thread::Builder::new().name("instep-lane".to_owned());
        named.spawn(work).map_err(|error| Error::system("start a thread", error))?;
        Ok(Lane { jobs, answers })
    }
}

impl UnderWay<'_> {
    /// Waits for all; gives the first error.
    fn end(&mut self) -> Result<(), Error> {
        let mut result = Ok(());
        for lane in std::mem::take(&mut self.lanes) {
            let answer = lane.answers.recv().expect("a lane answers every job");
            self.touched |= answer.touched;
            result = result.and(answer.result);
        }
        result
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl Engine {
    /// Has each of so many lanes do its share, the first one in this thread.
    pub(super) fn in_lanes<S: Send + 'static>(
        &mut self,
        lanes: usize,
        watch: &Watch,
        share: impl Fn(usize) -> S,
        as_work: fn(&S) -> Work<'_>,
        own: impl FnOnce(&mut Engine, &S) -> Progress,
    ) -> Progress {
        let job = |lane: usize| -> Job {
            let (share, whole, left) = (share(lane), watch.whole(self.arena.world()), watch.left());
            Box::new(move |engine| engine.run_part(&as_work(&share), &whole, left))
        };
        let jobs: Vec<Job> = (1..lanes).map(job).collect();
        while self.lanes.threads.len() < jobs.len() {
            let number = self.lanes.threads.len() + 1;
            let lane = Lane::start(self.sibling(number)).map_err(Stop::Failed)?;
            self.lanes.threads.push(lane);
        }
        let threads = std::mem::take(&mut self.lanes.threads);
        let mut under_way = UnderWay { lanes: &threads[..jobs.len()], touched: false };
        for (lane, job) in threads.iter().zip(jobs) {
            lane.jobs.send(job).expect("a lane takes jobs until it is dropped");
        }
        let own = own(self, &share(0));
        let others = under_way.end();
        self.touched |= under_way.touched;
        drop(under_way);
        self.lanes.threads = threads;
        own.and(others.map_err(Stop::Failed))
    }
}
