//! `instep experiment`.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use instep_api::experiments::{Experiment, ExperimentsResponse};
use instep_api::identifiers::ExperimentId;
use instep_api::states::State;
use instep_api::trials::TrialsResponse;
use instep_client::{Client, Query};
use serde_json::{Value, json};

use super::checkpoint::Which;
use super::dialog::{confirm, say};
use super::export::{ExportArguments, save};
use super::logs::LogArguments;
use super::metrics::MetricArguments;
use super::options::Common;
use super::requests::{api, delete, post_empty};
use super::{checkpoint, control, lookup, metrics, outcome, session, shown, submit, table, trial, trial_logs};
use crate::report::Hinted;

/// How often somebody who waits looks.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct ExperimentArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create an experiment from a configuration and code
    Create(Box<submit::CreateArguments>),
    /// Create an experiment with the code of another one
    Fork(submit::ForkArguments),
    /// Resume an ended experiment from its latest checkpoint
    Continue(submit::ContinueArguments),
    /// Pause experiments; their trials save a checkpoint first
    Pause {
        /// Their ids, as `instep experiment list` shows them
        #[arg(required = true)]
        ids: Vec<ExperimentId>,
    },
    /// Resume paused experiments
    #[command(visible_alias = "unpause")]
    Activate {
        /// Their ids, as `instep experiment list` shows them
        #[arg(required = true)]
        ids: Vec<ExperimentId>,
    },
    /// Cancel experiments; their trials save a checkpoint first
    Cancel {
        /// Their ids, as `instep experiment list` shows them
        #[arg(required = true)]
        ids: Vec<ExperimentId>,
    },
    /// Kill experiments at once
    Kill {
        /// Their ids, as `instep experiment list` shows them
        #[arg(required = true)]
        ids: Vec<ExperimentId>,
    },
    /// List experiments, newest first
    #[command(visible_alias = "ls")]
    List(ListArguments),
    /// Show experiments in detail
    Describe {
        /// Experiments [default: your newest]
        ids: Vec<ExperimentId>,
    },
    /// Print the configuration
    Config {
        /// Experiment [default: your newest]
        id: Option<ExperimentId>,
    },
    /// Summarise or follow the metrics of the first trial
    Metrics {
        /// Experiment [default: your newest]
        id: Option<ExperimentId>,
        #[command(flatten)]
        metrics: MetricArguments,
    },
    /// Print the logs of its trials
    Logs {
        /// Experiment [default: your newest]
        id: Option<ExperimentId>,
        #[command(flatten)]
        logs: LogArguments,
    },
    /// Export all metrics of all trials as CSV or JSON lines
    Export {
        /// Its id, as `instep experiment list` shows it
        id: ExperimentId,
        #[command(flatten)]
        export: ExportArguments,
    },
    /// List its trials
    #[command(visible_alias = "lt")]
    ListTrials {
        /// Experiment [default: your newest]
        id: Option<ExperimentId>,
    },
    /// List its checkpoints
    #[command(visible_alias = "lc")]
    ListCheckpoints {
        /// Experiment [default: your newest]
        id: Option<ExperimentId>,
        #[command(flatten)]
        which: Which,
    },
    /// Wait until it ends; exit with 0 if it completed
    Wait {
        /// Experiment [default: your newest]
        id: Option<ExperimentId>,
    },
    /// Add or remove labels
    #[command(subcommand)]
    Label(Label),
    /// Set its name, description, notes, priority, slots, or checkpoints and logs to keep
    #[command(subcommand)]
    Set(control::Set),
    /// Move it to another project
    Move {
        /// Its id, as `instep experiment list` shows it
        id: ExperimentId,
        /// Name of the workspace that the project belongs to
        workspace: String,
        /// Name of the project
        project: String,
    },
    /// Archive ended experiments, which hides them from lists
    Archive {
        /// Their ids, as `instep experiment list` shows them
        #[arg(required = true)]
        ids: Vec<ExperimentId>,
    },
    /// Unarchive experiments
    Unarchive {
        /// Their ids, as `instep experiment list` shows them
        #[arg(required = true)]
        ids: Vec<ExperimentId>,
    },
    /// Download the code that it was created with, as experiment-ID.tgz
    DownloadModelDef {
        /// Its id, as `instep experiment list` shows it
        id: ExperimentId,
        /// Folder to write it to
        #[arg(short, long, value_name = "FOLDER", default_value = ".")]
        output_dir: PathBuf,
    },
    /// Delete the files that ended experiments wrote for TensorBoard
    DeleteTbFiles {
        /// Their ids, as `instep experiment list` shows them
        #[arg(required = true)]
        ids: Vec<ExperimentId>,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Delete ended experiments with their metrics, logs and checkpoint files
    Delete {
        /// Their ids, as `instep experiment list` shows them
        #[arg(required = true)]
        ids: Vec<ExperimentId>,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
struct ListArguments {
    /// Include archived experiments and those of other users
    #[arg(short, long)]
    all: bool,
    /// Show only this state: queued, pulling, starting, running, paused, completed, canceled or error; may be repeated
    #[arg(long = "state", value_name = "STATE", value_parser = state)]
    states: Vec<State>,
    /// Show only this label; may be repeated
    #[arg(long = "label", value_name = "LABEL")]
    labels: Vec<String>,
    /// Show only names that contain this text
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// Show at most this many
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: i64,
}

#[derive(Debug, Subcommand)]
enum Label {
    /// Add a label
    Add {
        /// Its id, as `instep experiment list` shows it
        id: ExperimentId,
        /// A word or several
        label: String,
    },
    /// Remove a label
    Remove {
        /// Its id, as `instep experiment list` shows it
        id: ExperimentId,
        /// A word or several
        label: String,
    },
}

fn state(text: &str) -> Result<State, String> {
    let name = format!("STATE_{}", text.to_uppercase().replace(['-', ' '], "_"));
    name.parse().map_err(|_| "unknown state".to_owned())
}

pub(crate) fn run(arguments: ExperimentArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    let client = session::connect(&common)?;
    match arguments.verb {
        Verb::Create(arguments) => submit::create(&client, &common, *arguments),
        Verb::Fork(arguments) => submit::fork(&client, &common, arguments),
        Verb::Continue(arguments) => submit::continue_experiment(&client, &common, &arguments),
        Verb::Pause { ids } => control::act(&client, "pause", &ids, "is pausing"),
        Verb::Activate { ids } => control::act(&client, "activate", &ids, "is queued"),
        Verb::Cancel { ids } => control::act(&client, "cancel", &ids, "is stopping"),
        Verb::Kill { ids } => control::act(&client, "kill", &ids, "is being killed"),
        Verb::List(list_arguments) => list(&client, &common, &list_arguments),
        Verb::Describe { ids } if ids.is_empty() => {
            describe(&client, &common, &[lookup::experiment_or_newest(&client, None)?])
        }
        Verb::Describe { ids } => describe(&client, &common, &ids),
        Verb::Config { id } => {
            table::json(&lookup::get_experiment(&client, lookup::experiment_or_newest(&client, id)?)?.config)
        }
        Verb::Metrics { id, metrics } => {
            let trial = lookup::first_trial(&client, lookup::experiment_or_newest(&client, id)?)?;
            metrics::print(&client, trial, &metrics, common.json)
        }
        Verb::Logs { id, logs } => {
            trial_logs::print(&client, lookup::experiment_or_newest(&client, id)?, &logs, common.json)
        }
        Verb::Export { id, export } => save(&client, &format!("experiments/{id}"), &export),
        Verb::ListTrials { id } => trial::list(&client, &common, lookup::experiment_or_newest(&client, id)?),
        Verb::ListCheckpoints { id, which } => checkpoint::list(
            &client,
            &common,
            &format!("experiments/{}", lookup::experiment_or_newest(&client, id)?),
            &which,
        ),
        Verb::Wait { id } => wait(&client, lookup::experiment_or_newest(&client, id)?),
        Verb::Label(Label::Add { id, label }) => {
            let path = api(&["experiments", &id.to_string(), "labels", &label]);
            let _: Value = client.put(&path, &json!({}))?;
            Ok(())
        }
        Verb::Label(Label::Remove { id, label }) => {
            delete(&client, &api(&["experiments", &id.to_string(), "labels", &label]))
        }
        Verb::Set(what) => control::set(&client, what),
        Verb::Move { id, workspace, project } => {
            let destination = lookup::project(&client, &workspace, &project)?.id;
            let path = format!("/api/v1/experiments/{id}/move");
            let _: Value = client.post(&path, &json!({"experimentId": id, "destinationProjectId": destination}))?;
            Ok(())
        }
        Verb::Archive { ids } => each(&ids, |id| post_empty(&client, &format!("/api/v1/experiments/{id}/archive"))),
        Verb::Unarchive { ids } => each(&ids, |id| post_empty(&client, &format!("/api/v1/experiments/{id}/unarchive"))),
        Verb::DownloadModelDef { id, output_dir } => download_code(&client, id, &output_dir),
        Verb::DeleteTbFiles { ids, yes } => {
            let which: Vec<String> = ids.iter().map(ToString::to_string).collect();
            confirm(yes, &format!("deleting what experiment {} wrote for TensorBoard", which.join(", ")))?;
            each(&ids, |id| {
                delete(&client, &api(&["experiments", &id.to_string(), "tensorboard-files"]))?;
                say(&format!("deleted what experiment {id} wrote for TensorBoard"));
                Ok(())
            })
        }
        Verb::Delete { ids, yes } => {
            let which: Vec<String> = ids.iter().map(ToString::to_string).collect();
            confirm(yes, &format!("deleting experiment {} with the files of its checkpoints", which.join(", ")))?;
            each(&ids, |id| {
                delete(&client, &format!("/api/v1/experiments/{id}"))?;
                say(&format!("deleted experiment {id}"));
                Ok(())
            })
        }
    }
}

fn each(ids: &[ExperimentId], action: impl Fn(ExperimentId) -> anyhow::Result<()>) -> anyhow::Result<()> {
    ids.iter().try_for_each(|id| action(*id))
}

fn list(client: &Client, common: &Common, arguments: &ListArguments) -> anyhow::Result<()> {
    let mut query = Query::new()
        .with("limit", if arguments.limit > 0 { arguments.limit } else { -1 })
        .with("orderBy", "ORDER_BY_DESC")
        .with_all("states", arguments.states.iter().map(|state| state.as_str()))
        .with_all("labels", &arguments.labels)
        .with_some("name", arguments.name.as_ref());
    if !arguments.all {
        query = query.with("archived", false).with("users", client.user()?.username);
    }
    let found: ExperimentsResponse = client.get(&format!("/api/v1/experiments{query}"))?;
    if common.json {
        return table::json(&found.experiments);
    }
    print_list(&found.experiments, if arguments.all { "" } else { "-a includes archived and other users' ones" });
    let (shown, total) = (found.experiments.len() as i64, found.pagination.total);
    if shown > 0 && shown < total {
        say(&format!("the newest {shown} of {total}; show more with --limit"));
    }
    Ok(())
}

/// Prints experiments as a table.
pub(super) fn print_list(experiments: &[Experiment], hint: &str) {
    let headings = ["ID", "NAME", "STATE", "PROGRESS", "OWNER", "STARTED", "TOOK", "TRIALS", "PROJECT"];
    let mut table = table::Table::new(&headings);
    for experiment in experiments {
        table.row(vec![
            experiment.id.to_string(),
            experiment.name.clone(),
            shown::state(experiment.state),
            shown::progress(experiment.progress),
            experiment.username.clone(),
            shown::optional_time(experiment.first_run_time),
            experiment.run_seconds().map(shown::duration).unwrap_or_default(),
            experiment.num_trials.to_string(),
            format!("{}/{}", experiment.workspace_name, experiment.project_name),
        ]);
    }
    let hint = if hint.is_empty() {
        "`instep experiment create CONFIG FOLDER` creates one, and so does a script with `instep.core.init()`"
    } else {
        hint
    };
    table.print("no experiments", hint);
}

fn describe(client: &Client, common: &Common, ids: &[ExperimentId]) -> anyhow::Result<()> {
    let found: Vec<Experiment> =
        ids.iter().map(|id| lookup::get_experiment(client, *id)).collect::<anyhow::Result<_>>()?;
    if common.json {
        return table::json(&found);
    }
    for (index, experiment) in found.iter().enumerate() {
        if index > 0 {
            crate::console::print(b"\n");
        }
        print_one(client, experiment)?;
    }
    Ok(())
}

fn print_one(client: &Client, experiment: &Experiment) -> anyhow::Result<()> {
    let best = experiment.best_trial_searcher_metric.map(|value| {
        let trial = experiment.best_trial_id.map(|id| format!(" (trial {id})")).unwrap_or_default();
        format!("{} {}{trial}", experiment.searcher_metric, shown::number(value))
    });
    let failed = match experiment.state {
        State::Error => outcome::failure(client, experiment.id).sentence,
        _ => String::new(),
    };
    table::fields(&[
        ("Experiment", experiment.id.to_string()),
        ("Name", experiment.name.clone()),
        ("Description", experiment.description.clone()),
        ("Labels", shown::list(&experiment.labels)),
        ("State", shown::state(experiment.state)),
        ("Failed", failed),
        ("Progress", shown::progress(experiment.progress)),
        ("Owner", experiment.username.clone()),
        ("Project", format!("{}/{}", experiment.workspace_name, experiment.project_name)),
        ("Submitted", shown::time(experiment.start_time)),
        ("Waited", waited(experiment)),
        ("Started", shown::optional_time(experiment.first_run_time)),
        ("Ended", shown::optional_time(experiment.end_time)),
        ("Took", experiment.run_seconds().map(shown::duration).unwrap_or_default()),
        ("Best", best.unwrap_or_default()),
        ("Checkpoints", format!("{} ({})", experiment.checkpoint_count, shown::size(experiment.checkpoint_size.0))),
        ("External id", experiment.external_experiment_id.clone().unwrap_or_default()),
        ("Page", format!("{}/det/experiments/{}", client.address(), experiment.id)),
    ]);
    let trials: TrialsResponse = client.get(&format!("/api/v1/experiments/{}/trials", experiment.id))?;
    crate::console::print(b"\n");
    trial::print_list(&trials.trials);
    Ok(())
}

/// How long it waited for slots, if it did.
fn waited(experiment: &Experiment) -> String {
    let seconds = experiment.duration - experiment.run_seconds().unwrap_or(0);
    if seconds > 0 { format!("{} for slots", shown::duration(seconds)) } else { String::new() }
}

fn wait(client: &Client, id: ExperimentId) -> anyhow::Result<()> {
    loop {
        let found = lookup::get_experiment(client, id)?;
        let state = found.state;
        if state == State::Completed {
            return Ok(());
        }
        if state == State::Paused {
            let hint = format!("resume it with `instep experiment activate {id}`");
            return Err(Hinted::new(format!("experiment {id} is paused, so it would never end"), hint).into());
        }
        if state.is_terminal() {
            return Err(outcome::not_completed(client, &found, true));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Saves the code of an experiment; never over another file.
fn download_code(client: &Client, id: ExperimentId, folder: &Path) -> anyhow::Result<()> {
    let path = folder.join(format!("experiment-{id}.tgz"));
    let shown_path = path.display();
    let mut code = client.download(&format!("/experiments/{id}/model_def"), "*/*")?;
    let mut file = File::create_new(&path).with_context(|| format!("cannot write {shown_path}"))?;
    let bytes = io::copy(&mut code, &mut file).with_context(|| format!("cannot write {shown_path}"))?;
    say(&format!("wrote {shown_path} ({})", shown::size(bytes as i64)));
    Ok(())
}
