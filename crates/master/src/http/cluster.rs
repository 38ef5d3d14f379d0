//! What the master says about itself.

use std::time::Duration;

use instep_api::cluster::{
    COMPATIBLE_VERSION, Info, MasterLogsElement, MasterResponse, TelemetryInfo, TelemetryResponse,
};
use instep_api::config::masked;
use instep_api::error::Code;
use instep_api::pools::PatchMasterConfigRequest;
use instep_api::states::LogLevel;
use instep_policy::schedule::{Fitting, Rule};
use serde_json::json;

use super::call::Call;
use super::failure::Failure;
use super::reply::{Gone, Json, LineSender, Nothing, Reply, lines};
use crate::cluster::DEFAULT_POOL;

/// Lines of the log that are read at a time.
const LINES_PER_READ: usize = 100;
/// How long a follower of the log waits for a wake-up before it looks whether its reader is still there.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Whether requests can be done: the database answers, and has room for changes. Where there are several masters, also
/// that this one leads; [`LeaderProxy`](super::leader_proxy::LeaderProxy) answers for those that stand by.
pub(crate) async fn health(call: Call) -> Result<Reply, Failure> {
    if let Some(why) = call.application.database.unwritable().await? {
        let hint = "free space on the disk of the master's database";
        return Err(Failure::new(Code::Unavailable, format!("the database cannot be written: {why}\nhint: {hint}")));
    }
    let Some(term) = &call.application.term else { return Reply::json(&json!({"status": "up"})) };
    Reply::json(&json!({
        "status": "up",
        "role": "leader",
        "address": term.endpoint.address,
        "leader": term.endpoint.address,
        "epoch": term.epoch,
        "since": term.since,
    }))
}

/// What Prometheus reads: on this machine without a token, as its users expect; from elsewhere with one, because it
/// tells how much a master is used.
pub(crate) async fn metrics(call: Call) -> Result<Reply, Failure> {
    let (database, cluster) = (&call.application.database, &call.application.cluster);
    let passes = cluster.scheduler_stats().passes();
    let text =
        call.application.telemetry.text(&database.load(), passes, &cluster.goodput().seconds(), database.epoch());
    text.map(Reply::Metrics).map_err(|error| Failure::new(Code::Internal, error.to_string()))
}

pub(crate) async fn info(call: Call) -> Result<Json<Info>, Failure> {
    Ok(Json(Info {
        version: COMPATIBLE_VERSION.to_owned(),
        master_id: call.application.master_id.clone(),
        cluster_id: call.application.database.cluster_id().to_owned(),
        cluster_name: String::new(),
        telemetry: TelemetryInfo { enabled: false },
        sso_providers: None,
    }))
}

/// How the master runs experiments, for administrators.
pub(crate) async fn config(call: Call) -> Result<Reply, Failure> {
    let options = call.application.cluster.read(|state| state.options().clone()).await?;
    let scheduling = &options.scheduling;
    let scheduler = match scheduling.rule {
        Rule::Priority { preemption } => json!({
            "type": "priority",
            "preemption": preemption,
            "default_priority": options.default_priority,
        }),
        Rule::FairShare => json!({"type": "fair_share"}),
    };
    let fitting = match scheduling.fitting {
        Fitting::Best => "best",
        Fitting::Worst => "worst",
    };
    let level = call.application.journal.level().as_str().trim_start_matches("LOG_LEVEL_").to_lowercase();
    let config = json!({
        "log": {"level": level, "color": false},
        "feature_switches": [],
        "checkpoint_storage": call.application.defaults["checkpoint_storage"],
        "resource_manager": {
            "type": "agent",
            "scheduler": scheduler,
            "fitting_policy": fitting,
            "allow_heterogeneous_fits": scheduling.heterogeneous,
            "default_compute_resource_pool": DEFAULT_POOL,
            "default_aux_resource_pool": DEFAULT_POOL,
            "agent_reconnect_wait": format!("{}s", options.reconnect_window.as_secs()),
        },
    });
    Reply::json(&json!({"config": masked(config)}))
}

pub(crate) async fn master(call: Call) -> Result<Json<MasterResponse>, Failure> {
    Ok(Json(MasterResponse {
        version: COMPATIBLE_VERSION.to_owned(),
        master_id: call.application.master_id.clone(),
        cluster_id: call.application.database.cluster_id().to_owned(),
        cluster_name: String::new(),
        telemetry_enabled: false,
        external_login_uri: String::new(),
        external_logout_uri: String::new(),
        branding: "determined".to_owned(),
        rbac_enabled: call.application.roles,
        product: "PRODUCT_UNSPECIFIED".to_owned(),
        feature_switches: Vec::new(),
        user_management_enabled: true,
        strict_job_queue_control: false,
        has_custom_logo: false,
        sso_providers: Vec::new(),
        cluster_message: super::preferences::shown_message(&call).await?,
    }))
}

/// What can be changed while the master runs: how much it logs, until it is started again.
pub(crate) async fn change_config(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: PatchMasterConfigRequest = call.json()?;
    let log = request.config.and_then(|config| config.log).unwrap_or_default();
    if log.color == Some(true) {
        return Err(Failure::invalid("the master's log has no colours"));
    }
    match log.level.filter(|level| *level != LogLevel::Unspecified) {
        Some(level) => call.application.journal.set_level(level),
        None if log.color.is_none() => return Err(Failure::invalid("only log.level can be changed")),
        None => {}
    }
    Ok(Json(Nothing {}))
}

/// Nothing is told to anybody else.
pub(crate) async fn telemetry(_: Call) -> Result<Json<TelemetryResponse>, Failure> {
    Ok(Json(TelemetryResponse { enabled: false, segment_key: String::new() }))
}

/// What the master has logged recently, if wanted as it comes.
pub(crate) async fn logs(call: Call) -> Result<Reply, Failure> {
    let follow = call.query.value("follow")?.unwrap_or(false);
    let limit: i64 = call.query.value("limit")?.unwrap_or(0);
    if limit < 0 {
        return Err(Failure::invalid("`limit` must not be negative"));
    }
    let left = if limit == 0 { usize::MAX } else { usize::try_from(limit).unwrap_or(usize::MAX) };
    let number = call.application.journal.number_behind(call.query.value("offset")?.unwrap_or(0));
    let (sender, lines) = lines();
    // The task ends with its stream: when everything is sent, or when the reader goes away.
    tokio::spawn(async move {
        let _ = send_log(&call, number, left, follow, &sender).await;
    });
    Ok(Reply::Lines(lines))
}

async fn send_log(
    call: &Call,
    mut number: i64,
    mut left: usize,
    follow: bool,
    sender: &LineSender,
) -> Result<(), Gone> {
    let journal = &call.application.journal;
    let mut arrivals = journal.follow();
    while !sender.is_closed() {
        arrivals.mark_unchanged();
        let found = journal.from(number, left.min(LINES_PER_READ));
        left -= found.len();
        let is_end = found.is_empty();
        for log_entry in found {
            number = log_entry.id + 1;
            sender.send(&MasterLogsElement { log_entry }).await?;
        }
        if left == 0 || is_end && !follow {
            break;
        }
        if is_end {
            // Either way there is another look.
            let _ = tokio::time::timeout(LOOK_AGAIN, arrivals.changed()).await;
        }
    }
    Ok(())
}
