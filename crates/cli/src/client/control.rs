//! What people do to an experiment that runs: pause it, end it, change its place in the queue or what it keeps.

use clap::{Args, Subcommand};
use instep_api::identifiers::ExperimentId;
use instep_client::{Client, Query};
use serde_json::{Value, json};

use super::dialog::{confirm, say};
use super::requests::api;
use super::{lookup, shown, table};

/// What can be set on an experiment.
#[derive(Debug, Subcommand)]
pub(super) enum Set {
    /// Set the name
    Name {
        /// Its id, as `instep experiment list` shows it
        id: ExperimentId,
        /// The new name
        name: String,
    },
    /// Set the description
    Description {
        /// Its id, as `instep experiment list` shows it
        id: ExperimentId,
        /// The new description
        description: String,
    },
    /// Set the notes
    Notes {
        /// Its id, as `instep experiment list` shows it
        id: ExperimentId,
        /// The new notes
        notes: String,
    },
    /// Set the priority, 1 to 99; lower numbers go first
    Priority {
        /// Its id, as `instep experiment list` shows it
        id: ExperimentId,
        /// 1 to 99; 1 goes first
        #[arg(value_parser = clap::value_parser!(i64).range(1..=99))]
        priority: i64,
    },
    /// Set the weight for fair-share scheduling
    Weight {
        /// Its id, as `instep experiment list` shows it
        id: ExperimentId,
        /// More than 0; twice the weight gets twice the slots
        weight: f64,
    },
    /// Limit the slots of all its trials together; `none` removes the limit
    MaxSlots {
        /// Its id, as `instep experiment list` shows it
        id: ExperimentId,
        /// Slots, or `none`
        slots: String,
    },
    /// Set which checkpoints to keep, and delete the others
    GcPolicy(PolicyArguments),
    /// Set for how many days after their end the logs of its trials are kept
    LogRetention {
        /// Its id, as `instep experiment list` shows it
        id: ExperimentId,
        #[command(flatten)]
        days: Retention,
    },
}

/// For how long logs are kept.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct Retention {
    /// Keep them for this many days
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..=32_767))]
    days: Option<i64>,
    /// Keep them for ever
    #[arg(long)]
    forever: bool,
}

impl Retention {
    /// Sets it for `what`, such as `trials/7`.
    pub(super) fn set(&self, client: &Client, what: &str) -> anyhow::Result<()> {
        let days = if self.forever { -1 } else { self.days.unwrap_or(-1) };
        let _: Value = client.put(&format!("/api/v1/{what}/retain_logs"), &json!({"numDays": days}))?;
        Ok(())
    }
}

#[derive(Debug, Args)]
pub(super) struct PolicyArguments {
    /// Its id, as `instep experiment list` shows it
    id: ExperimentId,
    /// Keep the N best of the experiment
    #[arg(long, value_name = "N")]
    save_experiment_best: u32,
    /// Keep the N best of every trial
    #[arg(long, value_name = "N")]
    save_trial_best: u32,
    /// Keep the N latest of every trial
    #[arg(long, value_name = "N")]
    save_trial_latest: u32,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

/// Sets something.
pub(super) fn set(client: &Client, what: Set) -> anyhow::Result<()> {
    let resources = |change: Value| json!({"resources": change});
    match what {
        Set::Name { id, name } => patch(client, id, json!({"name": name})),
        Set::Description { id, description } => patch(client, id, json!({"description": description})),
        Set::Notes { id, notes } => patch(client, id, json!({"notes": notes})),
        Set::Priority { id, priority } => patch(client, id, resources(json!({"priority": priority}))),
        Set::Weight { id, weight } => patch(client, id, resources(json!({"weight": weight}))),
        Set::MaxSlots { id, slots } => {
            let slots = if slots == "none" { None } else { Some(slots.parse::<u32>()?) };
            patch(client, id, resources(json!({"maxSlots": slots})))
        }
        Set::GcPolicy(policy) => keep(client, &policy),
        Set::LogRetention { id, days } => days.set(client, &format!("experiments/{id}")),
    }
}

fn patch(client: &Client, id: ExperimentId, mut change: Value) -> anyhow::Result<()> {
    change["id"] = json!(id);
    let _: Value = client.patch(&format!("/api/v1/experiments/{id}"), &change)?;
    Ok(())
}

/// Says what would be deleted, asks, and does it.
fn keep(client: &Client, policy: &PolicyArguments) -> anyhow::Result<()> {
    let id = policy.id;
    if !policy.yes {
        let query = Query::new()
            .with("save_experiment_best", policy.save_experiment_best)
            .with("save_trial_best", policy.save_trial_best)
            .with("save_trial_latest", policy.save_trial_latest);
        let found: Value = client.get(&format!("/experiments/{id}/preview_gc{query}"))?;
        let mut table = table::Table::new(&["TRIAL", "STEPS", "STATE", "CHECKPOINT"]);
        let doomed = found["checkpoints"].as_array().cloned().unwrap_or_default();
        for each in &doomed {
            table.row(vec![
                each["TrialID"].to_string(),
                each["StepsCompleted"].to_string(),
                shown::word(each["State"].as_str().unwrap_or_default()),
                each["UUID"].as_str().unwrap_or_default().to_owned(),
            ]);
        }
        table.print("no checkpoint would be deleted now", "");
        if !doomed.is_empty() {
            confirm(false, &format!("deleting {} checkpoints", doomed.len()))?;
        }
    }
    let storage = json!({
        "saveExperimentBest": policy.save_experiment_best,
        "saveTrialBest": policy.save_trial_best,
        "saveTrialLatest": policy.save_trial_latest,
    });
    patch(client, id, json!({"checkpointStorage": storage}))
}

/// Does something to experiments that needs no more words than its name.
pub(super) fn act(client: &Client, verb: &str, ids: &[ExperimentId], said: &str) -> anyhow::Result<()> {
    for id in ids {
        let path = api(&["experiments", &id.to_string(), verb]);
        // The master grants what has happened already, as Determined's does.
        let before = lookup::get_experiment(client, *id)?;
        let _: Value = client.post(&path, &json!({}))?;
        if before.state.is_terminal() {
            say(&format!("experiment {id} has already ended ({})", shown::state(before.state)));
        } else {
            say(&format!("experiment {id} {said}"));
        }
    }
    Ok(())
}
