//! `instep trial`.

use clap::{Args, Subcommand};
use instep_api::goodput::TrialGoodput;
use instep_api::identifiers::{ExperimentId, TrialId};
use instep_api::states::State;
use instep_api::trials::{Trial, TrialResponse, TrialsResponse};
use instep_client::Client;
use serde::Serialize;

use super::checkpoint::Which;
use super::control::Retention;
use super::dialog::say;
use super::export::{ExportArguments, save};
use super::logs::LogArguments;
use super::metrics::MetricArguments;
use super::options::Common;
use super::requests::post_empty;
use super::{checkpoint, goodput, logs, lookup, metrics, outcome, session, shown, table};

#[derive(Debug, Args)]
pub(crate) struct TrialArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

/// What can be set on a trial.
#[derive(Debug, Subcommand)]
enum Set {
    /// Set for how many days after its end its logs are kept
    LogRetention {
        /// Its id
        id: TrialId,
        #[command(flatten)]
        days: Retention,
    },
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the trials of an experiment
    #[command(visible_alias = "ls")]
    List {
        /// Experiment [default: your newest]
        experiment: Option<ExperimentId>,
    },
    /// Show trials in detail, or your newest
    Describe {
        /// Their ids, as `instep trial list EXPERIMENT` shows them
        ids: Vec<TrialId>,
    },
    /// Summarise or follow its metrics
    Metrics {
        /// Trial [default: your newest]
        id: Option<TrialId>,
        #[command(flatten)]
        metrics: MetricArguments,
    },
    /// Print its logs
    Logs {
        /// Trial [default: your newest]
        id: Option<TrialId>,
        #[command(flatten)]
        logs: LogArguments,
    },
    /// Export all its metrics as CSV or JSON lines
    Export {
        /// Trial [default: your newest]
        id: Option<TrialId>,
        #[command(flatten)]
        export: ExportArguments,
    },
    /// Kill trials at once; they count as cancelled
    Kill {
        /// Their ids, as `instep trial list EXPERIMENT` shows them
        #[arg(required = true)]
        ids: Vec<TrialId>,
    },
    /// Set for how many days after its end its logs are kept
    #[command(subcommand)]
    Set(Set),
    /// List its checkpoints
    ListCheckpoints {
        /// Trial [default: your newest]
        id: Option<TrialId>,
        #[command(flatten)]
        which: Which,
    },
}

pub(crate) fn run(arguments: TrialArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    let client = session::connect(&common)?;
    match arguments.verb {
        Verb::List { experiment } => list(&client, &common, lookup::experiment_or_newest(&client, experiment)?),
        Verb::Describe { ids } if ids.is_empty() => {
            describe(&client, &common, &[lookup::trial_or_newest(&client, None)?])
        }
        Verb::Describe { ids } => describe(&client, &common, &ids),
        Verb::Metrics { id, metrics } => {
            metrics::print(&client, lookup::trial_or_newest(&client, id)?, &metrics, common.json)
        }
        Verb::Logs { id, logs } => {
            let path = format!("/api/v1/trials/{}/logs", lookup::trial_or_newest(&client, id)?);
            logs::print(&client, &path, &logs, common.json)
        }
        Verb::Export { id, export } => {
            save(&client, &format!("trials/{}", lookup::trial_or_newest(&client, id)?), &export)
        }
        Verb::Set(Set::LogRetention { id, days }) => days.set(&client, &format!("trials/{id}")),
        Verb::Kill { ids } => ids.iter().try_for_each(|id| {
            post_empty(&client, &format!("/api/v1/trials/{id}/kill"))?;
            say(&format!("ending trial {id}"));
            Ok(())
        }),
        Verb::ListCheckpoints { id, which } => {
            checkpoint::list(&client, &common, &format!("trials/{}", lookup::trial_or_newest(&client, id)?), &which)
        }
    }
}

/// Prints the trials of an experiment.
pub(super) fn list(client: &Client, common: &Common, experiment: ExperimentId) -> anyhow::Result<()> {
    let found: TrialsResponse = client.get(&format!("/api/v1/experiments/{experiment}/trials"))?;
    if common.json {
        return table::json(&found.trials);
    }
    print_list(&found.trials);
    Ok(())
}

/// Prints trials as a table.
pub(super) fn print_list(trials: &[Trial]) {
    let mut table =
        table::Table::new(&["TRIAL", "STATE", "STEPS", "BEST", "STARTED", "TOOK", "CHECKPOINTS", "HPARAMS"]);
    for trial in trials {
        table.row(vec![
            trial.id.to_string(),
            shown::state(trial.state),
            trial.total_batches_processed.to_string(),
            trial.searcher_metric_value.map(shown::number).unwrap_or_default(),
            shown::optional_time(trial.first_run_time),
            took(trial),
            trial.checkpoint_count.to_string(),
            hparams(trial),
        ]);
    }
    table.print("no trials yet", "the script creates one when it runs");
}

/// How long it has run, without the times in which it waited for slots; nothing before it has.
fn took(trial: &Trial) -> String {
    trial.first_run_time.map(|_| shown::duration(trial.wall_clock_time as i64)).unwrap_or_default()
}

fn hparams(trial: &Trial) -> String {
    let pairs = trial.hparams.as_object().into_iter().flatten();
    pairs.map(|(name, value)| format!("{name}={}", shown::value(value))).collect::<Vec<_>>().join(" ")
}

/// A trial, with what it takes another question to know.
#[derive(Serialize)]
struct Described {
    #[serde(flatten)]
    trial: Trial,
    goodput: Option<TrialGoodput>,
}

fn describe(client: &Client, common: &Common, ids: &[TrialId]) -> anyhow::Result<()> {
    let mut trials = Vec::new();
    for id in ids {
        let trial = client.get::<TrialResponse>(&format!("/api/v1/trials/{id}"))?.trial;
        trials.push(Described { trial, goodput: goodput::of_trial(client, *id)? });
    }
    if common.json {
        return table::json(&trials);
    }
    for (index, Described { trial, goodput }) in trials.iter().enumerate() {
        if index > 0 {
            crate::console::print(b"\n");
        }
        let mut fields = vec![
            ("Trial", trial.id.to_string()),
            ("Experiment", trial.experiment_id.to_string()),
            ("State", shown::state(trial.state)),
            ("Doing", trial.runner_state.clone()),
            ("Hyperparameters", hparams(trial)),
            ("Steps", trial.total_batches_processed.to_string()),
            ("Best", trial.searcher_metric_value.map(shown::number).unwrap_or_default()),
            ("Created", shown::time(trial.start_time)),
            ("Started", shown::optional_time(trial.first_run_time)),
            ("Ended", shown::optional_time(trial.end_time)),
            ("Took", took(trial)),
            ("Checkpoints", format!("{} ({})", trial.checkpoint_count, shown::size(trial.total_checkpoint_size.0))),
            ("Task", trial.task_id.clone()),
        ];
        fields.extend(goodput.iter().flat_map(goodput::fields));
        if trial.state == State::Error {
            fields.extend(outcome::reason(client, trial).map(|reason| ("Failed", reason)));
        }
        table::fields(&fields);
    }
    Ok(())
}
