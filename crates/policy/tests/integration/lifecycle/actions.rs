//! What people do to experiments, in every situation.

use instep_api::states::State;
use instep_policy::lifecycle::{Effect, End, Event};

use crate::lifecycle::double::Double;
use crate::lifecycle::life::{Life, TERMS, brief, exited, notes, run};

#[test]
fn an_experiment_asks_for_slots_as_soon_as_its_trial_exists() {
    let mut life = Life::of(1, true);
    assert_eq!((life.state(), life.trial()), (State::Paused, State::Paused));
    let effects = life.on(Event::Activate);
    assert_eq!(brief(&effects), ["experiment Active", "trial Active", "ask 1"]);
    let Some(Effect::Ask { allocation, .. }) = effects.last() else { panic!("{effects:?}") };
    assert_eq!(allocation, "7.r1.1");
    assert!(life.on(Event::Activate).is_empty(), "it is active already");
}

#[test]
fn pausing_withdraws_kills_or_asks_by_how_far_the_run_has_come() {
    for (situation, measure) in
        [("asked", "withdraw 1"), ("assigned", "kill 1"), ("running", "kill 1"), ("ready", "preempt 1")]
    {
        let mut life = Life::at(situation);
        assert_eq!(brief(&life.on(Event::Pause)), ["experiment Paused", "trial Paused", measure], "{situation}");
        assert!(life.on(Event::Pause).is_empty());
        if situation != "asked" {
            assert_eq!(brief(&life.ends(1, End::Killed)), [""; 0], "it rests");
        }
        assert_eq!(brief(&life.on(Event::Activate)), ["experiment Active", "trial Active", "ask 2"]);
    }
}

#[test]
fn a_paused_trial_that_acknowledged_rests_and_one_that_was_done_is_done() {
    let mut life = Life::at("ready");
    life.on(Event::Pause);
    life.on(Event::Acknowledged { run: run("r1", 1) });
    assert_eq!(brief(&life.ends(1, exited(0))), [""; 0]);
    assert_eq!(life.trial(), State::Paused);

    let mut life = Life::at("ready");
    life.on(Event::Pause);
    assert_eq!(
        brief(&life.ends(1, exited(0))),
        [
            "trial StoppingCompleted",
            "trial Completed",
            "experiment StoppingCompleted",
            "experiment Completed",
            "collect"
        ]
    );
}

#[test]
fn an_experiment_activated_while_its_run_still_stops_runs_again_after_that() {
    for end in [End::Killed, exited(0)] {
        let mut life = Life::at("ready");
        life.on(Event::Pause);
        assert_eq!(brief(&life.on(Event::Activate)), ["experiment Active", "trial Active"], "no second run");
        life.on(Event::Acknowledged { run: run("r1", 1) });
        assert_eq!(brief(&life.ends(1, end)), ["ask 2"]);
    }
}

#[test]
fn a_trial_rests_after_a_failure_while_paused_and_the_failure_counts() {
    let mut life = Life::at("ready");
    life.on(Event::Pause);
    assert_eq!(brief(&life.ends(1, exited(1))), [""; 0]);
    assert_eq!((life.trial(), life.experiment.trials()["r1"].restarts), (State::Paused, 1));
}

#[test]
fn cancelling_stops_in_good_order_and_kills_what_cannot_hear() {
    let ended = ["trial Canceled", "experiment Canceled", "collect"];
    for (situation, measure) in [("assigned", "kill 1"), ("running", "kill 1"), ("ready", "preempt 1")] {
        let mut life = Life::at(situation);
        let effects = life.on(Event::Cancel);
        assert_eq!(brief(&effects), ["experiment StoppingCanceled", "trial StoppingCanceled", measure], "{situation}");
        assert!(life.on(Event::Cancel).is_empty(), "it is ending already");
        assert_eq!(brief(&life.ends(1, End::Killed)), ended);
        assert!(life.on(Event::Cancel).is_empty(), "it has ended");
    }
    let mut life = Life::at("asked");
    let begun = ["experiment StoppingCanceled", "trial StoppingCanceled", "withdraw 1"];
    assert_eq!(brief(&life.on(Event::Cancel)), [&begun[..], &ended[..]].concat());
    assert_eq!(life.experiment.search().heard, ["r1 UserCancelled", "r1 exited"]);
}

#[test]
fn a_script_that_fails_while_it_is_cancelled_is_an_error() {
    let mut life = Life::at("ready");
    life.on(Event::Cancel);
    assert_eq!(
        brief(&life.ends(1, exited(1))),
        ["trial Error", "experiment StoppingError", "experiment Error", "collect"]
    );
}

#[test]
fn killing_ends_at_once_also_what_was_being_cancelled() {
    for situation in ["assigned", "running", "ready"] {
        let mut life = Life::at(situation);
        let effects = life.on(Event::Kill);
        assert_eq!(brief(&effects), ["experiment StoppingKilled", "trial StoppingKilled", "kill 1"]);
        assert_eq!(brief(&life.ends(1, End::Killed)), ["trial Canceled", "experiment Canceled", "collect"]);
    }
    let mut life = Life::at("ready");
    life.on(Event::Cancel);
    assert_eq!(
        brief(&life.on(Event::Kill)),
        ["experiment StoppingKilled", "trial StoppingKilled", "kill 1"],
        "a kill overtakes a cancel"
    );
    assert!(life.on(Event::Kill).is_empty());
    assert!(life.on(Event::Cancel).is_empty());
    assert!(life.on(Event::Pause).is_empty() && life.on(Event::Activate).is_empty());
}

#[test]
fn killing_a_paused_experiment_needs_no_run() {
    let mut life = Life::of(1, true);
    assert_eq!(
        brief(&life.on(Event::Kill)),
        ["experiment StoppingKilled", "trial StoppingKilled", "trial Canceled", "experiment Canceled", "collect"]
    );
}

#[test]
fn a_kill_reaches_what_its_search_stopped_and_does_not_rename_it() {
    let mut life = Life::at("ready");
    assert_eq!(brief(&life.reports("stop")), ["trial StoppingCompleted", "preempt 1"]);
    assert_eq!(brief(&life.on(Event::Kill)), ["experiment StoppingKilled", "trial StoppingKilled", "kill 1"]);
    life.ends(1, End::Killed);
    assert_eq!(life.state(), State::Canceled);
}

#[test]
fn killing_the_only_trial_cancels_the_experiment() {
    let mut life = Life::at("ready");
    assert_eq!(brief(&life.on(Event::KillTrial { request: "r1".to_owned() })), ["trial StoppingKilled", "kill 1"]);
    assert_eq!(
        brief(&life.ends(1, End::Killed)),
        ["trial Canceled", "experiment StoppingCanceled", "experiment Canceled", "collect"]
    );
}

#[test]
fn killing_one_of_two_trials_leaves_the_other() {
    let mut life = Life::of(2, false);
    life.on(Event::KillTrial { request: "r1".to_owned() });
    assert_eq!((life.state(), life.trial()), (State::Active, State::Canceled));
    life.on(Event::Assigned { run: run("r2", 1) });
    life.on(Event::Ended { run: run("r2", 1), end: exited(0) });
    assert_eq!(life.state(), State::Completed, "one good trial is enough");
}

#[test]
fn requests_that_cannot_be_granted_are_refused_with_a_reason() {
    let mut life = Life::at("ready");
    assert_eq!(life.experiment.refusal(&Event::Pause), None);
    life.on(Event::Cancel);
    let refusal = life.experiment.refusal(&Event::Activate).expect("refused");
    assert_eq!(refusal, "experiment 7 is ending (STOPPING_CANCELED) and cannot be activated");
    life.ends(1, End::Killed);
    assert!(life.experiment.refusal(&Event::Pause).is_some_and(|why| why.contains("hint:")));
    assert_eq!(life.experiment.refusal(&Event::Kill), None, "nothing is left to do, which is no error");
}

#[test]
fn a_script_that_does_not_stop_in_time_is_killed_and_killed_again() {
    let mut life = Life::at("ready");
    let effects = life.on(Event::Displaced { run: run("r1", 1), why: "job 9 needs its slots".to_owned() });
    assert_eq!(brief(&effects), ["preempt 1"]);
    let gently = "gracefully terminating allocation's remaining resources (reason: job 9 needs its slots)";
    assert_eq!(notes(&effects), [gently]);
    assert!(life.on(Event::Displaced { run: run("r1", 1), why: "again".to_owned() }).is_empty());
    assert!(life.later(3599).is_empty());
    let effects = life.later(1);
    assert_eq!(brief(&effects), ["kill 1"]);
    assert!(notes(&effects)[0].starts_with("forcibly killing allocation's remaining resources (reason: it did not"));
    assert!(life.later(29).is_empty());
    let again = life.later(1);
    assert_eq!((brief(&again), notes(&again).len()), (vec!["kill 1".to_owned()], 0));
    assert_eq!(brief(&life.ends(1, End::Killed)), ["ask 2"], "it was not the trial's wish to end");
    assert_eq!((life.experiment.deadline(), life.experiment.trials()["r1"].restarts), (None, 0));
}

#[test]
fn a_disabled_agent_costs_no_restart() {
    for situation in ["assigned", "running", "ready"] {
        let mut life = Life::at(situation);
        let effects = life.on(Event::Evicted { run: run("r1", 1), why: "agent a was disabled".to_owned() });
        assert_eq!(brief(&effects), ["kill 1"]);
        assert_eq!(brief(&life.ends(1, End::Killed)), ["ask 2"]);
        assert_eq!(life.experiment.trials()["r1"].restarts, 0);
    }
}

#[test]
fn continuing_goes_on_with_the_same_trial_in_a_new_task() {
    let mut life = Life::at("ready");
    assert!(life.experiment.carry_on(TERMS, Double::of(1), life.now).is_err(), "it has not ended");
    (1..=3).for_each(|number| drop(life.ends(number, exited(1))));
    assert_eq!(life.state(), State::Error);
    for (continuation, number) in [(1, 4), (2, 5)] {
        let mut search = Double::of(1);
        // Another configuration may give the trial another name.
        (search.requested, search.closed) = (10, 10);
        let effects = life.experiment.carry_on(TERMS, search, life.now).expect("it has ended");
        assert_eq!(brief(&effects), ["experiment Active", "revise r1", "trial Active", &format!("ask {number}")]);
        let Some(Effect::Ask { allocation, restarts: 0, .. }) = effects.last() else { panic!("{effects:?}") };
        assert_eq!(*allocation, format!("7.r1-{continuation}.{number}"));
        life.on(Event::Ready { run: run("r1", number) });
        assert_eq!(brief(&life.reports("stop")), ["trial StoppingCompleted".to_owned(), format!("preempt {number}")]);
        life.ends(number, exited(0));
        assert_eq!(life.trial(), State::Completed);
    }
}

#[test]
fn continuing_several_trials_reruns_those_that_are_not_complete() {
    let mut life = Life::of(2, false);
    life.ends(1, exited(0));
    life.on(Event::KillTrial { request: "r2".to_owned() });
    assert_eq!(life.state(), State::Completed);
    let terms = life.experiment.terms().clone();
    let effects = life.experiment.carry_on(terms.clone(), Double::of(2), life.now).expect("r2 is not complete");
    assert_eq!(brief(&effects), ["experiment Active", "revise r2", "trial Active", "ask 2"]);
    life.on(Event::Ended { run: run("r2", 2), end: exited(0) });
    assert_eq!(life.state(), State::Completed);
    let refusal = life.experiment.carry_on(terms, Double::of(2), life.now).expect_err("nothing is left");
    assert_eq!(refusal, "all trials of experiment 7 are complete: nothing is left to continue");
}
