//! One call at a time: whatever an engine is asked, in the order in which it was wanted.
//!
//! A list therefore shows all jobs whose submission was answered before. Cancellations that wait side by side become one
//! call, and a list that is due comes before what waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use instep_policy::engine::{JobId, Seen};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Gang, ResourceManager};

/// Between two lists, however often something seems to have changed.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// What an engine is asked.
#[derive(Clone, PartialEq)]
pub(crate) enum Call {
    Submit(Box<Gang>),
    Cancel(JobId),
    /// A list, sooner than it is due: an agent is gone.
    Look,
}

/// What it has answered.
pub(crate) enum Answer {
    Submitted(String, Result<JobId, String>),
    Listed(Result<Vec<Seen>, String>),
}

/// When lists are due.
pub(crate) struct Pace {
    /// Between two of them.
    pub interval: Duration,
    /// Whether they would tell anything.
    pub is_wanted: Arc<AtomicBool>,
}

/// Asks an engine until nobody wants anything any more; `tell` gives `false` if nobody listens.
pub(crate) async fn run<M, T, F>(engine: M, mut calls: mpsc::Receiver<Call>, pace: Pace, tell: T)
where
    M: ResourceManager,
    T: Fn(Answer) -> F,
    F: Future<Output = bool>,
{
    let mut waiting: VecDeque<Call> = VecDeque::new();
    let mut last: Option<Instant> = None;
    let mut due = Instant::now();
    loop {
        if waiting.is_empty() {
            match tokio::time::timeout_at(due, calls.recv()).await {
                Ok(None) => return,
                Ok(Some(call)) => waiting.push_back(call),
                Err(_) => {}
            }
        }
        while let Ok(call) = calls.try_recv() {
            waiting.push_back(call);
        }
        if waiting.iter().any(|call| *call == Call::Look) {
            waiting.retain(|call| *call != Call::Look);
            due = due.min(last.map_or_else(Instant::now, |last| last + SHORTEST_PAUSE));
        }
        let answer = if Instant::now() >= due {
            due = Instant::now() + pace.interval;
            if !pace.is_wanted.load(Ordering::Relaxed) {
                continue;
            }
            let answer = engine.list().await;
            (last, due) = (Some(Instant::now()), Instant::now() + pace.interval);
            Answer::Listed(answer)
        } else {
            match waiting.pop_front() {
                Some(Call::Submit(gang)) => {
                    let answer = engine.submit(&gang).await;
                    Answer::Submitted(gang.allocation, answer)
                }
                Some(Call::Cancel(job)) => {
                    let mut jobs = vec![job];
                    while let Some(Call::Cancel(job)) = waiting.front() {
                        jobs.push(job.clone());
                        waiting.pop_front();
                    }
                    if let Err(why) = engine.cancel(&jobs).await {
                        // Those that live on are seen in the next list.
                        tracing::warn!(?jobs, why, "cannot cancel jobs");
                    }
                    continue;
                }
                Some(Call::Look) | None => continue,
            }
        };
        if !tell(answer).await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::Container;
    use super::*;
    use crate::sync::lock;

    /// An engine that writes down what it was asked.
    struct Clerk(Arc<Mutex<Vec<String>>>);

    impl ResourceManager for Clerk {
        async fn submit(&self, gang: &Gang) -> Result<JobId, String> {
            lock(&self.0).push(format!("submit {}", gang.allocation));
            Ok(JobId("1".to_owned()))
        }

        async fn cancel(&self, jobs: &[JobId]) -> Result<(), String> {
            lock(&self.0)
                .push(format!("cancel {}", jobs.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")));
            Err("some have ended".to_owned())
        }

        async fn list(&self) -> Result<Vec<Seen>, String> {
            lock(&self.0).push("list".to_owned());
            Ok(Vec::new())
        }
    }

    fn submit(allocation: &str) -> Call {
        let gang = Gang {
            allocation: allocation.to_owned(),
            user: String::new(),
            container: Container::default(),
            title: String::new(),
            pool: String::new(),
            nodes: 1,
            slots_per_node: 1,
            gpu_type: None,
            arguments: Vec::new(),
            excluded: Vec::new(),
            token: String::new(),
        };
        Call::Submit(Box::new(gang))
    }

    #[test]
    fn calls_come_in_their_order_behind_a_list_that_is_due() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let answered = Arc::new(Mutex::new(0));
        runtime.block_on(async {
            let (calls, received) = mpsc::channel(16);
            let cancel = |job: &str| Call::Cancel(JobId(job.to_owned()));
            for call in [submit("a"), cancel("7"), Call::Look, cancel("8"), submit("b"), cancel("9")] {
                calls.send(call).await.unwrap();
            }
            drop(calls);
            let pace = Pace { interval: Duration::from_secs(3600), is_wanted: Arc::new(AtomicBool::new(true)) };
            let tell = |_| {
                *lock(&answered) += 1;
                async { true }
            };
            run(Clerk(Arc::clone(&asked)), received, pace, tell).await;
        });
        assert_eq!(*lock(&asked), ["list", "submit a", "cancel 7 8", "submit b", "cancel 9"]);
        assert_eq!(*lock(&answered), 3);
    }
}
