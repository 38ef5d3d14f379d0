//! What a task asks the master, with the token of its allocation.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use instep_api::link::DeviceKind;
use instep_client::{Client, Error, Repeat, Result, Settings, segment};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::order::TaskOrder;

/// How long a single call is tried again. Whoever calls decides what comes after.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long one question for the meeting may be open; it is asked again after that.
const RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(600);

/// A client that speaks for the allocation.
pub fn connect(order: &TaskOrder) -> Result<Client> {
    let settings = Settings {
        certificates: order.machine.certificates.clone(),
        timeout: PATIENCE,
        ..Settings::of(addresses(order).parse()?)
    };
    let client = Client::new(settings)?;
    client.use_allocation_token(&order.start.token);
    Ok(client)
}

/// Where the master is, or several of which any answers.
fn addresses(order: &TaskOrder) -> &str {
    if order.machine.masters.is_empty() { &order.machine.master } else { &order.machine.masters }
}

#[derive(Deserialize)]
struct ContextAnswer {
    #[serde(rename = "b64Tgz", default)]
    archive: String,
}

/// The context directory as `.tar.gz`; `None` if it is empty.
pub fn context(client: &Client, task: &str) -> std::result::Result<Option<Vec<u8>>, String> {
    let path = format!("/api/v1/tasks/{}/context_directory", segment(task));
    let answer: ContextAnswer =
        client.get(&path).map_err(|error| format!("cannot fetch the context directory: {}", said(&error)))?;
    if answer.archive.is_empty() {
        return Ok(None);
    }
    STANDARD.decode(&answer.archive).map(Some).map_err(|error| format!("the context directory is not base64: {error}"))
}

/// Tells the master which devices the task has.
pub fn report_devices(client: &Client, order: &TaskOrder) -> std::result::Result<(), String> {
    let (start, devices) = (&order.start, &order.machine.devices);
    let cuda = devices.iter().any(|device| device.kind == DeviceKind::Cuda);
    let body = json!({
        "allocationId": start.share.allocation,
        "acceleratorData": {
            "containerId": start.container,
            "acceleratorType": if cuda { "cuda" } else { "cpu" },
            "acceleratorUuids": uuids(order),
            "allocationId": start.share.allocation,
            "nodeName": order.machine.agent,
            "taskId": start.task,
        },
    });
    let path = format!("/api/v1/allocations/{}/acceleratorData", segment(&start.share.allocation));
    let method = "POST";
    client
        .call_text(method, &path, Some(&body.to_string()), Repeat::Safely)
        .map(drop)
        .map_err(|error| format!("cannot tell the master about this machine: {}", said(&error)))
}

/// Tells the master that what the task serves can be used.
pub fn report_ready(order: &TaskOrder) -> Result<()> {
    let path = format!("/api/v1/allocations/{}/ready", segment(&order.start.share.allocation));
    connect(order)?.call_text("POST", &path, Some("{}"), Repeat::Safely).map(drop)
}

/// Tells the master that somebody works in the notebook.
pub fn report_used(order: &TaskOrder) -> Result<()> {
    let path = format!("/api/v1/notebooks/{}/report_idle", segment(&order.start.task));
    connect(order)?.call_text("PUT", &path, Some(r#"{"idle": false}"#), Repeat::Safely).map(drop)
}

/// The names of the graphics processors.
pub fn uuids(order: &TaskOrder) -> Vec<&str> {
    let devices = order.machine.devices.iter();
    devices.filter(|device| device.kind == DeviceKind::Cuda).map(|device| device.uuid.as_str()).collect()
}

/// Who takes part, by rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Rendezvous {
    /// Of all machines.
    pub addresses: Vec<String>,
    /// Of this one.
    pub rank: usize,
    /// Of each machine.
    #[serde(default)]
    pub slots: Vec<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RendezvousAnswer {
    rendezvous_info: Rendezvous,
}

/// Waits until all shares of the allocation are there.
pub fn rendezvous(client: &Client, order: &TaskOrder) -> std::result::Result<Rendezvous, String> {
    let share = &order.start.share;
    let path = format!(
        "/api/v1/allocations/{}/resources/{}/rendezvous",
        segment(&share.allocation),
        segment(&share.resources)
    );
    loop {
        match client.get_within::<RendezvousAnswer>(&path, RENDEZVOUS_TIMEOUT) {
            Ok(answer) => return Ok(answer.rendezvous_info),
            // The task itself ends when the master stays away for too long.
            Err(error) if error.is_temporary() => {}
            Err(error) => return Err(format!("the other machines of the task were not found: {}", said(&error))),
        }
    }
}

/// An error with its cause.
fn said(error: &Error) -> String {
    use std::error::Error as _;
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

/// The information files of the rendezvous.
pub fn rendezvous_file(rendezvous: &Rendezvous) -> Value {
    json!({
        "container_addrs": rendezvous.addresses,
        "container_rank": rendezvous.rank,
        "container_slot_counts": rendezvous.slots,
    })
}
