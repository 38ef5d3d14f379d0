//! How an experiment failed: which trial, which rank, with which exception.

use instep_api::experiments::Experiment;
use instep_api::jobs::TaskResponse;
use instep_api::logs::ShownLine;
use instep_api::states::State;
use instep_api::trials::{Trial, TrialsResponse};
use instep_client::{Client, Query};

use super::requests::api;
use super::{shown, table};
use crate::report::Hinted;

/// How many last lines of a failed trial are shown.
const LAST_LINES: usize = 15;
/// How many trials are looked through for the reason of a search.
const LAST_TRIALS: usize = 5;

/// An experiment did not complete; `with_lines` for somebody who has not seen its log.
pub(super) fn not_completed(client: &Client, experiment: &Experiment, with_lines: bool) -> anyhow::Error {
    let id = experiment.id;
    let all_logs = format!("see its logs with `instep experiment logs {id}`");
    if experiment.state != State::Error {
        return Hinted::new(format!("experiment {id} ended in state {}", shown::state(experiment.state)), all_logs)
            .into();
    }
    // The error is told in any case; what cannot be asked is left out.
    let trials = client.get::<TrialsResponse>(&format!("/api/v1/experiments/{id}/trials"));
    let trials: Vec<Trial> = trials.map(|found| found.trials).unwrap_or_default();
    let mut failed: Vec<&Trial> = trials.iter().filter(|trial| trial.state == State::Error).collect();
    // One that never got slots has nothing to tell.
    failed.sort_by_key(|trial| (trial.first_run_time.is_none(), trial.end_time));
    let Some(first) = failed.first() else {
        let why = search_failure(client, trials).map(|why| format!(": {why}")).unwrap_or_default();
        return Hinted::new(format!("experiment {id} failed{why}"), all_logs).into();
    };
    let why = reason(client, first).unwrap_or_else(|| "it ended in state error".to_owned());
    let others = match failed.len() - 1 {
        0 => String::new(),
        others => format!("; {others} more failed"),
    };
    let mut sentence = format!("experiment {id} failed: trial {}, {why}{others}", first.id);
    if with_lines {
        let lines = last_lines(client, first, &why).unwrap_or_default();
        sentence.extend(lines.iter().map(|line| format!("\n    | {line}")));
    }
    Hinted::new(sentence, format!("see its logs with `instep trial logs {}`", first.id)).into()
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
