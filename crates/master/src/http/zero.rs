//! Things that are not there, as Determined shows them: every field with its zero value.

use instep_api::experiments::Experiment;
use instep_api::identifiers::{ExperimentId, ProjectId, UserId, WorkspaceId};
use instep_api::states::State;
use instep_api::wire::{Long, Timestamp};
use serde_json::json;

/// The experiment that a configuration would make.
pub(super) fn experiment() -> Experiment {
    Experiment {
        id: ExperimentId(0),
        name: String::new(),
        description: String::new(),
        labels: Vec::new(),
        notes: String::new(),
        config: json!({}).into(),
        original_config: String::new().into(),
        archived: false,
        job_id: String::new(),
        num_trials: 0,
        trial_ids: Vec::new(),
        project_id: ProjectId(0),
        project_name: String::new(),
        project_owner_id: UserId(0),
        workspace_id: WorkspaceId(0),
        workspace_name: String::new(),
        parent_archived: false,
        searcher_type: String::new(),
        searcher_metric: String::new(),
        hyperparameters: json!({}),
        start_time: Timestamp(0),
        end_time: None,
        state: State::Unspecified,
        username: String::new(),
        display_name: String::new(),
        user_id: UserId(0),
        resource_pool: String::new(),
        progress: None,
        forked_from: None,
        checkpoint_size: Long(0),
        checkpoint_count: 0,
        unmanaged: false,
        external_experiment_id: None,
        external_trial_id: None,
        model_definition_size: 0,
        best_trial_id: None,
        best_trial_searcher_metric: None,
        duration: 0,
        first_run_time: None,
        pachyderm_integration: None,
    }
}
