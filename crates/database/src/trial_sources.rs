//! Which checkpoints trials work with, for those who want to see how a checkpoint or a model does.

use instep_api::identifiers::{ModelId, TrialId};
use instep_api::states::SourceKind;

use crate::Database;
use crate::error::Result;
use crate::sql::{self, params};

/// A trial that works with a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialSource {
    /// The trial.
    pub trial: TrialId,
    /// What it works with.
    pub checkpoint: String,
    /// What for.
    pub kind: SourceKind,
    /// The model and the number of the version, if the checkpoint was found as one.
    pub version: Option<(ModelId, i64)>,
}

/// By what the trials are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceOf {
    /// The UUID of a checkpoint.
    Checkpoint(String),
    /// A version of a model.
    Version(ModelId, i64),
}

impl Database {
    /// Remembers what a trial works with. Said again, the last word counts.
    pub async fn report_trial_source(&self, source: TrialSource) -> Result<()> {
        self.executor
            .write(move |connection| {
                let (model, version) = source.version.map(|(model, version)| (model.0, version)).unzip();
                connection.execute(
                    "INSERT INTO trial_sources (trial_id, checkpoint_uuid, kind, model_id, model_version) \
                     VALUES (?, ?, ?, ?, ?) ON CONFLICT (trial_id, checkpoint_uuid) DO UPDATE SET \
                     kind = excluded.kind, model_id = excluded.model_id, model_version = excluded.model_version",
                    params![source.trial.0, source.checkpoint, source.kind.as_str(), model, version],
                )?;
                Ok(())
            })
            .await
    }

    /// The trials that work with something, the oldest first; `None` for every kind of work.
    pub async fn trials_with_source(&self, of: SourceOf, kind: Option<SourceKind>) -> Result<Vec<TrialId>> {
        self.executor
            .read(move |connection| {
                let (place, id, version) = match of {
                    SourceOf::Checkpoint(uuid) => {
                        ("checkpoint_uuid = ? AND CAST(? AS BIGINT) IS NULL", uuid.into(), None)
                    }
                    SourceOf::Version(model, version) => {
                        ("model_id = ? AND model_version = ?", sql::Value::from(model.0), Some(version))
                    }
                };
                let sql = format!(
                    "SELECT trial_id FROM trial_sources WHERE {place} AND (CAST(?3 AS TEXT) IS NULL OR kind = ?3) \
                     ORDER BY trial_id"
                );
                let kind = kind.map(SourceKind::as_str);
                let mut statement = connection.prepare_cached(&sql)?;
                let found = statement.query_map(params![id, version, kind], |row| row.get(0).map(TrialId))?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }
}
