//! The variables of a task, as far as they do not depend on the machine.

use std::collections::BTreeMap;

use instep_api::identifiers::{ExperimentId, TrialId};
use serde_json::{Value, json};

/// The session with which a task calls the master.
pub(super) struct Session {
    pub username: String,
    pub user_token: String,
}

/// What the variables of a trial say.
pub(super) struct TrialVariables<'a> {
    pub task: &'a str,
    pub allocation: &'a str,
    pub experiment: ExperimentId,
    pub trial: TrialId,
    pub run: i64,
    pub seed: u32,
    pub config: &'a Value,
    pub hparams: &'a Value,
    /// The checkpoint to resume from, and how many steps it holds.
    pub checkpoint: Option<&'a str>,
    pub steps: i64,
    pub session: &'a Session,
    pub ports: &'a BTreeMap<String, u16>,
}

pub(super) fn of_trial(variables: &TrialVariables<'_>) -> BTreeMap<String, String> {
    let mut all = of_task("TRIAL", variables.task, variables.allocation, variables.session, variables.ports);
    let more = [
        ("DET_EXPERIMENT_ID", variables.experiment.to_string()),
        ("DET_TRIAL_ID", variables.trial.to_string()),
        ("DET_TRIAL_RUN_ID", variables.run.to_string()),
        ("DET_TRIAL_SEED", variables.seed.to_string()),
        ("DET_EXPERIMENT_CONFIG", variables.config.to_string()),
        ("DET_HPARAMS", variables.hparams.to_string()),
        ("DET_STEPS_COMPLETED", variables.steps.to_string()),
    ];
    all.extend(more.map(|(name, value)| (name.to_owned(), value)));
    // Scripts take an empty one for a checkpoint without a name, so there is none at all.
    if let Some(uuid) = variables.checkpoint {
        all.insert("DET_LATEST_CHECKPOINT".to_owned(), uuid.to_owned());
    }
    all
}

/// The variables that every task has.
pub(super) fn of_task(
    kind: &str,
    task: &str,
    allocation: &str,
    session: &Session,
    ports: &BTreeMap<String, u16>,
) -> BTreeMap<String, String> {
    let metadata = json!({"allocation_id": allocation, "task_id": task});
    let mut all: BTreeMap<String, String> = [
        ("DET_TASK_TYPE", kind.to_owned()),
        ("DET_USER", session.username.clone()),
        ("DET_USER_TOKEN", session.user_token.clone()),
        ("DET_TASK_LOGGING_METADATA", metadata.to_string()),
        ("DET_SEGMENT_ENABLED", "false".to_owned()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    all.extend(ports.iter().map(|(name, port)| (name.clone(), port.to_string())));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_learns_its_ids_and_where_it_resumes() {
        let ports = BTreeMap::from([("C10D_PORT".to_owned(), 29400)]);
        let (config, hparams) = (json!({"a": null}), json!({"x": 1}));
        let session = Session { username: "somebody".to_owned(), user_token: "token".to_owned() };
        let mut variables = TrialVariables {
            task: "7.u",
            allocation: "7.u.2",
            experiment: ExperimentId(7),
            trial: TrialId(9),
            run: 2,
            seed: 5,
            config: &config,
            hparams: &hparams,
            checkpoint: None,
            steps: 0,
            session: &session,
            ports: &ports,
        };
        let first = of_trial(&variables);
        assert_eq!((first["DET_TRIAL_ID"].as_str(), first["DET_TRIAL_RUN_ID"].as_str()), ("9", "2"));
        assert_eq!((first["DET_HPARAMS"].as_str(), first["C10D_PORT"].as_str()), (r#"{"x":1}"#, "29400"));
        assert!(!first.contains_key("DET_LATEST_CHECKPOINT"));
        (variables.checkpoint, variables.steps) = (Some("c"), 30);
        let second = of_trial(&variables);
        let found = (second["DET_LATEST_CHECKPOINT"].as_str(), second["DET_STEPS_COMPLETED"].as_str());
        assert_eq!(found, ("c", "30"));
    }
}
