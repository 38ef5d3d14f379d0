//! What configurations must be: administrators say it for everywhere, those who may change a workspace for it.
//!
//! A policy has two parts. `invariant_config` is laid over every configuration that is submitted; `constraints` refuse
//! what asks for too many slots or too high a priority. What holds everywhere comes before what a workspace says.

use instep_api::config::{ConfigError, masked, merge, parse_text};
use instep_api::identifiers::WorkspaceId;
use instep_api::pools::{ConfigPoliciesRequest, ConfigPoliciesResponse};
use serde_json::{Map, Value, json};

use super::call::Call;
use super::failure::Failure;
use super::reply::{Json, Nothing};
use super::templates::{mistakes_of_experiments, mistakes_of_tasks};

/// Experiments.
pub(super) const EXPERIMENT: &str = "EXPERIMENT";
/// Notebooks, TensorBoards, shells and commands.
pub(super) const NTSC: &str = "NTSC";

fn workload(call: &Call) -> Result<String, Failure> {
    match call.part("workload").to_uppercase().as_str() {
        EXPERIMENT => Ok(EXPERIMENT.to_owned()),
        NTSC => Ok(NTSC.to_owned()),
        other => Err(Failure::invalid(format!("invalid workload type `{other}`: {EXPERIMENT} or {NTSC}"))),
    }
}

/// What says which program everybody runs: whoever sets it runs code in the name of all who submit.
const PROGRAMS: [&str; 6] = [
    "/entrypoint",
    "/environment",
    "/bind_mounts",
    "/tensorboard_args",
    "/searcher/source_trial_id",
    "/searcher/source_checkpoint_uuid",
];

/// The workspace that the path names, if it names one, which must be there.
async fn place(call: &Call) -> Result<Option<WorkspaceId>, Failure> {
    if call.part("id").is_empty() {
        return Ok(None);
    }
    let id: WorkspaceId = call.id("id")?;
    call.application.database.workspace(id).await?;
    Ok(Some(id))
}

/// Refuses what only administrators may say.
fn may_set(call: &Call, policies: &Value) -> Result<(), Failure> {
    let set = PROGRAMS.iter().find(|pointer| policies["invariant_config"].pointer(pointer).is_some());
    match set {
        Some(pointer) if !(call.task.is_none() && call.user()?.admin) => Err(Failure::forbidden(format!(
            "only administrators may set `invariant_config{}`: it decides what others run, with their rights\n\
             hint: ask an administrator, or put it into a template",
            pointer.replace('/', ".")
        ))),
        _ => Ok(()),
    }
}

pub(crate) async fn get(call: Call) -> Result<Json<ConfigPoliciesResponse>, Failure> {
    let found = call.application.database.config_policies(place(&call).await?, workload(&call)?).await?;
    Ok(Json(ConfigPoliciesResponse { config_policies: found.map_or_else(|| json!({}), shown) }))
}

pub(crate) async fn put(call: Call) -> Result<Json<ConfigPoliciesResponse>, Failure> {
    let request: ConfigPoliciesRequest = call.json()?;
    let workload = workload(&call)?;
    let text = request.config_policies.unwrap_or_default();
    let policies = checked(&text, &workload).map_err(Failure::invalid)?;
    may_set(&call, &policies)?;
    let place = place(&call).await?;
    call.application.database.set_config_policies(place, workload, Some(policies.clone())).await?;
    Ok(Json(ConfigPoliciesResponse { config_policies: shown(policies) }))
}

pub(crate) async fn delete(call: Call) -> Result<Json<Nothing>, Failure> {
    let place = place(&call).await?;
    call.application.database.set_config_policies(place, workload(&call)?, None).await?;
    Ok(Json(Nothing {}))
}

/// A policy as everybody may see it.
fn shown(mut policies: Value) -> Value {
    if let Some(invariant) = policies.get_mut("invariant_config") {
        *invariant = masked(invariant.take());
    }
    policies
}

/// A policy that can be kept; the error says what is wrong with it.
fn checked(text: &str, workload: &str) -> Result<Value, String> {
    let policies = parse_text(text).map_err(|mistakes| sentence(&mistakes))?;
    let fields = policies.as_object().filter(|fields| !fields.is_empty());
    let fields = fields.ok_or("a policy is a map with `invariant_config` or `constraints`")?;
    if let Some(unknown) = fields.keys().find(|name| !["invariant_config", "constraints"].contains(&name.as_str())) {
        return Err(format!("a policy has no `{unknown}`: only `invariant_config` and `constraints`"));
    }
    if let Some(invariant) = fields.get("invariant_config") {
        let invariant = invariant.as_object().ok_or("`invariant_config` must be a map")?;
        if let Some(name) = ["workspace", "project", "name"].iter().find(|name| invariant.contains_key(**name)) {
            return Err(format!("`invariant_config.{name}` cannot be the same for all"));
        }
        let invariant = Value::Object(invariant.clone());
        let mistakes =
            if workload == EXPERIMENT { mistakes_of_experiments(&invariant) } else { mistakes_of_tasks(&invariant) };
        if !mistakes.is_empty() {
            return Err(format!("invalid `invariant_config`: {}", sentence(&mistakes)));
        }
    }
    if let Some(constraints) = fields.get("constraints") {
        let constraints = constraints.as_object().ok_or("`constraints` must be a map")?;
        check_constraints(constraints, workload)?;
    }
    Ok(policies)
}

fn sentence(mistakes: &[ConfigError]) -> String {
    mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn check_constraints(constraints: &Map<String, Value>, workload: &str) -> Result<(), String> {
    for (name, value) in constraints {
        let inner = value.as_object();
        let valid = match name.as_str() {
            "priority_limit" => value.as_i64().is_some_and(|limit| (1..=99).contains(&limit)),
            "resources" => inner.is_some_and(|inner| {
                inner.iter().all(|(name, most)| name == "max_slots" && most.as_i64().is_some_and(|most| most >= 0))
            }),
            _ => return Err(format!("there is no constraint `{name}`: `priority_limit` or `resources.max_slots`")),
        };
        if !valid {
            return Err(format!("`constraints.{name}` of {workload} is not valid: {value}"));
        }
    }
    Ok(())
}

/// What holds for a kind of work in a workspace, the first before the second.
pub(super) struct Policies(Vec<Value>);

pub(super) async fn of(call: &Call, workload: &str, workspace: WorkspaceId) -> Result<Policies, Failure> {
    let database = &call.application.database;
    let mut found = Vec::new();
    for place in [None, Some(workspace)] {
        found.extend(database.config_policies(place, workload.to_owned()).await?);
    }
    Ok(Policies(found))
}

impl Policies {
    /// A configuration with what must not be different laid over it; `None` if nothing is.
    pub(super) fn laid_over(&self, config: &Value) -> Option<Value> {
        let invariants: Vec<&Value> =
            self.0.iter().map(|policy| &policy["invariant_config"]).filter(|invariant| invariant.is_object()).collect();
        if invariants.is_empty() {
            return None;
        }
        // The last is laid over first.
        Some(invariants.into_iter().rev().fold(config.clone(), |config, over| merge(over.clone(), config)))
    }

    /// The tightest of a constraint's values.
    fn limit(&self, pointer: &str, tightest: impl Fn(i64, i64) -> i64) -> Option<i64> {
        let limits = self.0.iter().filter_map(|policy| policy["constraints"].pointer(pointer)?.as_i64());
        limits.reduce(tightest)
    }

    /// Slots that one experiment or task may have.
    pub(super) fn most_slots(&self) -> Option<i64> {
        self.limit("/resources/max_slots", i64::min)
    }

    /// Refuses more slots than may be had.
    pub(super) fn check_slots(&self, slots: i64) -> Result<(), Failure> {
        match self.most_slots() {
            Some(most) if slots > most => Err(Failure::invalid(format!(
                "requested slots [{slots}] exceed the limit set by a configuration policy [{most}]\n\
                 hint: ask for less, or ask an administrator to change the policy"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses a priority above the limit: a smaller number is a higher priority.
    pub(super) fn check_priority(&self, priority: Option<i64>) -> Result<(), Failure> {
        match (self.limit("/priority_limit", i64::max), priority) {
            (Some(limit), Some(priority)) if priority < limit => Err(Failure::invalid(format!(
                "requested priority [{priority}] exceeds the limit set by a configuration policy [{limit}]\n\
                 hint: ask for less, or ask an administrator to change the policy"
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_that_say_nothing_or_nonsense_are_refused() {
        for (text, why) in [
            ("", "a policy is a map"),
            ("[1]", "a policy is a map"),
            ("invariants: {}", "no `invariants`"),
            ("invariant_config: 3", "must be a map"),
            ("invariant_config: {workspace: x}", "cannot be the same"),
            ("invariant_config: {resources: 5}", "invalid `invariant_config`: resources:"),
            ("invariant_config: {searcher: 3}", "invalid `invariant_config`: searcher"),
            ("[", "it is not YAML: "),
            ("constraints: {slots: 3}", "no constraint `slots`"),
            ("constraints: {priority_limit: 0}", "not valid"),
            ("constraints: {resources: {max_slots: -1}}", "not valid"),
        ] {
            let error = checked(text, EXPERIMENT).unwrap_err();
            assert!(error.contains(why) && !error.contains("Some("), "{text}: {error}");
        }
        assert!(checked("invariant_config: {resources: {priority: 5}, max_restarts: 1}", EXPERIMENT).is_ok());
        assert!(checked("invariant_config: {searcher: {smaller_is_better: true}}", EXPERIMENT).is_ok());
        assert!(checked("constraints: {priority_limit: 10, resources: {max_slots: 4}}", NTSC).is_ok());
    }

    #[test]
    fn what_holds_everywhere_comes_first_and_the_tightest_limit_counts() {
        let policies = Policies(vec![
            json!({"invariant_config": {"resources": {"priority": 50}}, "constraints": {"resources": {"max_slots": 8}}}),
            json!({
                "invariant_config": {"resources": {"priority": 60, "weight": 2}},
                "constraints": {"resources": {"max_slots": 4}, "priority_limit": 20},
            }),
        ]);
        let config = json!({"name": "mine", "resources": {"priority": 1}});
        let expected = json!({"name": "mine", "resources": {"priority": 50, "weight": 2}});
        assert_eq!(policies.laid_over(&config), Some(expected));
        assert!(policies.check_slots(5).unwrap_err().message.contains("[4]"));
        assert!(policies.check_slots(4).is_ok());
        assert!(policies.check_priority(Some(19)).is_err());
        assert!(policies.check_priority(Some(20)).is_ok());
        assert!(policies.check_priority(None).is_ok());
        assert_eq!(Policies(Vec::new()).laid_over(&config), None);
    }
}
