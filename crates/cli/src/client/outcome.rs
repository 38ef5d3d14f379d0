//! How an experiment failed: which trial, which rank, with which exception.

use instep_api::experiments::Experiment;
use instep_api::identifiers::{ExperimentId, TrialId};
use instep_api::jobs::TaskResponse;
use instep_api::logs::ShownLine;
use instep_api::states::State;
use instep_api::trials::{Trial, TrialsResponse};
use instep_client::{Client, Query};

use super::requests::api;
use super::{shown, table};
use crate::report::Hinted;

/// With this begins what the master says of a search that failed.
const SEARCH_FAILED: &str = "its search failed";
/// How many last lines of a failed trial are shown.
const LAST_LINES: usize = 15;
/// How many trials are looked through for the reason of a search.
const LAST_TRIALS: usize = 5;

/// Why an experiment failed.
pub(super) struct Failure {
    /// For people, on one line.
    pub sentence: String,
    /// The trial whose log says more; none where no trial is to blame.
    trial: Option<Trial>,
    /// How the last run of that trial ended, where that is what the experiment failed with.
    ended: String,
}

/// An experiment did not complete; `with_lines` for somebody who has not seen its log.
pub(super) fn not_completed(client: &Client, experiment: &Experiment, with_lines: bool) -> anyhow::Error {
    let id = experiment.id;
    let all_logs = format!("see its logs with `instep experiment logs {id}`");
    if experiment.state != State::Error {
        return Hinted::new(format!("experiment {id} ended in state {}", shown::state(experiment.state)), all_logs)
            .into();
    }
    let failure = failure(client, id);
    let mut sentence = format!("experiment {id} failed");
    if !failure.sentence.is_empty() {
        sentence.push_str(&format!(": {}", failure.sentence));
    }
    let Some(trial) = failure.trial else { return Hinted::new(sentence, all_logs).into() };
    if with_lines && !failure.ended.is_empty() {
        let lines = last_lines(client, &trial, &failure.ended).unwrap_or_default();
        sentence.extend(lines.iter().map(|line| format!("\n    | {line}")));
    }
    Hinted::new(sentence, format!("see its logs with `instep trial logs {}`", trial.id)).into()
}

/// Why an experiment in state error failed: its search, else the first of its trials. What cannot be asked is left out.
pub(super) fn failure(client: &Client, id: ExperimentId) -> Failure {
    let trials = client.get::<TrialsResponse>(&format!("/api/v1/experiments/{id}/trials"));
    let trials: Vec<Trial> = trials.map(|found| found.trials).unwrap_or_default();
    let mut failed: Vec<&Trial> = trials.iter().filter(|trial| trial.state == State::Error).collect();
    // One that never got slots has nothing to tell.
    failed.sort_by_key(|trial| (trial.first_run_time.is_none(), trial.end_time));
    // A search that fails takes all of its trials along, so the last ones say so.
    let ran = failed.iter().rev().filter(|trial| trial.first_run_time.is_some());
    let why = ran.take(LAST_TRIALS).find_map(|trial| of_search(&reason(client, trial)?).map(str::to_owned));
    if let Some(why) = why {
        let trial = blamed(&why).and_then(|id| trials.into_iter().find(|trial| trial.id == id));
        return Failure { sentence: why, trial, ended: String::new() };
    }
    let Some(first) = failed.first() else {
        let sentence = search_failure(client, trials).unwrap_or_default();
        return Failure { sentence, trial: None, ended: String::new() };
    };
    let ended = reason(client, first).unwrap_or_else(|| "it ended in state error".to_owned());
    let others = match failed.len() - 1 {
        0 => String::new(),
        others => format!("; {others} more failed"),
    };
    Failure { sentence: format!("trial {}, {ended}{others}", first.id), trial: Some((*first).clone()), ended }
}

/// What the master says of a search that failed, from the reason for which it stopped a trial.
fn of_search(reason: &str) -> Option<&str> {
    reason.find(SEARCH_FAILED).map(|at| &reason[at..])
}

/// The trial that a search failed on.
fn blamed(why: &str) -> Option<TrialId> {
    why.strip_prefix(SEARCH_FAILED)?.strip_prefix(" on trial ")?.split(':').next()?.parse().ok().map(TrialId)
}

/// How the last run of a trial ended.
pub(super) fn reason(client: &Client, trial: &Trial) -> Option<String> {
    let task: TaskResponse = client.get(&api(&["tasks", &trial.task_id])).ok()?;
    let last = task.task.allocations.into_iter().max_by(|a, b| a.end_time.cmp(&b.end_time))?;
    last.exit_reason.filter(|reason| !reason.is_empty()).map(|reason| table::on_one_line(&reason))
}

/// Why the search failed, which the master says in the log of the trial that it failed with: one of the last.
fn search_failure(client: &Client, mut trials: Vec<Trial>) -> Option<String> {
    trials.sort_by_key(|trial| std::cmp::Reverse(trial.end_time));
    let why = trials.iter().take(LAST_TRIALS).find_map(|trial| last_error(client, trial).ok().flatten())?;
    Some(why.strip_prefix("the experiment fails: ").unwrap_or(&why).to_owned())
}

/// The first line of the last error in a trial's log; its hint is not among it.
fn last_error(client: &Client, trial: &Trial) -> anyhow::Result<Option<String>> {
    let query = Query::new().with("limit", 1).with("orderBy", "ORDER_BY_DESC").with("levels", "LOG_LEVEL_ERROR");
    let line = client.stream::<ShownLine>(&format!("/api/v1/trials/{}/logs{query}", trial.id), None)?.next();
    Ok(line.transpose()?.and_then(|line| line.log.lines().next().map(str::to_owned)))
}

/// The last lines of the rank that a reason names, else of all.
fn last_lines(client: &Client, trial: &Trial, why: &str) -> anyhow::Result<Vec<String>> {
    let rank: Option<i64> = why.strip_prefix("rank ").and_then(|rest| rest.split([':', ' ']).next()?.parse().ok());
    let query = Query::new().with("limit", LAST_LINES).with("orderBy", "ORDER_BY_DESC").with_some("rankIds", rank);
    let mut lines = Vec::new();
    for line in client.stream::<ShownLine>(&format!("/api/v1/trials/{}/logs{query}", trial.id), None)? {
        lines.push(table::on_one_line(line?.log.trim_end()));
    }
    lines.reverse();
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_failed_names_the_trial_it_failed_on() {
        let why = "its search failed on trial 12: a validation has no searcher metric `loss`, only epochs, los";
        assert_eq!(of_search(&format!("it was stopped: {why}")), Some(why));
        assert_eq!(of_search("rank 1: RuntimeError: shape mismatch (exit code 1)"), None);
        assert_eq!(blamed(why), Some(TrialId(12)));
        assert_eq!(blamed("its search failed: its state is damaged"), None);
    }
}
