//! The log of a collection of checkpoints: what was deleted for an experiment, as a task that people can look at.

use instep_api::identifiers::ExperimentId;
use instep_api::jobs::AllocationSummary;
use instep_api::logs::LogLine;
use instep_api::states::LogLevel;
use instep_database::{Collection, Database};

use crate::clock::now;
use crate::random;

/// Follows deletions from one experiment to the next; each experiment's are one task.
pub(crate) struct Collections<'a> {
    database: &'a Database,
    experiment: Option<ExperimentId>,
    task: Option<String>,
}

impl<'a> Collections<'a> {
    pub(crate) fn of(database: &'a Database) -> Collections<'a> {
        Collections { database, experiment: None, task: None }
    }

    /// What follows is deleted for this experiment. One that is gone has no tasks any more.
    pub(crate) async fn go_on_to(&mut self, experiment: Option<ExperimentId>) -> instep_database::Result<()> {
        if self.experiment == experiment && experiment.is_some() {
            return Ok(());
        }
        self.end().await?;
        self.experiment = experiment;
        let Some(experiment) = experiment else { return Ok(()) };
        let task = format!("{experiment}.{}", random::uuid());
        let begun = Collection { task: task.clone(), experiment, started_at: now() };
        self.task = self.database.begin_collection(begun).await?.then_some(task);
        Ok(())
    }

    /// Writes a line to the task's log, if there is one. What is deleted does not depend on it.
    pub(crate) async fn say(&self, level: LogLevel, text: &str) {
        let Some(task) = &self.task else { return };
        let line = LogLine {
            id: 0,
            task_id: task.clone(),
            allocation_id: None,
            agent_id: None,
            container_id: None,
            rank_id: None,
            timestamp: now(),
            level,
            source: Some("master".to_owned()),
            stdtype: None,
            log: format!("{text}\n"),
        };
        if let Err(error) = self.database.append_logs(vec![line]).await {
            tracing::warn!(%error, task, "a line about deleted files is lost: {text}");
        }
    }

    /// Ends the task.
    pub(crate) async fn end(&mut self) -> instep_database::Result<()> {
        (self.experiment, self.task) = (None, None);
        self.database.end_collections(now()).await
    }
}

/// A collection among the tasks that run.
pub(crate) fn summary(collection: Collection) -> AllocationSummary {
    AllocationSummary {
        allocation_id: format!("{}.1", collection.task),
        name: format!("Checkpoint GC (Experiment {})", collection.experiment),
        task_id: collection.task,
        slots_needed: 0,
        registered_time: Some(collection.started_at),
        resources: Vec::new(),
        priority: None,
        scheduler_type: "priority".to_owned(),
        // It runs in the master.
        resource_pool: String::new(),
        proxy_ports: Vec::new(),
    }
}
