//! What the master says about itself.

use instep_api::cluster::{COMPATIBLE_VERSION, Info, MasterResponse, TelemetryInfo};
use instep_api::error::Code;
use instep_policy::schedule::{Fitting, Rule};
use serde_json::json;

use super::call::Call;
use super::failure::Failure;
use super::reply::Reply;
use crate::cluster::DEFAULT_POOL;

/// Whether requests can be done: the database answers.
pub(crate) async fn health(call: Call) -> Result<Reply, Failure> {
    call.application.database.users_without_password().await?;
    Reply::json(&json!({"status": "up"}))
}

/// What Prometheus reads: on this machine without a token, as its users expect; from elsewhere with one, because it
/// tells how much a master is used.
pub(crate) async fn measures(call: Call) -> Result<Reply, Failure> {
    let text = call
        .application
        .telemetry
        .text(&call.application.database.load(), call.application.cluster.measures().passes());
    text.map(Reply::Measures).map_err(|error| Failure::new(Code::Internal, error.to_string()))
}

pub(crate) async fn info(call: Call) -> Result<Reply, Failure> {
    Reply::json(&Info {
        version: COMPATIBLE_VERSION.to_owned(),
        master_id: call.application.master_id.clone(),
        cluster_id: call.application.database.cluster_id().to_owned(),
        cluster_name: String::new(),
        telemetry: TelemetryInfo { enabled: false },
        sso_providers: None,
    })
}

/// How the master runs experiments, for administrators. It holds no secrets.
pub(crate) async fn config(call: Call) -> Result<Reply, Failure> {
    let options = call.application.cluster.look(|actor| actor.options().clone()).await?;
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
    let config = json!({
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
    Reply::json(&json!({"config": config}))
}

pub(crate) async fn master(call: Call) -> Result<Reply, Failure> {
    Reply::json(&MasterResponse {
        version: COMPATIBLE_VERSION.to_owned(),
        master_id: call.application.master_id.clone(),
        cluster_id: call.application.database.cluster_id().to_owned(),
        cluster_name: String::new(),
        telemetry_enabled: false,
        external_login_uri: String::new(),
        external_logout_uri: String::new(),
        branding: "determined".to_owned(),
        rbac_enabled: false,
        product: "PRODUCT_UNSPECIFIED".to_owned(),
        feature_switches: Vec::new(),
        user_management_enabled: true,
        strict_job_queue_control: false,
        has_custom_logo: false,
        sso_providers: Vec::new(),
        cluster_message: None,
    })
}
