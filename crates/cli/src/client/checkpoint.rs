//! `instep checkpoint`.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use instep_api::checkpoints::{
    Checkpoint, CheckpointResponse, CheckpointsResponse, DeleteCheckpointsRequest, RemoveFilesRequest,
};
use instep_api::identifiers::{ExperimentId, TrialId};
use instep_api::states::CheckpointState;
use instep_client::{Client, Query};
use serde_json::Value;

use super::dialog::{confirm, say};
use super::options::Common;
use super::requests::api;
use super::unpack::unpack;
use super::{lookup, session, shown, table};
use crate::report::Hinted;

#[derive(Debug, Args)]
pub(crate) struct CheckpointArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the checkpoints of an experiment or a trial
    #[command(visible_alias = "ls")]
    List {
        /// Experiment [default: your newest]
        experiment: Option<ExperimentId>,
        /// List the checkpoints of this trial
        #[arg(long, value_name = "ID", conflicts_with = "experiment")]
        trial: Option<TrialId>,
        #[command(flatten)]
        which: Which,
    },
    /// Show a checkpoint in detail
    Describe {
        /// Its UUID
        uuid: String,
    },
    /// Download a checkpoint's files from the master
    Download {
        /// Its UUID
        uuid: String,
        /// Download into this folder, which must not exist [default: checkpoints/UUID]
        #[arg(short, long, value_name = "FOLDER")]
        output_dir: Option<PathBuf>,
    },
    /// Delete checkpoints and their files
    Delete {
        /// Their UUIDs
        #[arg(required = true, value_delimiter = ',')]
        uuids: Vec<String>,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Delete some files of checkpoints; without --glob, only refresh the list of files
    Rm {
        /// Their UUIDs
        #[arg(required = true, value_delimiter = ',')]
        uuids: Vec<String>,
        /// Files to delete, such as '*.pt' or 'optimizer/**'; may be repeated
        #[arg(long, value_name = "PATTERN")]
        glob: Vec<String>,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

/// Which checkpoints are listed.
#[derive(Debug, Args)]
pub(super) struct Which {
    /// Show only the N best by the searcher's metric, best first
    #[arg(long, value_name = "N")]
    best: Option<usize>,
    /// Include deleted and incomplete checkpoints
    #[arg(short, long)]
    all: bool,
}

/// The states of checkpoints that have files to load.
const USABLE: [CheckpointState; 2] = [CheckpointState::Completed, CheckpointState::PartiallyDeleted];

pub(crate) fn run(arguments: CheckpointArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    let client = session::connect(&common)?;
    match arguments.verb {
        Verb::List { experiment, trial, which } => {
            let what = match trial {
                Some(trial) => format!("trials/{trial}"),
                None => format!("experiments/{}", lookup::experiment_or_newest(&client, experiment)?),
            };
            list(&client, &common, &what, &which)
        }
        Verb::Describe { uuid } => describe(&client, &common, &uuid),
        Verb::Download { uuid, output_dir } => download(&client, &uuid, output_dir),
        Verb::Delete { uuids, yes } => {
            confirm(yes, &format!("deleting the files of checkpoint {}", uuids.join(", ")))?;
            let deleted = uuids.join(", ");
            let request = DeleteCheckpointsRequest { checkpoint_uuids: Some(uuids) };
            let _: Value = client.delete_with("/api/v1/checkpoints", &request)?;
            say(&format!("deleted checkpoint {deleted}"));
            Ok(())
        }
        Verb::Rm { uuids, glob, yes } => {
            confirm(yes || glob.is_empty(), &format!("deleting files of checkpoint {}", uuids.join(", ")))?;
            let request = RemoveFilesRequest { checkpoint_uuids: Some(uuids), checkpoint_globs: Some(glob) };
            let _: Value = client.post("/api/v1/checkpoints/rm", &request)?;
            Ok(())
        }
    }
}

/// Prints the checkpoints of `what`, such as `trials/7`.
pub(super) fn list(client: &Client, common: &Common, what: &str, which: &Which) -> anyhow::Result<()> {
    let mut query = match which.best {
        Some(count) => Query::new().with("limit", count).with("sortByAttr", "SORT_BY_SEARCHER_METRIC"),
        None => Query::new().with("sortByAttr", "SORT_BY_END_TIME"),
    };
    if !which.all {
        query = query.with_all("states", USABLE.iter().map(|state| state.as_str()));
    }
    let found: CheckpointsResponse = client.get(&format!("/api/v1/{what}/checkpoints{query}"))?;
    if common.json {
        return table::json(&found.checkpoints);
    }
    let mut table = table::Table::new(&["UUID", "TRIAL", "STEPS", "STATE", "METRIC", "FILES", "SIZE", "SAVED"]);
    for checkpoint in &found.checkpoints {
        table.row(vec![
            checkpoint.uuid.clone(),
            checkpoint.training.trial_id.map(|id| id.to_string()).unwrap_or_default(),
            shown::value(&checkpoint.metadata["steps_completed"]),
            shown::checkpoint_state(checkpoint.state),
            checkpoint.training.searcher_metric.map(shown::number).unwrap_or_default(),
            files(checkpoint).to_string(),
            shown::size(size(checkpoint)),
            shown::time(checkpoint.report_time),
        ]);
    }
    let hidden = if which.all { 0 } else { total(client, what)? - found.pagination.total };
    if hidden == 0 || !found.checkpoints.is_empty() {
        table.print("no checkpoints yet", "the script saves them with core.checkpoint.store_path");
    }
    if hidden > 0 {
        let checkpoints = shown::plural(hidden, "deleted or incomplete checkpoint");
        say(&format!("{checkpoints} not shown: include them with -a"));
    }
    Ok(())
}

/// How many checkpoints there are, whatever became of them.
fn total(client: &Client, what: &str) -> anyhow::Result<i64> {
    let found: CheckpointsResponse = client.get(&format!("/api/v1/{what}/checkpoints?limit=1"))?;
    Ok(found.pagination.total)
}

fn files(checkpoint: &Checkpoint) -> usize {
    checkpoint.resources.keys().filter(|name| !name.ends_with('/')).count()
}

fn size(checkpoint: &Checkpoint) -> i64 {
    checkpoint.resources.values().map(|size| size.0).sum()
}

fn get(client: &Client, uuid: &str) -> anyhow::Result<Checkpoint> {
    Ok(client.get::<CheckpointResponse>(&api(&["checkpoints", uuid]))?.checkpoint)
}

fn describe(client: &Client, common: &Common, uuid: &str) -> anyhow::Result<()> {
    let checkpoint = get(client, uuid)?;
    if common.json {
        return table::json(&checkpoint);
    }
    let training = &checkpoint.training;
    table::fields(&[
        ("Checkpoint", checkpoint.uuid.clone()),
        ("Experiment", training.experiment_id.map(|id| id.to_string()).unwrap_or_default()),
        ("Trial", training.trial_id.map(|id| id.to_string()).unwrap_or_default()),
        ("State", shown::checkpoint_state(checkpoint.state)),
        ("Saved", shown::time(checkpoint.report_time)),
        ("Metric", training.searcher_metric.map(shown::number).unwrap_or_default()),
        ("Metadata", checkpoint.metadata.to_string()),
        ("Storage", training.experiment_config["checkpoint_storage"].to_string()),
    ]);
    let mut table = table::Table::new(&["FILE", "SIZE"]);
    for (name, size) in checkpoint.resources.iter().filter(|(name, _)| !name.ends_with('/')) {
        table.row(vec![name.clone(), shown::size(size.0)]);
    }
    crate::console::print(b"\n");
    table.print("it has no files", "");
    Ok(())
}

/// Unpacks and verifies beside the place and then renames: what is there under its name is whole.
fn download(client: &Client, uuid: &str, output: Option<PathBuf>) -> anyhow::Result<()> {
    let folder = output.unwrap_or_else(|| PathBuf::from("checkpoints").join(uuid));
    let shown_folder = folder.display().to_string();
    if folder.exists() {
        return Err(Hinted::new(format!("{shown_folder} already exists"), "choose another with -o").into());
    }
    let resources = get(client, uuid)?.resources;
    let archive = client.download(&format!("/checkpoints/{}", instep_client::segment(uuid)), "application/x-tar")?;
    if let Some(parent) = folder.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    let mut name = folder.clone().into_os_string();
    name.push(format!(".part-{}", std::process::id()));
    let part = PathBuf::from(name);
    std::fs::create_dir(&part).with_context(|| format!("cannot create {}", part.display()))?;
    let arrived = unpack(archive, &part).map_err(anyhow::Error::from).and_then(|bytes| {
        // Files that somebody deleted on purpose are still in the manifest.
        instep_checkpoint::verify(&part, uuid, |name| resources.contains_key(name)).map_err(damaged)?;
        std::fs::rename(&part, &folder)?;
        Ok(bytes)
    });
    let bytes = arrived.map_err(|error| {
        // What came so far is of no use; if it cannot be removed, it at least does not bear the name.
        let _ = std::fs::remove_dir_all(&part);
        error.context(format!("cannot download checkpoint {uuid}"))
    })?;
    say(&format!("downloaded {}", shown::size(bytes as i64)));
    crate::console::print(format!("{shown_folder}\n").as_bytes());
    Ok(())
}

/// The files are not those that were saved.
fn damaged(error: instep_checkpoint::Error) -> anyhow::Error {
    let hint = "the file was damaged where it is stored: load an earlier checkpoint (`instep checkpoint list`)";
    Hinted::new(error.to_string(), hint).into()
}
