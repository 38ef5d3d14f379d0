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
//! [`ForeignNodes`] is node 0's side of it, inside the coordinator. [`join`] is the other side: our node in a job whose
//! node 0 is torchrun, translated to the messages a coordinator would send, so that the supervisor sees no difference.
//! A c10d job cannot be shared: torchrun keeps its state there as a pickle of private classes.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use instep_policy::membership::{Event, LauncherId, Member, NodeFacts, NodeId};
use instep_store::{Client, Context, Key, Request};
use serde::{Deserialize, Serialize};

use crate::control::{self, FromCoordinator, Start, ToCoordinator};
use crate::failure::Failure;

/// How long torchrun's nodes wait for each other at the end.
const EXIT_BARRIER: Duration = Duration::from_secs(300);

/// How often the store is looked at.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(50);

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
pub(crate) struct ForeignNodes {
    prefix: String,
    max_nodes: usize,
    nodes: BTreeMap<usize, NodeId>,
    /// How many of our own nodes were counted as done.
    ours_done: i64,
    /// How many foreign nodes were reported as done.
    theirs_done: i64,
    next_look: Option<Instant>,
}

impl ForeignNodes {
    pub(crate) fn new(run_id: &str, max_nodes: usize) -> ForeignNodes {
        ForeignNodes {
            prefix: format!("/{run_id}/torchelastic"),
            max_nodes,
            nodes: BTreeMap::new(),
            ours_done: 0,
            theirs_done: 0,
            next_look: None,
        }
    }

    /// Whether there is one.
    pub(crate) fn any(&self) -> bool {
        !self.nodes.is_empty()
    }

    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.prefix).into_bytes()
    }

    /// What the keys say that they did not say before.
    pub(crate) fn look(&mut self, context: &Context<'_>) -> Vec<Event> {
        if self.next_look.is_some_and(|due| context.now < due) {
            return Vec::new();
        }
        self.next_look = Some(context.now + LOOK_INTERVAL);
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
                pledges: Vec::new(),
                busy: false,
                after_silence: false,
                address: format!("node {rank} (torchrun)"),
                process: 0,
                workers: info.local_world_size,
                role: info.role,
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

    /// Tells the foreign nodes their ranks.
    pub(crate) fn assign(&mut self, members: &[Member], world_size: usize, context: &mut Context<'_>) {
        for member in members.iter().filter(|member| self.nodes.values().any(|node| *node == member.node)) {
            let ranks = [member.first_rank, world_size, member.first_role_rank, member.role_world_size];
            let key = self.key(&format!("assigned_ranks/{}", member.group_rank));
            context.set(&key, format!("{ranks:?}").as_bytes());
        }
    }

    /// Counts one of our nodes as done, where foreign ones will look.
    pub(crate) fn count_ours(&mut self, context: &mut Context<'_>) {
        if context.add(&self.key("agent/terminal_state/num_members"), 1).is_ok() {
            self.ours_done += 1;
        }
    }

    /// Everyone is done: foreign nodes may leave.
    pub(crate) fn release(&self, context: &mut Context<'_>) {
        context.set(&self.key("agent/terminal_state/last_member"), b"<val_ignored>");
    }
}

fn decimal(bytes: &[u8]) -> i64 {
    std::str::from_utf8(bytes).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// What our node needs to know to take part in torchrun's job.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) run_id: String,
    pub(crate) role: String,
    pub(crate) node_rank: usize,
    pub(crate) nodes: usize,
    pub(crate) workers: usize,
    pub(crate) max_restarts: u32,
    pub(crate) master_address: String,
    pub(crate) master_port: u16,
    pub(crate) timeout: Duration,
}

/// Takes part in a job served by torchrun; speaks to the supervisor on `supervisor` as a coordinator would.
pub(crate) fn join(mut client: Client, place: Place, supervisor: UnixStream) {
    let mut replies = match supervisor.try_clone() {
        Ok(stream) => stream,
        Err(_) => return,
    };
    let mut say = |message: &FromCoordinator| replies.write_all(&control::encode(message));
    let result = take_part(&mut client, &place, BufReader::new(supervisor), &mut say);
    if let Err(cause) = result {
        let reason =
            format!("the torchrun at {}:{} stopped answering: {cause}", place.master_address, place.master_port);
        // The supervisor may be gone already; then nobody needs to be told.
        let _ = say(&FromCoordinator::Fail { reason, failures: Vec::new() });
    }
}

fn take_part(
    client: &mut Client,
    place: &Place,
    supervisor: impl BufRead,
    say: &mut impl FnMut(&FromCoordinator) -> io::Result<()>,
) -> Result<(), Box<dyn std::error::Error>> {
    let prefix = format!("{}/torchelastic", place.run_id);
    // torchrun's node 0 waits until every node has counted itself here.
    client.add(Key::raw("init/"), 1)?;
    let mut restarts = 0;
    say(&start(client, place, &prefix, restarts)?)?;
    for line in supervisor.lines() {
        match serde_json::from_str(&line?)? {
            ToCoordinator::Failed(failure) if restarts < place.max_restarts => {
                restarts += 1;
                say(&FromCoordinator::Stop {
                    reason: format!("{}; restart {restarts} of {}", failure.describe(), place.max_restarts),
                    at_once: false,
                })?;
            }
            ToCoordinator::Failed(failure) => {
                let reason = format!("{}; no restarts are left", failure.describe());
                let failures: Vec<Failure> = vec![*failure];
                say(&FromCoordinator::Fail { reason, failures })?;
            }
            ToCoordinator::Stopped {} => say(&start(client, place, &prefix, restarts)?)?,
            ToCoordinator::Finished {} => {
                // Once our workers are done, whatever happens to the barrier is no failure of ours.
                let _ = exit_barrier(client, place, &prefix);
                say(&FromCoordinator::Complete {})?;
            }
            ToCoordinator::Leaving { .. } => return Ok(()),
            // Said to coordinators of ours alone.
            ToCoordinator::Hello(_)
            | ToCoordinator::Started {}
            | ToCoordinator::Draining { .. }
            | ToCoordinator::Parting { .. }
            | ToCoordinator::Ping { .. }
            | ToCoordinator::Lead(_)
            | ToCoordinator::Contact(_)
            | ToCoordinator::Scouted(_) => {}
        }
    }
    Ok(())
}

fn start(
    client: &mut Client,
    place: &Place,
    prefix: &str,
    restarts: u32,
) -> Result<FromCoordinator, Box<dyn std::error::Error>> {
    let info = RoleInfo { role: place.role.clone(), rank: place.node_rank, local_world_size: place.workers };
    client.set(format!("{prefix}/role_info/{}", place.node_rank).as_str(), &serde_json::to_vec(&info)?)?;
    client.set_timeout(place.timeout);
    let assigned = client.get(format!("{prefix}/assigned_ranks/{}", place.node_rank).as_str())?;
    let [first_rank, world_size, first_role_rank, role_world_size]: [usize; 4] = serde_json::from_slice(&assigned)?;
    Ok(FromCoordinator::Start(Start {
        round: u64::from(restarts),
        restarts,
        group_rank: place.node_rank,
        group_world_size: place.nodes,
        first_rank,
        world_size,
        first_role_rank,
        role_world_size,
        master_address: place.master_address.clone(),
        master_port: place.master_port,
        launcher_serves_store: true,
        reason: None,
        changes: 0,
        lineage: None,
        secret: None,
    }))
}

fn exit_barrier(client: &mut Client, place: &Place, prefix: &str) -> Result<(), instep_store::Error> {
    let state = format!("{prefix}/agent/terminal_state");
    let arrived = client.add(format!("{state}/num_members").as_str(), 1)?;
    let last = format!("{state}/last_member");
    if usize::try_from(arrived).is_ok_and(|arrived| arrived >= place.nodes) {
        return client.set(last.as_str(), b"<val_ignored>");
    }
    client.set_timeout(EXIT_BARRIER);
    client.get(last.as_str()).map(|_| ())
}
