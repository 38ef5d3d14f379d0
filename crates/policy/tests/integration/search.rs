//! Searches: worked examples, whole searches played without a cluster, and searches restored in the middle.
#![expect(clippy::unwrap_used, reason = "a test")]

use instep_api::config::{ExperimentConfig, Sources};
use instep_policy::search::simulation::{Habits, SimulatedTrial, Simulation};
use instep_policy::search::{Action, EarlyExit, Ends, Event, Search, preview};
use instep_testkit::Random;
use serde_json::{Map, Value, json};

fn config(searcher: &str, hyperparameters: &str) -> ExperimentConfig {
    let text = format!("searcher: {{metric: loss, {searcher}}}\nhyperparameters: {hyperparameters}");
    ExperimentConfig::parse(&text, &Sources::default()).unwrap_or_else(|errors| panic!("{text}: {errors:?}"))
}

fn search_of(searcher: &str, hyperparameters: &str, seed: u32) -> Search {
    let config = config(searcher, hyperparameters);
    Search::new(&config.searcher, &config.hyperparameters, seed).unwrap()
}

/// What was created: names, seeds, hyperparameters.
fn created(actions: &[Action]) -> Vec<(String, u32, Value)> {
    let one = |action: &Action| match action {
        Action::Create { request, seed, hyperparameters } => {
            Some((request.clone(), *seed, Value::Object(hyperparameters.clone())))
        }
        _ => None,
    };
    actions.iter().filter_map(one).collect()
}

fn names(actions: &[Action]) -> Vec<String> {
    created(actions).into_iter().map(|(name, ..)| name).collect()
}

fn start(search: &mut Search) -> Vec<Action> {
    search.on(Event::Started).unwrap()
}

fn report(search: &mut Search, request: &str, metrics: Value) -> Result<Vec<Action>, String> {
    let Value::Object(metrics) = metrics else { panic!("{metrics} is not a map") };
    let event = Event::Validated { request: request.to_owned(), metrics, steps: 0 };
    search.on(event).map_err(|error| error.to_string())
}

/// A trial ends that has reported what the search compares by; on a rung this report counts for nothing.
fn exit(search: &mut Search, request: &str) -> Vec<Action> {
    let _ = report(search, request, json!({"loss": 0}));
    exit_silently(search, request)
}

fn exit_silently(search: &mut Search, request: &str) -> Vec<Action> {
    search.on(Event::Exited { request: request.to_owned() }).unwrap()
}

fn exit_early(search: &mut Search, request: &str, reason: EarlyExit) -> Vec<Action> {
    search.on(Event::ExitedEarly { request: request.to_owned(), reason }).unwrap()
}

/// How a search ended: cancelled and failed.
fn shut_down(actions: &[Action]) -> Option<(bool, bool)> {
    match actions {
        [Action::Shutdown { cancelled, failed }] => Some((*cancelled, *failed)),
        _ => None,
    }
}

#[test]
fn names_seeds_and_hyperparameters_follow_from_the_seed() {
    let mut search = search_of("name: random, max_trials: 3", "{increment_by: {type: int, minval: 1, maxval: 8}}", 1);
    let expected = [
        ("eb8047ff-8c2f-47b8-8814-bceeff7e0700", 550290313, json!({"increment_by": 6})),
        ("851ec1ff-4fcb-4125-8053-703c9080a317", 1703301249, json!({"increment_by": 4})),
        ("471e4e63-edaa-4658-bc79-74ab868d9265", 1870626073, json!({"increment_by": 5})),
    ];
    let expected = expected.map(|(name, seed, values)| (name.to_owned(), seed, values));
    assert_eq!(created(&start(&mut search)), expected);
}

#[test]
fn every_kind_of_hyperparameter_is_drawn_as_numpy_does() {
    let hyperparameters = "{cat: {type: categorical, vals: [a, b, c]}, lr: {type: log, base: 10, minval: -4, maxval: -1}, \
                           m: {type: double, minval: 0.5, maxval: 0.9}, n: {type: int, minval: 8, maxval: 64}}";
    let mut search = search_of("name: single", hyperparameters, 0);
    let expected = json!({"cat": "a", "lr": 0.006005288202683084, "m": 0.8377062994324069, "n": 11});
    assert_eq!(created(&start(&mut search))[0].2, expected);
}

#[test]
fn groups_and_constants_stay_as_they_are() {
    let mut search = search_of("name: single", "{a: 7, b: {c: [1], d: {}, e: {type: int, minval: 2, maxval: 2}}}", 0);
    assert_eq!(created(&start(&mut search))[0].2, json!({"a": 7, "b": {"c": [1], "d": {}, "e": 2}}));
}

#[test]
fn a_grid_is_tried_from_its_end() {
    let hyperparameters =
        "{a: {type: int, minval: 0, maxval: 20, count: 3}, b: {type: int, minval: 0, maxval: 10, count: 3}}";
    let mut search = search_of("name: grid, max_concurrent_trials: 0", hyperparameters, 0);
    let mut points: Vec<Value> = created(&start(&mut search)).into_iter().map(|(.., point)| point).collect();
    points.reverse();
    let expected: Vec<Value> = [0, 10, 20].iter().flat_map(|a| [0, 5, 10].map(|b| json!({"a": a, "b": b}))).collect();
    assert_eq!(points, expected);
}

#[test]
fn axes_of_a_grid_are_evenly_spaced() {
    let cases = [
        ("{type: int, minval: 0, maxval: 4, count: 5}", json!([0, 1, 2, 3, 4])),
        ("{type: int, minval: -4, maxval: -2, count: 3}", json!([-4, -3, -2])),
        ("{type: int, minval: 0, maxval: 2, count: 9}", json!([0, 1, 2])),
        ("{type: int, minval: 0, maxval: 4, count: 1}", json!([2])),
        ("{type: double, minval: 13, maxval: 17, count: 2}", json!([13.0, 17.0])),
        ("{type: double, minval: 13, maxval: 17, count: 1}", json!([15.0])),
        ("{type: log, base: 10, minval: 1, maxval: 2, count: 2}", json!([10.0, 100.0])),
        ("{type: log, base: 10, minval: 1, maxval: 3, count: 1}", json!([100.0])),
        ("{type: categorical, vals: [x, 1, null]}", json!(["x", 1, null])),
        ("{n: {type: int, minval: 0, maxval: 1, count: 2}, e: {}}", json!([{"n": 0, "e": {}}, {"n": 1, "e": {}}])),
        ("7", json!([7])),
    ];
    for (axis, expected) in cases {
        let mut search = search_of("name: grid, max_concurrent_trials: 0", &format!("{{p: {axis}}}"), 0);
        let mut values: Vec<Value> =
            created(&start(&mut search)).into_iter().map(|(.., point)| point["p"].clone()).collect();
        values.reverse();
        assert_eq!(Value::from(values), expected, "{axis}");
    }
}

#[test]
fn the_points_of_a_grid_are_counted() {
    let axes: Vec<String> = [2, 2, 3, 3, 4, 5]
        .iter()
        .enumerate()
        .map(|(index, count)| format!("p{index}: {{type: int, minval: 0, maxval: 9, count: {count}}}"))
        .collect();
    let config = config("name: grid", &format!("{{{}}}", axes.join(", ")));
    let planned = preview(&config.searcher, &config.hyperparameters).unwrap();
    assert_eq!(
        planned.iter().map(|planned| (planned.trials, planned.ends)).collect::<Vec<_>>(),
        [(720, Ends::ByItself)]
    );
    let axis = "{type: double, minval: 0, maxval: 9, count: 4000000000}";
    let huge = config_of_axes(&[axis; 9]);
    let error = Search::new(&huge.searcher, &huge.hyperparameters, 0).unwrap_err();
    assert!(error.to_string().contains("more than 1000000 points"), "{error}");
}

fn config_of_axes(axes: &[&str]) -> ExperimentConfig {
    let axes: Vec<String> = axes.iter().enumerate().map(|(index, axis)| format!("p{index}: {axis}")).collect();
    config("name: grid", &format!("{{{}}}", axes.join(", ")))
}

#[test]
fn an_ended_trial_makes_room_for_the_next_until_there_are_enough() {
    let mut search = search_of("name: random, max_trials: 4, max_concurrent_trials: 2", "{}", 0);
    let mut running = names(&start(&mut search));
    assert_eq!(running.len(), 2);
    let mut all = running.len();
    let end = loop {
        let actions = exit(&mut search, &running.remove(0));
        running.extend(names(&actions));
        all += names(&actions).len();
        if let Some(end) = shut_down(&actions) {
            break end;
        }
    };
    assert_eq!((all, end), (4, (false, false)));
    assert_eq!(search.progress(), 1.0);
}

#[test]
fn a_search_ends_as_its_trials_did() {
    use EarlyExit::{Errored, InvalidHyperparameters, UserCancelled};
    let cases = [
        ([None, None], (false, false)),
        ([Some(Errored), None], (false, false)),
        ([Some(Errored), Some(Errored)], (false, true)),
        ([Some(UserCancelled), Some(UserCancelled)], (true, false)),
        ([Some(UserCancelled), Some(Errored)], (false, false)),
        ([Some(InvalidHyperparameters), Some(InvalidHyperparameters)], (false, false)),
    ];
    for (exits, expected) in cases {
        let mut search = search_of("name: grid", "{c: {type: categorical, vals: [1, 2]}}", 0);
        let trials = names(&start(&mut search));
        let mut last = Vec::new();
        for (trial, early) in trials.iter().zip(exits) {
            if let Some(reason) = early {
                assert_eq!(exit_early(&mut search, trial, reason), []);
                assert_eq!(exit_early(&mut search, trial, reason), [], "the second time counts for nothing");
            }
            last = exit(&mut search, trial);
            assert_eq!(exit(&mut search, trial), [], "a trial ends once");
        }
        assert_eq!(shut_down(&last), Some(expected), "{exits:?}");
    }
}

#[test]
fn invalid_hyperparameters_do_not_count_as_a_trial() {
    let mut search = search_of("name: random, max_trials: 2, max_concurrent_trials: 1", "{}", 0);
    let first = names(&start(&mut search)).remove(0);
    let second = names(&exit_early(&mut search, &first, EarlyExit::InvalidHyperparameters)).remove(0);
    assert_eq!(exit(&mut search, &first), [], "its place was taken already");
    let third = names(&exit(&mut search, &second)).remove(0);
    assert_eq!(shut_down(&exit(&mut search, &third)), Some((false, false)));
}

#[test]
fn progress_is_the_mean_of_the_trials() {
    let mut search = search_of("name: random, max_trials: 4, max_concurrent_trials: 4", "{}", 0);
    assert_eq!(search.progress(), 0.0);
    let trials = names(&start(&mut search));
    search.on(Event::Progressed { request: trials[0].clone(), progress: 0.5 }).unwrap();
    search.on(Event::Progressed { request: trials[1].clone(), progress: f64::NAN }).unwrap();
    assert_eq!(search.progress(), 0.125);
    exit(&mut search, &trials[2]);
    assert_eq!(search.progress(), 0.375);
    exit_early(&mut search, &trials[1], EarlyExit::InvalidHyperparameters);
    assert_eq!(search.progress(), 0.375, "the one that replaces it has not begun");
}

const HALVING: &str = "name: async_halving, num_rungs: 3, max_time: 9, time_metric: t, divisor: 3, max_trials: 10, \
                       max_concurrent_trials: 3";

#[test]
fn a_halving_search_stops_the_worse_and_tries_another() {
    let mut search = search_of(HALVING, "{}", 0);
    let trials = names(&start(&mut search));
    assert_eq!(trials.len(), 3);
    assert_eq!(report(&mut search, &trials[0], json!({"loss": 0.5, "t": 1})), Ok(vec![]));
    let actions = report(&mut search, &trials[1], json!({"loss": 0.6, "t": 1.9})).unwrap();
    let [Action::Stop { request, reason }, Action::Create { .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!((request, reason.as_str()), (&trials[1], "at 1 it is number 2 of 2, and the best 1 continue"));
    assert_eq!(report(&mut search, &trials[1], json!({"loss": 0.1, "t": 9})), Ok(vec![]), "it was told to stop");
    assert_eq!(exit_early(&mut search, &trials[1], EarlyExit::Errored), [], "its place was taken already");
    assert_eq!(exit(&mut search, &trials[1]), []);
    assert_eq!(search.progress(), 2.0 / 12.0);
    assert_eq!(report(&mut search, &trials[2], json!({"loss": 0.4, "t": 1})), Ok(vec![]));
}

#[test]
fn larger_can_be_better() {
    let mut search = search_of(&format!("{HALVING}, smaller_is_better: false"), "{}", 0);
    let trials = names(&start(&mut search));
    assert_eq!(report(&mut search, &trials[0], json!({"loss": 0.2, "t": 1})), Ok(vec![]));
    assert_eq!(report(&mut search, &trials[1], json!({"loss": 0.3, "t": 1})), Ok(vec![]));
    assert_eq!(report(&mut search, &trials[2], json!({"loss": 0.1, "t": 1})).unwrap().len(), 2);
}

#[test]
fn failed_and_invalid_trials_of_a_halving_search_are_replaced() {
    let mut search = search_of(HALVING, "{}", 0);
    let trials = names(&start(&mut search));
    assert_eq!(names(&exit_early(&mut search, &trials[0], EarlyExit::Errored)).len(), 1);
    assert_eq!(exit(&mut search, &trials[0]), []);
    let actions = exit_early(&mut search, &trials[1], EarlyExit::InvalidHyperparameters);
    let [Action::Stop { request, .. }, Action::Create { .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(request, &trials[1]);
    assert_eq!(exit(&mut search, &trials[2]), [], "a trial that ends by itself is not replaced");
    // The failed one is the worst of its rung: two of three reports are better than it.
    let next = names(&actions).remove(0);
    assert_eq!(report(&mut search, &next, json!({"loss": 1e300, "t": 1})), Ok(vec![]));
}

#[test]
fn a_halving_search_needs_finite_numbers() {
    let cases = [
        (json!({"loss": 1.0}), "a validation has no time metric `t`, only loss"),
        (json!({"t": 1}), "a validation has no searcher metric `loss`, only t"),
        (json!({"loss": "NaN", "t": 1}), "searcher metric `loss` of a validation is \"NaN\", not a finite number"),
        (json!({"loss": 1, "t": null}), "time metric `t` of a validation is null, not a finite number"),
    ];
    for (metrics, expected) in cases {
        let mut search = search_of(HALVING, "{}", 0);
        let trial = names(&start(&mut search)).remove(0);
        assert_eq!(report(&mut search, &trial, metrics), Err(expected.to_owned()));
    }
    let mut search = search_of("name: single", "{}", 0);
    let trial = names(&start(&mut search)).remove(0);
    assert_eq!(report(&mut search, &trial, json!({"loss": "NaN"})), Ok(vec![]), "others do not look");
}

#[test]
fn an_older_search_takes_the_time_from_the_steps() {
    let mut search = search_of("name: adaptive_asha, max_trials: 1, max_length: 100", "{}", 0);
    let trial = names(&start(&mut search)).remove(0);
    let metrics = Map::from_iter([("loss".to_owned(), json!(1))]);
    let at = |steps| Event::Validated { request: trial.clone(), metrics: metrics.clone(), steps };
    assert_eq!(search.on(at(99)).unwrap(), []);
    assert!(matches!(search.on(at(100)).unwrap().as_slice(), [Action::Stop { .. }]));
}

/// Each report is worse than all before it.
fn always_worse() -> impl FnMut(&SimulatedTrial, u64) -> Map<String, Value> {
    let mut reports = 0;
    move |_, steps| {
        reports += 1;
        Map::from_iter([("loss".to_owned(), json!(reports)), ("t".to_owned(), json!(steps))])
    }
}

/// Plays a search to its end: at how many steps its trials ended.
fn play(mut search: Search, habits: Habits) -> Vec<u64> {
    let mut simulation = Simulation::new(habits, always_worse());
    while let Some(event) = simulation.next() {
        let actions = search.on(event).unwrap();
        simulation.apply(actions);
    }
    assert_eq!(simulation.ended(), Some(false));
    let mut ends: Vec<u64> = simulation.trials().iter().map(|trial| trial.steps).collect();
    ends.sort_unstable();
    ends
}

#[test]
fn with_ever_worse_trials_only_the_first_reaches_the_end() {
    let search = "name: async_halving, num_rungs: 3, max_time: 900, time_metric: t, divisor: 3, max_trials: 10, \
                  max_concurrent_trials: 3";
    let habits = Habits { slots: 3, report_every: 100, length: 900, report_first: true };
    let mut expected = vec![100; 9];
    expected.push(900);
    assert_eq!(play(search_of(search, "{}", 0), habits), expected);
}

#[test]
fn with_ever_worse_trials_each_bracket_ends_one() {
    let search =
        "name: adaptive_asha, max_time: 90, time_metric: t, divisor: 3, max_trials: 9, max_concurrent_trials: 3";
    let habits = Habits { slots: 3, report_every: 10, length: 90, report_first: false };
    assert_eq!(play(search_of(search, "{}", 0), habits), [10, 10, 10, 10, 10, 30, 30, 90, 90]);
}

#[test]
fn a_preview_says_where_trials_will_end() {
    let planned = |searcher: &str| -> Vec<(u64, Ends)> {
        let config = config(searcher, "{}");
        let planned = preview(&config.searcher, &config.hyperparameters).unwrap();
        planned.into_iter().map(|planned| (planned.trials, planned.ends)).collect()
    };
    let at = |ends: &[(u64, u64)]| -> Vec<(u64, Ends)> {
        ends.iter().map(|(trials, time)| (*trials, Ends::At(*time))).collect()
    };
    let asha = "name: adaptive_asha, time_metric: t";
    assert_eq!(planned("name: single"), [(1, Ends::ByItself)]);
    assert_eq!(planned("name: random, max_trials: 30"), [(30, Ends::ByItself)]);
    assert_eq!(
        planned(&format!("{asha}, max_trials: 10, max_time: 900, divisor: 3, max_rungs: 10, max_concurrent_trials: 5")),
        at(&[(5, 100), (3, 300), (2, 900)])
    );
    assert_eq!(planned(&format!("{asha}, max_trials: 10, max_time: 100")), at(&[(6, 25), (4, 100)]));
    assert_eq!(
        planned(&format!("{asha}, max_trials: 64, max_time: 1000")),
        at(&[(34, 15), (20, 62), (7, 250), (3, 1000)])
    );
    assert_eq!(
        planned(&format!("{asha}, max_trials: 64, max_time: 1000, mode: aggressive")),
        at(&[(48, 15), (12, 62), (3, 250), (1, 1000)])
    );
}

/// A loss that falls with the steps towards a floor of the trial's own.
fn learning(trial: &SimulatedTrial, steps: u64) -> Map<String, Value> {
    let floor = trial.hyperparameters["x"].as_f64().unwrap_or_default();
    Map::from_iter([("loss".to_owned(), json!(floor + 1.0 / (1.0 + steps as f64))), ("t".to_owned(), json!(steps))])
}

/// Plays a search and stores and restores it before the events with these numbers; says everything that was done.
fn played(mut search: Search, habits: Habits, restored_before: impl Fn(usize) -> bool) -> (Vec<Vec<Action>>, Search) {
    let mut simulation = Simulation::new(habits, learning);
    let mut done = Vec::new();
    while let Some(event) = simulation.next() {
        if restored_before(done.len()) {
            search = serde_json::from_str(&serde_json::to_string(&search).unwrap()).unwrap();
        }
        let actions = search.on(event).unwrap();
        done.push(actions.clone());
        simulation.apply(actions);
    }
    (done, search)
}

const ADAPTIVE: &str = "name: adaptive_asha, max_time: 64, time_metric: t, divisor: 4";

#[test]
fn a_search_restored_at_any_event_goes_on_the_same() {
    let search = search_of(&format!("{ADAPTIVE}, max_trials: 50"), "{x: {type: double, minval: 0, maxval: 1}}", 5);
    let habits = Habits { slots: 6, report_every: 4, length: 64, report_first: true };
    let (expected, whole) = played(search.clone(), habits, |_| false);
    assert!(expected.len() > 200, "{}", expected.len());
    for event in 0..expected.len() {
        let (done, last) = played(search.clone(), habits, |number| number == event);
        assert!(done == expected && last == whole, "restored before event {event}");
    }
    assert!(played(search, habits, |_| true) == (expected, whole));
}

#[test]
fn a_large_search_restored_now_and_then_goes_on_the_same() {
    let search = search_of(
        &format!("{ADAPTIVE}, max_trials: 10000, max_concurrent_trials: 500"),
        "{x: {type: double, minval: 0, maxval: 1}}",
        6,
    );
    let habits = Habits { slots: 500, report_every: 4, length: 64, report_first: false };
    let (expected, whole) = played(search.clone(), habits, |_| false);
    let mut random = Random::new(7);
    let moments: Vec<usize> = (0..200).map(|_| random.below(expected.len())).collect();
    assert!(played(search, habits, |number| moments.contains(&number)) == (expected, whole));
}

/// Warnings in a list of actions: whose, and what.
fn warned(actions: &[Action]) -> Vec<(&str, &str)> {
    let warnings = actions.iter().filter_map(|action| match action {
        Action::Warn { request, text } => Some((request.as_str(), text.as_str())),
        _ => None,
    });
    warnings.collect()
}

#[test]
fn a_search_whose_metric_is_never_reported_warns_and_fails() {
    let mut search = search_of("name: random, max_trials: 2", "{x: {type: int, minval: 1, maxval: 8}}", 1);
    let trials = names(&start(&mut search));
    let actions = report(&mut search, &trials[0], json!({"acc": 0.5, "time": 1})).unwrap();
    let [(request, text)] = warned(&actions)[..] else { panic!("{actions:?}") };
    assert_eq!(request, trials[0]);
    assert!(text.starts_with("this trial has not reported `loss`, the searcher's metric: it reported `acc`, `time`"));
    assert_eq!(report(&mut search, &trials[0], json!({"acc": 0.6})).unwrap(), [], "once is enough");
    assert_eq!(exit_silently(&mut search, &trials[0]), []);
    let error = search.on(Event::Exited { request: trials[1].clone() }).unwrap_err().to_string();
    assert!(error.starts_with("no trial reported `loss`, the searcher's metric: the trials reported `acc`, `time`"));
    assert!(error.contains("\nhint: "), "{error}");
}

#[test]
fn a_search_with_one_report_of_its_metric_is_complete_and_the_silent_trials_are_named() {
    let mut search = search_of("name: grid", "{x: {type: categorical, vals: [1, 2]}}", 1);
    let trials = names(&start(&mut search));
    assert_eq!(report(&mut search, &trials[0], json!({"loss": "NaN"})).unwrap(), []);
    assert_eq!(exit_silently(&mut search, &trials[0]), []);
    let actions = exit_silently(&mut search, &trials[1]);
    let text = "this trial has not reported `loss`, the searcher's metric: it reported no validation metrics";
    assert!(warned(&actions)[0].1.starts_with(text), "{actions:?}");
    assert_eq!(shut_down(&actions[1..]), Some((false, false)));
}

#[test]
fn a_single_trial_without_its_metric_is_complete_with_a_warning() {
    let mut search = search_of("name: single", "{}", 1);
    let trials = names(&start(&mut search));
    let actions = exit_silently(&mut search, &trials[0]);
    assert_eq!((warned(&actions).len(), shut_down(&actions[1..])), (1, Some((false, false))), "{actions:?}");
}

#[test]
fn trials_that_fail_or_are_cancelled_or_were_complete_before_owe_no_metric() {
    let of = || search_of("name: random, max_trials: 2", "{x: {type: int, minval: 1, maxval: 8}}", 1);
    for (reason, ends) in [(EarlyExit::Errored, (false, true)), (EarlyExit::UserCancelled, (true, false))] {
        let mut search = of();
        let trials = names(&start(&mut search));
        trials.iter().for_each(|trial| assert_eq!(exit_early(&mut search, trial, reason), []));
        assert_eq!(exit_silently(&mut search, &trials[0]), []);
        assert_eq!(shut_down(&exit_silently(&mut search, &trials[1])), Some(ends));
    }
    // Somebody cancels the experiment after the first trial.
    let mut search = of();
    let trials = names(&start(&mut search));
    assert_eq!(warned(&exit_silently(&mut search, &trials[0])).len(), 1);
    exit_early(&mut search, &trials[1], EarlyExit::UserCancelled);
    assert_eq!(shut_down(&exit_silently(&mut search, &trials[1])), Some((false, false)));
    // The experiment was continued: its trials are not run again.
    let mut search = of();
    let trials = names(&start(&mut search));
    for trial in &trials {
        assert_eq!(search.on(Event::CompletedBefore { request: trial.clone() }).unwrap(), []);
    }
    assert_eq!(exit_silently(&mut search, &trials[0]), []);
    assert_eq!(shut_down(&exit_silently(&mut search, &trials[1])), Some((false, false)));
}
