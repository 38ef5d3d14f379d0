//! Going on with an experiment that has ended.

use instep_api::config::{Sources, merge, parse_text};
use instep_api::error::Code;
use instep_api::experiments::CreateExperimentResponse;
use instep_api::identifiers::ExperimentId;
use instep_database::Subject;
use serde::Deserialize;
use serde_json::Value;

use super::call::Call;
use super::experiments::{may_start_from, ruled};
use super::failure::Failure;
use super::masks::unmasked;
use super::reply::Json;
use super::{pools, secrets};
use crate::clock::now;
use crate::config;

/// `POST /experiments/continue`
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContinueRequest {
    id: Option<ExperimentId>,
    #[serde(alias = "override_config")]
    override_config: Option<String>,
}

pub(crate) async fn carry_on(call: Call) -> Result<Json<CreateExperimentResponse>, Failure> {
    let request: ContinueRequest = call.json()?;
    let id = request.id.ok_or_else(|| Failure::invalid("id is missing"))?;
    call.may_change(Subject::Experiment(id)).await?;
    let database = &call.application.database;
    let experiment = database.experiment(id, now()).await?;
    let refused = |what: String| Err(Failure::new(Code::FailedPrecondition, what));
    if experiment.unmanaged {
        return refused(format!(
            "experiment {id} runs elsewhere: the master cannot continue it\nhint: start its script again"
        ));
    }
    if !experiment.state.is_terminal() {
        let state = experiment.state.as_str().trim_start_matches("STATE_").to_lowercase();
        return refused(format!("experiment {id} has not ended ({state}): only one that has can be continued"));
    }
    let over = changes(request.override_config.as_deref().unwrap_or_default())?;
    let sources = Sources { managed: true, name: experiment.name.clone(), ..Sources::default() };
    let (owner, workspace) = (experiment.user_id, experiment.workspace_id);
    let is_changed = over.as_object().is_some_and(|over| !over.is_empty());
    // It goes on as its owner, with the owner's rights and secrets: what it does is theirs to say.
    if is_changed && call.user()?.id != owner {
        return Err(Failure::forbidden(
            "only its owner may continue an experiment with another configuration: it runs with the owner's rights\n\
             hint: fork it; the fork runs with yours",
        ));
    }
    match (experiment.searcher_type.as_str(), is_changed) {
        ("single", _) | ("random" | "grid", false) => {}
        ("random" | "grid", true) => {
            return Err(Failure::invalid(format!(
                "experiment {id} searches at {}: its configuration cannot be changed\nhint: fork it instead",
                experiment.searcher_type
            )));
        }
        (other, _) => {
            return refused(format!("a search by {other} cannot be continued: its decisions are final"));
        }
    }
    let stored = experiment.config.clone().into_value();
    let text = merge(unmasked(over, [&stored])?, stored.clone()).to_string();
    let config = config::read(&text, &sources).map_err(Failure::invalid)?;
    let unruled = config.to_json();
    // Policies and bindings of pools may be newer than the experiment.
    let (_, config) = ruled(&call, text, config, &sources, workspace).await?;
    let laid = config.to_json();
    if config.searcher.name() != experiment.searcher_type {
        return Err(Failure::invalid(format!(
            "an experiment is continued as what it was: searcher.name must stay {}",
            experiment.searcher_type
        )));
    }
    // What a search has decided follows from these.
    let decisive = ["searcher", "hyperparameters"];
    if experiment.searcher_type != "single" && decisive.iter().any(|section| laid[section] != unruled[section]) {
        return refused(format!(
            "a configuration policy changes how experiment {id} searches: it cannot be continued\nhint: fork it instead"
        ));
    }
    if is_changed {
        may_start_from(&call, &config).await?;
    }
    secrets::check_for(&call, owner, &config.environment, workspace).await?;
    if laid != stored {
        let pool = pools::named_or_default(&config.resources.resource_pool).to_owned();
        database.replace_config(id, laid, pool, now()).await?;
    }
    call.application.cluster.continue_experiment(database.live_experiment(id, now()).await?).await?;
    let experiment = database.experiment(id, now()).await?;
    let config = experiment.config.clone();
    Ok(Json(CreateExperimentResponse { experiment, config, warnings: Vec::new() }))
}

fn changes(text: &str) -> Result<Value, Failure> {
    let found = parse_text(text).map_err(|mistakes| mistaken(&mistakes))?;
    match found {
        Value::Null => Ok(Value::Object(Default::default())),
        found @ Value::Object(_) => Ok(found),
        _ => Err(Failure::invalid("overrideConfig must be a map of keys")),
    }
}

fn mistaken(mistakes: &[instep_api::config::ConfigError]) -> Failure {
    Failure::invalid(mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}
