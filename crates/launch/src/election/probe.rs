//! Asks missing nodes twice a second whether they live and who leads them, on a thread beside the coordinator's.
//!
//! Whom to ask is in [`SharedLeadership`]; the coordinator gets the answers as a message on its own port.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use instep_policy::election::Answer;

use crate::background::BackgroundThread;
use crate::control::channel::{Channel, ChannelError};
use crate::control::{self, ProbeReport, ToCoordinator};
use crate::election::query::{self, Asker};
use crate::election::shared::SharedLeadership;
use crate::rendezvous::endpoint::connect_to_self;

/// Shorter than the time that a coordinator at the endpoint waits before its first round.
const INTERVAL: Duration = Duration::from_millis(500);

/// How long the coordinator may take to answer: it never blocks.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Starts the thread for the coordinator at this port of this machine.
pub(crate) fn start(
    leadership: Arc<SharedLeadership>,
    asker: Asker,
    port: u16,
    host_token: u64,
) -> io::Result<BackgroundThread<()>> {
    BackgroundThread::start("instep-probe", move |stop| {
        while !stop.is_set() {
            if let Some(report) = probe_once(&leadership, &asker, port, host_token) {
                // The server is ending if it cannot be told.
                let _ = tell_coordinator(port, &asker, report);
            }
            stop.wait(INTERVAL);
        }
    })
}

fn tell_coordinator(port: u16, asker: &Asker, report: ProbeReport) -> Result<(), ChannelError> {
    let mut stream = connect_to_self(port)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut channel = Channel::open(&mut stream, asker.token.as_ref())?;
    Ok(channel.write(&mut stream, &control::encode(&ToCoordinator::ProbeReport(report)))?)
}

fn probe_once(leadership: &SharedLeadership, asker: &Asker, port: u16, host_token: u64) -> Option<ProbeReport> {
    let request = leadership.probe_request()?;
    let own = request.claim.launcher;
    let mut report = ProbeReport { host_token, dead: Vec::new(), leading: Vec::new() };
    let mut leaders = Vec::new();
    for (address, expected, answer) in query::query_all(request.targets, asker, Some((request.claim, port))) {
        match (answer, expected) {
            (Answer::Ended, Some(launcher)) => report.dead.push(launcher),
            (Answer::Leading(claim), _) if claim.launcher != own => report.leading.push((address, claim)),
            (Answer::Following(address), _) => leaders.push((address, None)),
            _ => {}
        }
    }
    leaders.sort();
    leaders.dedup();
    if !leaders.is_empty() {
        for (address, _, answer) in query::query_all(leaders, asker, Some((request.claim, port))) {
            if let Answer::Leading(claim) = answer
                && claim.launcher != own
            {
                report.leading.push((address, claim));
            }
        }
    }
    (!report.dead.is_empty() || !report.leading.is_empty()).then_some(report)
}
