//! What trials that work with a checkpoint have reported, for those who ask about the checkpoint or its model.

use instep_api::identifiers::TrialId;
use instep_api::metrics::MetricsStreamElement;
use instep_api::states::SourceKind;
use instep_api::trials::{ReportSourceRequest, ReportSourceResponse};
use instep_database::{SourceOf, Subject, TrialSource};

use super::call::Call;
use super::failure::Failure;
use super::reply::Json;

pub(crate) async fn report(call: Call) -> Result<Json<ReportSourceResponse>, Failure> {
    let request: ReportSourceRequest = call.json()?;
    let info = request.trial_source_info.ok_or_else(|| Failure::invalid("trialSourceInfo is missing"))?;
    let trial_id: TrialId = info.trial_id.ok_or_else(|| Failure::invalid("trialId is missing"))?;
    let checkpoint_uuid = info.checkpoint_uuid.ok_or_else(|| Failure::invalid("checkpointUuid is missing"))?;
    call.must_see(Subject::Trial(trial_id)).await?;
    call.may_change(Subject::Trial(trial_id)).await?;
    call.must_see(Subject::Checkpoint(checkpoint_uuid.clone())).await?;
    let version = info.model_id.zip(info.model_version);
    if let Some((model, number)) = version {
        call.must_see(Subject::ModelVersion(model.to_string(), number)).await?;
    }
    let kind = info.trial_source_info_type.unwrap_or(SourceKind::Unspecified);
    let source = TrialSource { trial: trial_id, checkpoint: checkpoint_uuid.clone(), kind, version };
    call.application.database.report_trial_source(source).await?;
    Ok(Json(ReportSourceResponse { trial_id, checkpoint_uuid }))
}

pub(crate) async fn of_checkpoint(call: Call) -> Result<Json<MetricsStreamElement>, Failure> {
    let uuid = call.part("uuid").to_owned();
    if call.application.database.ownership(Subject::Checkpoint(uuid.clone())).await?.is_none() {
        return Err(Failure::not_found(format!("checkpoint '{uuid}' not found")));
    }
    reported(&call, SourceOf::Checkpoint(uuid)).await
}

pub(crate) async fn of_version(call: Call) -> Result<Json<MetricsStreamElement>, Failure> {
    let database = &call.application.database;
    let number = call.id("version")?;
    let version = database.model_version(call.part("name").to_owned(), number).await?;
    reported(&call, SourceOf::Version(version.model.id, number)).await
}

/// What the trials have reported, of those that the caller may see.
async fn reported(call: &Call, of: SourceOf) -> Result<Json<MetricsStreamElement>, Failure> {
    let database = &call.application.database;
    let kind = call.query.value::<SourceKind>("trialSourceInfoType")?.filter(|kind| *kind != SourceKind::Unspecified);
    let group = call.query.text("metricGroup").filter(|group| !group.is_empty()).map(str::to_owned);
    let mut metrics = Vec::new();
    for trial in database.trials_with_source(of, kind).await? {
        if call.may_read(Subject::Trial(trial)).await.is_err() {
            continue;
        }
        for part in database.metric_history(trial, group.clone()).await? {
            metrics.extend(database.metric_reports(trial, part).await?);
        }
    }
    for (index, report) in metrics.iter_mut().enumerate() {
        report.id = index as i64 + 1;
    }
    Ok(Json(MetricsStreamElement { metrics }))
}
