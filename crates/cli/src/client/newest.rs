//! Which experiment or trial is meant when nobody names one: the user's newest, and people are told which that is.

use instep_api::experiments::{Experiment, ExperimentsResponse};
use instep_api::identifiers::{ExperimentId, TrialId};
use instep_client::{Client, Query};

use super::{experiment, say};
use crate::report::Hinted;

/// Experiments that are looked through for one with a trial.
const LOOKED_AT: i64 = 20;

/// The experiment with this number, else the newest.
pub(super) fn experiment(client: &Client, named: Option<ExperimentId>) -> anyhow::Result<ExperimentId> {
    if let Some(id) = named {
        return Ok(id);
    }
    let found = experiments(client)?.into_iter().next().ok_or_else(|| none("experiment"))?;
    say(&format!("experiment {} ({}), your newest", found.id, found.name));
    Ok(found.id)
}

/// The trial with this number, else the newest one of the newest experiment that has any.
pub(super) fn trial(client: &Client, named: Option<TrialId>) -> anyhow::Result<TrialId> {
    if let Some(id) = named {
        return Ok(id);
    }
    let found = experiments(client)?.into_iter().find(|found| found.num_trials > 0).ok_or_else(|| none("trial"))?;
    let trial = experiment::get(client, found.id)?.trial_ids.into_iter().max().ok_or_else(|| none("trial"))?;
    say(&format!("trial {trial} of experiment {} ({}), your newest", found.id, found.name));
    Ok(trial)
}

/// The user's own, the newest first.
fn experiments(client: &Client) -> anyhow::Result<Vec<Experiment>> {
    let query = Query::new()
        .with("limit", LOOKED_AT)
        .with("orderBy", "ORDER_BY_DESC")
        .with("archived", false)
        .with("users", client.user()?.username);
    let found: ExperimentsResponse = client.get(&format!("/api/v1/experiments{query}"))?;
    Ok(found.experiments)
}

fn none(what: &str) -> Hinted {
    Hinted::new(format!("you have no {what}s yet"), "list other users' experiments with `instep experiment list -a`")
}
