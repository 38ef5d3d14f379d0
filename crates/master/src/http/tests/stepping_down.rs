//! What tasks hear of a master that may not decide any more: nothing that lets them stop.

use super::*;
use crate::cluster::Refusal;

/// Seconds that no test takes.
const LONG: &str = "timeout_seconds=600";

#[test]
fn a_master_that_steps_down_asks_no_task_to_stop() {
    let served = serve();
    let things = fill(&served);
    let path = format!("/api/v1/allocations/{}.1/signals/preemption", things.command);
    let now = ask(&served, Get, &format!("{path}?timeout_seconds=0"), &bearer("owner"), "");
    assert!(now.0 == 200 && now.1.contains(r#""preempt":false"#), "{}", now.1);
    let asked = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ask(&served, Get, &format!("{path}?{LONG}"), &bearer("owner"), ""));
        // It waits when the cluster has told it how it will hear.
        while served.runtime.block_on(served.application.cluster.waiting_for_signal(things.command.clone() + ".1")) == 0
        {
            std::thread::yield_now();
        }
        served.database.end("another master has taken over");
        let killed = served.application.cluster.kill_command(things.command.clone(), "a test".to_owned());
        assert_eq!(served.runtime.block_on(killed), Err(Refusal::Closed));
        waiting.join().unwrap()
    });
    assert_eq!(asked.0, 503, "{}", asked.1);
    assert!(!asked.1.contains("preempt"), "{}", asked.1);
}

#[test]
fn a_leader_does_not_stop_a_task_that_it_does_not_know() {
    let served = serve();
    let things = fill(&served);
    // The next leader has begun it: it is in the database, and not in this one's memory.
    let path = format!("/api/v1/allocations/{}.1/signals/preemption?timeout_seconds=0", things.task);
    let asked = ask(&served, Get, &path, &bearer("own task"), "");
    assert_eq!(asked.0, 503, "{}", asked.1);
}
