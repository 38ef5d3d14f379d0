//! What follows from how runs end, from log policies and from what the search decides.

use instep_api::states::State;
use instep_policy::lifecycle::{Effect, End, Event, PolicyAction};

use crate::lifecycle::life::{Life, brief, exited, notes, run};

fn matched(action: PolicyAction) -> Event {
    Event::LogMatched {
        run: run("r1", 1),
        policy: "CUDA OOM".to_owned(),
        pattern: ".*out of memory.*".to_owned(),
        line: "CUDA out of memory\n".to_owned(),
        action,
    }
}

#[test]
fn a_script_that_always_fails_runs_three_times_with_two_restarts() {
    let mut life = Life::at("ready");
    for number in [1, 2] {
        let effects = life.ends(number, exited(3));
        assert_eq!(brief(&effects), [format!("ask {}", number + 1)]);
        assert!(notes(&effects)[0].ends_with("container failed with non-zero exit code: 3 (exit code 3)"));
    }
    assert_eq!(
        brief(&life.ends(3, exited(3))),
        ["trial Error", "experiment StoppingError", "experiment Error", "collect"]
    );
    let trial = &life.experiment.trials()["r1"];
    assert_eq!((trial.runs, trial.restarts), (3, 2));
    assert_eq!(life.experiment.search().heard, ["r1 Errored", "r1 exited"]);
}

#[test]
fn exit_zero_completes_and_says_so() {
    let mut life = Life::at("ready");
    let effects = life.ends(1, exited(0));
    assert_eq!(notes(&effects), ["resources exited successfully with a zero exit code"]);
    assert_eq!(brief(&effects), ["trial Completed", "experiment StoppingCompleted", "experiment Completed", "collect"]);
    assert_eq!(life.experiment.search().heard, ["r1 exited"]);
}

#[test]
fn what_is_not_the_scripts_fault_costs_no_restart() {
    let mut life = Life::at("ready");
    life.on(Event::Displaced { run: run("r1", 1), why: "others".to_owned() });
    life.on(Event::Acknowledged { run: run("r1", 1) });
    assert_eq!(brief(&life.ends(1, exited(0))), ["ask 2"]);
    assert_eq!(brief(&life.ends(2, End::Lost { why: "no word".to_owned() })), ["ask 3"]);
    assert_eq!(brief(&life.ends(3, End::Killed)), ["ask 4"]);
    assert_eq!(life.experiment.trials()["r1"].restarts, 0);
}

#[test]
fn starts_that_fail_are_repeated_more_and_more_slowly() {
    let mut life = Life::of(1, false);
    for (number, wait) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 60), (8, 60)] {
        life.on(Event::Assigned { run: run("r1", number) });
        let effects = life.ends(number, End::NotStarted { why: "the disk is full".to_owned() });
        assert_eq!(brief(&effects), [""; 0]);
        assert_eq!(notes(&effects)[0], "it could not be started: the disk is full");
        assert!(life.later(wait - 1).is_empty(), "{number}");
        assert_eq!(brief(&life.later(1)), [format!("ask {}", number + 1)]);
    }
    life.ends(9, End::NotStarted { why: "the disk is full".to_owned() });
    life.on(Event::Pause);
    assert!(life.later(60).is_empty(), "a paused trial does not ask");
    assert_eq!(brief(&life.on(Event::Activate)), ["experiment Active", "trial Active", "ask 10"]);
}

#[test]
fn what_can_never_run_is_an_error_at_once() {
    let mut life = Life::of(1, false);
    life.ends(1, End::Impossible { why: "the pool is gone".to_owned() });
    assert_eq!((life.trial(), life.state()), (State::Error, State::Error));
}

#[test]
fn a_policy_that_cancels_retries_makes_a_failure_final() {
    let mut life = Life::at("ready");
    assert_eq!(brief(&life.on(matched(PolicyAction::CancelRetries))), ["matched CUDA OOM"]);
    let effects = life.ends(1, exited(1));
    assert_eq!(life.trial(), State::Error);
    assert!(notes(&effects)[1].starts_with("trial failed and matched logs to a don't retry policy: CUDA OOM (log "));
}

#[test]
fn a_policy_that_excludes_a_node_is_remembered_for_all_later_runs() {
    let mut life = Life::at("ready");
    let event = matched(PolicyAction::ExcludeNode { agent: "agent-3".to_owned() });
    let effects = life.on(event.clone());
    let note =
        "(log \"CUDA out of memory\" matched regex \".*out of memory.*\") therefore will not schedule on agent-3";
    assert_eq!(notes(&effects), [note]);
    assert!(notes(&life.on(event)).is_empty(), "said once");
    let effects = life.ends(1, exited(1));
    let Some(Effect::Ask { excluded, .. }) = effects.last() else { panic!("{effects:?}") };
    assert!(excluded.contains("agent-3"));
}

#[test]
fn a_policy_that_only_marks_changes_nothing_else() {
    let mut life = Life::at("ready");
    assert_eq!(brief(&life.on(matched(PolicyAction::Mark))), ["matched CUDA OOM"]);
    assert_eq!(brief(&life.ends(1, exited(1))), ["ask 2"]);
}

#[test]
fn a_stop_of_the_search_reaches_the_script_as_preemption_and_completes() {
    let mut life = Life::at("ready");
    assert_eq!(brief(&life.reports("stop")), ["trial StoppingCompleted", "preempt 1"]);
    life.on(Event::Acknowledged { run: run("r1", 1) });
    assert_eq!(
        brief(&life.ends(1, exited(0))),
        ["trial Completed", "experiment StoppingCompleted", "experiment Completed", "collect"]
    );
}

#[test]
fn a_stopped_trial_without_a_run_completes_at_once() {
    let mut life = Life::of(1, true);
    life.reports("stop");
    assert_eq!(life.state(), State::Completed);
}

#[test]
fn invalid_hyperparameters_reach_the_search_before_the_script_has_ended() {
    let mut life = Life::at("ready");
    let effects = life.on(Event::InvalidHyperparameters { request: "r1".to_owned() });
    assert_eq!(brief(&effects), ["trial StoppingCompleted", "make r2", "ask 1"], "a replacement");
    assert!(life.on(Event::InvalidHyperparameters { request: "r1".to_owned() }).is_empty(), "said twice");
    assert!(life.later(9).is_empty());
    assert_eq!(brief(&life.later(1)), ["kill 1"], "it should have ended by itself");
    assert_eq!(brief(&life.ends(1, exited(0))), ["trial Completed"]);
    assert_eq!(life.experiment.search().heard, ["r1 InvalidHyperparameters", "r1 exited"]);
}

#[test]
fn an_error_of_the_search_ends_everything() {
    let mut life = Life::of(2, false);
    life.on(Event::Assigned { run: run("r2", 1) });
    let effects = life.reports("fail");
    assert_eq!(
        brief(&effects),
        [
            "experiment StoppingError",
            "trial StoppingError",
            "withdraw 1",
            "trial Error",
            "trial StoppingError",
            "kill 1"
        ]
    );
    let Effect::Note { text, .. } = &effects[0] else { panic!("{effects:?}") };
    assert_eq!(text, "the experiment fails: no such metric", "in the log of the trial that reported");
    let Effect::ExperimentState { why, .. } = &effects[1] else { panic!("{effects:?}") };
    assert_eq!(why, "its search failed on trial 1: no such metric");
    let stopped = effects.iter().filter_map(|effect| match effect {
        Effect::Withdraw { why, .. } | Effect::Kill { why, .. } => Some(why),
        _ => None,
    });
    assert!(stopped.eq([why, why]), "every run that is stopped says the same: {effects:?}");
    let effects = life.on(Event::Ended { run: run("r2", 1), end: End::Killed });
    assert_eq!(brief(&effects), ["trial Error", "experiment Error", "collect"]);
}

#[test]
fn news_of_earlier_runs_change_nothing() {
    let mut life = Life::at("ready");
    life.ends(1, exited(1));
    for event in [
        Event::Ended { run: run("r1", 1), end: exited(0) },
        Event::Acknowledged { run: run("r1", 1) },
        Event::Ready { run: run("r1", 1) },
        Event::Displaced { run: run("r1", 1), why: String::new() },
        Event::Displaced { run: run("r1", 2), why: "it has no slots yet".to_owned() },
        matched(PolicyAction::CancelRetries),
    ] {
        assert!(life.on(event.clone()).is_empty(), "{event:?}");
    }
}
