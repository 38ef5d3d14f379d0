//! One `static` job with Python's torchrun on some of its nodes.
//!
//! torchrun's agents meet through plain keys in the store, all below `<run id>/torchelastic/`:
//!
//! ```text
//! role_info/<node>               {"role": "default", "rank": <node>, "local_world_size": 8}      set by every node
//! assigned_ranks/<node>          [first rank, world size, first role rank, role world size]      set by node 0
//! agent/terminal_state/num_members   counts the nodes whose workers are done
//! agent/terminal_state/last_member   set by the last of them: everyone may leave
//! ```
//!
//! [`TorchrunNodes`] is node 0's side of it, inside the coordinator. [`connect`] is the other side: our node in a job whose
//! node 0 is torchrun, translated to the messages a coordinator would send, so that the supervisor sees no difference.
//! A c10d job cannot be shared: torchrun keeps its state there as a pickle of private classes.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use instep_policy::membership::{Event, LauncherId, NodeFacts, NodeId, RoundMember};
use instep_store::{Client, Context, Key, Request};
use serde::{Deserialize, Serialize};

use super::endpoint::Endpoint;
use super::error::RendezvousError;
use super::handshake::HELLO_TIMEOUT;
use crate::console::Note;
use crate::control::channel::Channel;
use crate::control::connection::CoordinatorConnection;
use crate::control::{self, FromCoordinator, Start, ToCoordinator};
use crate::failure::Failure;
use crate::plan::Plan;

/// How long torchrun's nodes wait for each other at the end.
const EXIT_BARRIER: Duration = Duration::from_secs(300);

/// How often the store is looked at.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Serialize, Deserialize)]
struct RoleInfo {
    role: String,
    rank: usize,
    local_world_size: usize,
}

/// Whether a store request belongs to torchrun's own c10d rendezvous.
pub(crate) fn is_dynamic_rendezvous(request: &Request<'_>) -> bool {
    let rendezvous = |key: &[u8]| key.starts_with(b"/torch.rendezvous.");
    match request {
        Request::CompareSet { key, .. } | Request::Get { key } => rendezvous(key),
        Request::Wait { keys } => keys.iter().any(|key| rendezvous(key)),
        _ => false,
    }
}

/// The nodes of a job that are run by torchrun, as seen from the coordinator.
#[derive(Debug)]
pub(crate) struct TorchrunNodes {
    prefix: String,
    max_nodes: usize,
    nodes: BTreeMap<usize, NodeId>,
    /// How many of our own nodes were counted as done.
    ours_done: i64,
    /// How many nodes of torchrun were reported as done.
    theirs_done: i64,
    next_poll: Option<Instant>,
}

impl TorchrunNodes {
    pub(crate) fn new(run_id: &str, max_nodes: usize) -> TorchrunNodes {
        TorchrunNodes {
            prefix: format!("/{run_id}/torchelastic"),
            max_nodes,
            nodes: BTreeMap::new(),
            ours_done: 0,
            theirs_done: 0,
            next_poll: None,
        }
    }

    pub(crate) fn any(&self) -> bool {
        !self.nodes.is_empty()
    }

    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.prefix).into_bytes()
    }

    /// What the keys say that they did not say before.
    pub(crate) fn poll(&mut self, context: &Context<'_>) -> Vec<Event> {
        if self.next_poll.is_some_and(|due| context.now < due) {
            return Vec::new();
        }
        self.next_poll = Some(context.now + POLL_INTERVAL);
        let mut events = Vec::new();
        for rank in 0..self.max_nodes {
            let Some(bytes) = context.get(&self.key(&format!("role_info/{rank}"))) else { continue };
            let Ok(info) = serde_json::from_slice::<RoleInfo>(bytes) else { continue };
            if self.nodes.contains_key(&rank) {
                continue;
            }
            let node = NodeId(u64::MAX - rank as u64);
            self.nodes.insert(rank, node);
            let facts = NodeFacts {
                launcher: LauncherId(node.0),
                last_round: None,
                votes: Vec::new(),
                busy: false,
                after_silence: false,
                address: format!("node {rank} (torchrun)"),
                process: 0,
                workers: info.local_world_size,
                role: control::text::one_line(&info.role),
                node_rank: rank,
                host: false,
                foreign: true,
            };
            events.push(Event::Joined { node, facts });
        }
        let done = context.get(&self.key("agent/terminal_state/num_members")).map_or(0, decimal) - self.ours_done;
        let unreported = self.nodes.values().skip(usize::try_from(self.theirs_done).unwrap_or(0));
        events.extend(
            unreported
                .take(usize::try_from(done - self.theirs_done).unwrap_or(0))
                .map(|node| Event::Finished { node: *node }),
        );
        self.theirs_done = self.theirs_done.max(done);
        events
    }

    /// Tells the nodes of torchrun their ranks.
    pub(crate) fn assign(&mut self, members: &[RoundMember], world_size: usize, context: &mut Context<'_>) {
        for member in members.iter().filter(|member| self.nodes.values().any(|node| *node == member.node)) {
            let ranks = [member.first_rank, world_size, member.first_role_rank, member.role_world_size];
            let key = self.key(&format!("assigned_ranks/{}", member.group_rank));
            context.set(&key, format!("{ranks:?}").as_bytes());
        }
    }

    /// Counts one of our nodes as done, where those of torchrun will look.
    pub(crate) fn count_ours(&mut self, context: &mut Context<'_>) {
        if context.add(&self.key("agent/terminal_state/num_members"), 1).is_ok() {
            self.ours_done += 1;
        }
    }

    /// Everyone is done: those of torchrun may leave.
    pub(crate) fn release(&self, context: &mut Context<'_>) {
        context.set(&self.key("agent/terminal_state/last_member"), b"<val_ignored>");
    }
}

fn decimal(bytes: &[u8]) -> i64 {
    std::str::from_utf8(bytes).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Takes part in the job of the torchrun that serves this endpoint, if that is what serves it; `what` was seen there.
/// A thread plays the coordinator for the supervisor.
pub(super) fn connect(
    plan: &Plan,
    endpoint: &Endpoint,
    what: String,
    notes: &Sender<Note>,
) -> Result<CoordinatorConnection, RendezvousError> {
    let not_torchrun = || RendezvousError::NotACoordinator { endpoint: endpoint.clone(), what: what.clone() };
    let port = endpoint.port.unwrap_or_default();
    let mut client = Client::connect(&endpoint.host, port, HELLO_TIMEOUT).map_err(|_| not_torchrun())?;
    if !plan.terms.fixed_ranks {
        let key = format!("torch.rendezvous.{}", plan.job.run_id);
        let theirs = client.try_get(key.as_str()).map_err(|_| not_torchrun())?.is_some();
        return Err(if theirs { RendezvousError::Torchrun { endpoint: endpoint.clone() } } else { not_torchrun() });
    }
    if plan.terms.step_recovery {
        return Err(RendezvousError::TorchrunRecovery { endpoint: endpoint.clone() });
    }
    let member = TorchrunMember {
        run_id: plan.job.run_id.clone(),
        role: plan.job.role.clone(),
        node_rank: plan.node_rank,
        nodes: plan.terms.max_nodes,
        workers: plan.job.workers,
        max_restarts: plan.terms.max_restarts,
        master_address: endpoint.host.clone(),
        master_port: port,
        timeout: plan.terms.join_timeout,
    };
    let _ = notes.send(Note::Progress(format!("joining the torchrun that serves {endpoint}")));
    let (ours, theirs) = UnixStream::pair()?;
    std::thread::Builder::new().name("torchrun-peer".to_owned()).spawn(move || join(client, member, theirs))?;
    Ok(CoordinatorConnection::new(OwnedFd::from(ours), Channel::default(), Vec::new(), None)?)
}

/// Our node as a member of torchrun's job.
#[derive(Debug, Clone)]
struct TorchrunMember {
    run_id: String,
    role: String,
    node_rank: usize,
    nodes: usize,
    workers: usize,
    max_restarts: u32,
    master_address: String,
    master_port: u16,
    timeout: Duration,
}

/// Takes part in a job served by torchrun; speaks to the supervisor on `supervisor` as a coordinator would.
fn join(mut client: Client, member: TorchrunMember, supervisor: UnixStream) {
    let mut replies = match supervisor.try_clone() {
        Ok(stream) => stream,
        Err(_) => return,
    };
    let mut send = |message: &FromCoordinator| replies.write_all(&control::encode(message));
    let result = run_member(&mut client, &member, BufReader::new(supervisor), &mut send);
    if let Err(cause) = result {
        let reason =
            format!("the torchrun at {}:{} stopped answering: {cause}", member.master_address, member.master_port);
        // The supervisor may be gone already; then nobody needs to be told.
        let _ = send(&FromCoordinator::Fail { reason, failures: Vec::new() });
    }
}

fn run_member(
    client: &mut Client,
    member: &TorchrunMember,
    supervisor: impl BufRead,
    send: &mut impl FnMut(&FromCoordinator) -> io::Result<()>,
) -> Result<(), Box<dyn std::error::Error>> {
    let prefix = format!("{}/torchelastic", member.run_id);
    // torchrun's node 0 waits until every node has counted itself here.
    client.add(Key::raw("init/"), 1)?;
    let mut restarts = 0;
    send(&start(client, member, &prefix, restarts)?)?;
    for line in supervisor.lines() {
        match serde_json::from_str(&line?)? {
            ToCoordinator::Failed(failure) if restarts < member.max_restarts => {
                restarts += 1;
                send(&FromCoordinator::Stop {
                    reason: format!("{}; restart {restarts} of {}", failure.describe(), member.max_restarts),
                    at_once: false,
                })?;
            }
            ToCoordinator::Failed(failure) => {
                let reason = format!("{}; no restarts are left", failure.describe());
                let failures: Vec<Failure> = vec![*failure];
                send(&FromCoordinator::Fail { reason, failures })?;
            }
            ToCoordinator::Stopped {} => send(&start(client, member, &prefix, restarts)?)?,
            ToCoordinator::Finished {} => {
                // Once our workers are done, whatever happens to the barrier is no failure of ours.
                let _ = exit_barrier(client, member, &prefix);
                send(&FromCoordinator::Complete {})?;
            }
            ToCoordinator::Leaving { .. } => return Ok(()),
            // Said to coordinators of ours alone.
            ToCoordinator::Hello(_)
            | ToCoordinator::Started {}
            | ToCoordinator::Draining { .. }
            | ToCoordinator::Lost { .. }
            | ToCoordinator::RanksFinished { .. }
            | ToCoordinator::Hung { .. }
            | ToCoordinator::Overdue {}
            | ToCoordinator::Evidence { .. }
            | ToCoordinator::Disconnecting { .. }
            | ToCoordinator::Ping { .. }
            | ToCoordinator::Lead(_)
            | ToCoordinator::LeaderQuery(_)
            | ToCoordinator::ProbeReport(_) => {}
        }
    }
    Ok(())
}

fn start(
    client: &mut Client,
    member: &TorchrunMember,
    prefix: &str,
    restarts: u32,
) -> Result<FromCoordinator, Box<dyn std::error::Error>> {
    let info = RoleInfo { role: member.role.clone(), rank: member.node_rank, local_world_size: member.workers };
    client.set(format!("{prefix}/role_info/{}", member.node_rank).as_str(), &serde_json::to_vec(&info)?)?;
    client.set_timeout(member.timeout);
    let assigned = client.get(format!("{prefix}/assigned_ranks/{}", member.node_rank).as_str())?;
    let [first_rank, world_size, first_role_rank, role_world_size]: [usize; 4] = serde_json::from_slice(&assigned)?;
    Ok(FromCoordinator::Start(Start {
        round: u64::from(restarts),
        restarts,
        group_rank: member.node_rank,
        group_world_size: member.nodes,
        first_rank,
        world_size,
        first_role_rank,
        role_world_size,
        master_address: member.master_address.clone(),
        master_port: member.master_port,
        launcher_serves_store: true,
        reason: None,
        changes: 0,
        epoch: None,
        secret: None,
        relay: None,
    }))
}

fn exit_barrier(client: &mut Client, member: &TorchrunMember, prefix: &str) -> Result<(), instep_store::Error> {
    let state = format!("{prefix}/agent/terminal_state");
    let arrived = client.add(format!("{state}/num_members").as_str(), 1)?;
    let last = format!("{state}/last_member");
    if usize::try_from(arrived).is_ok_and(|arrived| arrived >= member.nodes) {
        return client.set(last.as_str(), b"<val_ignored>");
    }
    client.set_timeout(EXIT_BARRIER);
    client.get(last.as_str()).map(|_| ())
}
