//! The server of this node: the store and the coordinator on one port, and the thread that probes missing nodes.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use instep_policy::election::{Epoch, HostPort, Successor};
use instep_policy::membership::{LauncherId, Resumption};
use instep_store::Server;

use super::endpoint;
use super::error::RendezvousError;
use super::handshake::{self, HELLO_TIMEOUT};
use crate::background::BackgroundThread;
use crate::console::Note;
use crate::control::channel::{Channel, ChannelError};
use crate::control::token::JobToken;
use crate::control::{self, Lead, ToCoordinator};
use crate::coordinator::{Coordinator, CoordinatorSettings};
use crate::election::probe;
use crate::election::query::Asker;
use crate::election::shared::SharedLeadership;
use crate::events::EventLog;
use crate::plan::Plan;
use crate::random;

/// Where the rendezvous and the server's thread report what happens.
#[derive(Debug, Clone)]
pub(crate) struct Reports {
    /// Sentences for people.
    pub(crate) notes: Sender<Note>,
    /// Lines for programs.
    pub(crate) events: EventLog,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct CoordinatorService {
    // Dropped first: it speaks to the server.
    probe_thread: Option<BackgroundThread<()>>,
    server: Server,
    /// Proves to the coordinator that a connection comes from this process.
    pub(super) host_token: u64,
    token: Option<JobToken>,
    pub(crate) leadership: Arc<SharedLeadership>,
    /// The job is led from here.
    pub(crate) leads: bool,
}

impl CoordinatorService {
    /// Serves the store and a coordinator, which leads unless the job was first led elsewhere, at `endpoint`.
    pub(super) fn start(
        plan: &Plan,
        launcher: LauncherId,
        reports: &Reports,
        listeners: Vec<TcpListener>,
        master: HostPort,
        endpoint: Option<HostPort>,
    ) -> Result<CoordinatorService, RendezvousError> {
        let port = port_of(&listeners)?;
        let host_token = u64::from_ne_bytes(random::bytes()?);
        let leadership = Arc::new(SharedLeadership::default());
        let leads = endpoint.is_none();
        let settings = CoordinatorSettings {
            run_id: plan.job.run_id.clone(),
            terms: plan.terms.clone(),
            host_token,
            token: plan.token.clone(),
            launcher,
            master_address: master.host,
            master_port: master.port,
            worker_serves_store: plan.worker_serves_store,
            heartbeat: plan.heartbeat,
            endpoint,
            leadership: leadership.clone(),
            events: reports.events.clone(),
        };
        let now = Instant::now();
        let coordinator = if leads { Coordinator::new(settings, now) } else { Coordinator::standby(settings, now) };
        let notes = reports.notes.clone();
        let server = Server::start(listeners, Some(Box::new(coordinator)), move |notice| {
            // The launcher is ending if nobody listens any more.
            let _ = notes.send(Note::Warning(notice.to_string()));
        })?;
        let asker = Asker { run_id: plan.job.run_id.clone(), token: plan.token.clone() };
        let probe = || probe::start(leadership.clone(), asker, port, host_token);
        let probe_thread = plan.terms.elastic().then(probe).transpose()?;
        let token = plan.token.clone();
        Ok(CoordinatorService { probe_thread, server, host_token, token, leadership, leads })
    }

    pub(crate) fn port(&self) -> u16 {
        self.server.port()
    }

    /// Tells the coordinator to lead the job, from the newest epoch of which this launcher knows.
    pub(crate) fn promote(
        &self,
        resumption: Resumption,
        epoch: &Epoch,
        others: &[Successor],
        master_address: String,
    ) -> Result<(), RendezvousError> {
        let known = epoch.successors.iter().chain(others);
        let addresses = known.map(|one| (one.launcher, one.address.clone())).collect();
        let lead = Lead { host_token: self.host_token, master_address, resumption, addresses };
        let mut stream = endpoint::connect_to_self(self.port())?;
        stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
        let unproved = |cause: ChannelError| io::Error::other(cause.to_string());
        let mut channel = Channel::open(&mut stream, self.token.as_ref()).map_err(unproved)?;
        channel.write(&mut stream, &control::encode(&ToCoordinator::Lead(Box::new(lead))))?;
        Ok(handshake::read_line(&mut stream, &mut channel.inbound, &mut Vec::new())?)
    }

    /// Writes what others still have to hear, and ends.
    pub(crate) fn shutdown(self) {
        drop(self.probe_thread);
        self.server.shutdown();
    }
}

pub(super) fn port_of(listeners: &[TcpListener]) -> io::Result<u16> {
    let listener = listeners.first().ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
    Ok(listener.local_addr()?.port())
}
