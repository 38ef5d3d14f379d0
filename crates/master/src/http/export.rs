//! Metrics of a trial or an experiment as a file.

use std::io;
use std::time::Duration;

use instep_api::identifiers::{ExperimentId, TrialId};
use instep_database::HistoryPart;
use tokio::sync::mpsc;

use super::call::Call;
use super::failure::Failure;
use super::reply::{Download, Reply};
use crate::clock::now;
use crate::export::Table;

/// Bytes that are sent at a time.
const PART: usize = 128 << 10;
/// Parts that may wait for a slow reader.
const PARTS_AHEAD: usize = 8;
/// How long a reader may take nothing before it is given up.
const SEND_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) async fn trial_csv(call: Call) -> Result<Reply, Failure> {
    of_trial(call, Table::Csv).await
}

pub(crate) async fn trial_lines(call: Call) -> Result<Reply, Failure> {
    of_trial(call, Table::JsonLines).await
}

pub(crate) async fn experiment_csv(call: Call) -> Result<Reply, Failure> {
    of_experiment(call, Table::Csv).await
}

pub(crate) async fn experiment_lines(call: Call) -> Result<Reply, Failure> {
    of_experiment(call, Table::JsonLines).await
}

async fn of_trial(call: Call, table: Table) -> Result<Reply, Failure> {
    let id: TrialId = call.id("id")?;
    call.application.database.trial(id, now()).await?;
    send(call, vec![id], table, &format!("trial-{id}")).await
}

async fn of_experiment(call: Call, table: Table) -> Result<Reply, Failure> {
    let id: ExperimentId = call.id("id")?;
    let trials = call.application.database.experiment(id, now()).await?.trial_ids;
    send(call, trials, table, &format!("experiment-{id}")).await
}

async fn send(call: Call, trials: Vec<TrialId>, table: Table, name: &str) -> Result<Reply, Failure> {
    let group = call.query.text("group").map(str::to_owned);
    // A group that no database takes is refused while there is a status to say it with.
    let first = match trials.first() {
        Some(trial) => Some(call.application.database.metric_history(*trial, group.clone()).await?),
        None => None,
    };
    let (sender, parts) = mpsc::channel(PARTS_AHEAD);
    let name = format!("{name}.{}", table.extension());
    // The task ends with the download: when everything is sent, or when the reader goes away or stands still.
    tokio::spawn(async move {
        if let Err(error) = write(&call, trials, (group, first), table, &sender).await {
            // In place of the end, so that the reader does not take a part for the whole.
            let _ = sender.send(Err(error)).await;
        }
    });
    Ok(Reply::Download(Download { media_type: table.media_type(), name, parts }))
}

async fn write(
    call: &Call,
    trials: Vec<TrialId>,
    (group, mut first): (Option<String>, Option<Vec<HistoryPart>>),
    table: Table,
    sender: &mpsc::Sender<io::Result<Vec<u8>>>,
) -> io::Result<()> {
    let mut text = table.header().to_owned();
    for trial in trials {
        let parts = match first.take() {
            Some(parts) => parts,
            None => {
                let parts = call.application.database.metric_history(trial, group.clone()).await;
                parts.map_err(io::Error::other)?
            }
        };
        for part in parts {
            let reports = call.application.database.metric_reports(trial, part).await;
            for report in reports.map_err(io::Error::other)? {
                table.write(&report, &mut text);
                if text.len() >= PART {
                    pass_on(std::mem::take(&mut text), sender).await?;
                }
            }
        }
    }
    pass_on(text, sender).await
}

/// Sends a part; fails when the reader has gone away, or takes nothing for too long.
pub(super) async fn pass_on(text: String, sender: &mpsc::Sender<io::Result<Vec<u8>>>) -> io::Result<()> {
    let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
    let sending = tokio::time::timeout(SEND_TIMEOUT, sender.send(Ok(text.into_bytes())));
    sending.await.map_err(|_| gone())?.map_err(|_| gone())
}
