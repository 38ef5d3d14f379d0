//! The coordinator: carries out the decisions of [`Membership`] for the launchers connected to the store's port.
//!
//! It lives on the store server's thread as its [`Companion`]. Launchers' messages become events, actions become
//! messages, and every round but the first begins a new generation of the store, so that its workers see clean keys
//! while the port stays the same.
//!
//! In a `static` job some nodes may be run by Python's torchrun. They announce themselves by keys in the store
//! (module `torchrun`) instead of a connection; the coordinator answers them by keys, and then leaves the
//! generations alone, since such a node keeps its connection and expects its keys to stay.
//!
//! Under `--recover step` lost ranks, also those of a lost node, are replaced inside the round where that can be (module
//! `recovery`).
//!
//! Nodes that fall silent or lose their connection are given up in module `heartbeats`.
//!
//! Where ranks wait for too long, it collects what all nodes see (module `hangs`).
//!
//! Who may speak with it at all, and what others hear, is decided in module `admission`.
//!
//! In an elastic job every launcher has a coordinator, of which one leads. The others only say where the job is led
//! (module `leadership`), and wait for their own launcher to tell them to lead.

mod admission;
mod hangs;
mod heartbeats;
mod leadership;
mod recovery;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use instep_diagnosis::remote::NodeEvidence;
use instep_policy::election::{Epoch, HostPort, SUCCESSORS, Successor};
use instep_policy::failure_detector::FailureDetector;
use instep_policy::membership::{
    Action, Event, LauncherId, Membership, MembershipTerms, NodeFacts, NodeId, RoundMember,
};
use instep_store::{ClientId, Companion, Context, Request};
use serde_json::json;

use self::hangs::HangInquiry;
use self::recovery::RoundRecovery;
use crate::control::channel::{self, EncryptedConnection};
use crate::control::heartbeat::Heartbeat;
use crate::control::secret::JobSecret;
use crate::control::token::JobToken;
use crate::control::{self, FromCoordinator, Hello, Start, ToCoordinator};
use crate::election::shared::SharedLeadership;
use crate::events::EventLog;
use crate::failure::Failure;
use crate::rendezvous::torchrun::{self, TorchrunNodes};

/// What the launcher in the same process tells its coordinator.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "some fields say it by their name")]
pub struct CoordinatorSettings {
    pub run_id: String,
    /// What all nodes must agree on.
    pub terms: MembershipTerms,
    /// Known to the launcher in this process alone.
    pub host_token: u64,
    /// What launchers have to prove.
    pub token: Option<JobToken>,
    /// The launcher in this process.
    pub launcher: LauncherId,
    /// What workers are told to connect to.
    pub master_address: String,
    pub master_port: u16,
    /// Worker rank 0 serves the store, on a port found for each round.
    pub worker_serves_store: bool,
    /// How silence is noticed; without it broken connections alone are.
    pub heartbeat: Option<Heartbeat>,
    /// Where the job was led at first, if it was not here.
    pub endpoint: Option<HostPort>,
    /// Shared with the launcher in this process.
    pub leadership: Arc<SharedLeadership>,
    pub events: EventLog,
}

/// A launcher that has said hello.
#[derive(Debug)]
struct JoinedNode {
    client: ClientId,
    launcher: LauncherId,
    /// For people: address and process.
    name: String,
    address: String,
    role: String,
    /// How many ranks of lost nodes it would take over beside its own, and how many it has.
    spares: usize,
    workers: usize,
    /// It can take ranks over without having had any.
    stands_by: bool,
    /// Where it would lead.
    standby: Option<HostPort>,
    host: bool,
    /// When it was last heard, on the clock of `detector`.
    heard: Duration,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Coordinator {
    settings: CoordinatorSettings,
    /// `None` while another launcher's coordinator leads.
    membership: Option<Membership>,
    began: Instant,
    /// Connections that have said hello, by node.
    joined: BTreeMap<NodeId, JoinedNode>,
    /// Connections that have not: their addresses, and since when.
    peers: BTreeMap<ClientId, (SocketAddr, Instant)>,
    /// Encrypted connections.
    encrypted: BTreeMap<ClientId, EncryptedConnection>,
    /// Where launchers answer that took part.
    addresses: BTreeMap<LauncherId, HostPort>,
    /// The newest committed epoch, and one that is not committed yet.
    epoch: Option<Epoch>,
    pending: Option<Epoch>,
    detector: Option<FailureDetector>,
    /// When this process was last found to have slept; zero for never.
    paused_until: Duration,
    next_heartbeat_check: Instant,
    /// Failures of the current round.
    failures: Vec<Failure>,
    /// How the current round replaces lost ranks; `None` where it does not.
    recovery: Option<RoundRecovery>,
    hang_inquiry: HangInquiry,
    /// `None` where there are none and cannot be any.
    torchrun_nodes: Option<TorchrunNodes>,
    /// This coordinator has taken over: it tells whoever comes to the first endpoint.
    resumed: bool,
}

impl Coordinator {
    /// A coordinator without nodes, which leads.
    pub fn new(settings: CoordinatorSettings, now: Instant) -> Coordinator {
        // torchrun's nodes cannot prove a token.
        let shares_port = settings.terms.fixed_ranks && settings.terms.max_nodes > 1 && settings.token.is_none();
        Coordinator {
            membership: Some(Membership::new(settings.terms.clone(), Duration::ZERO)),
            began: now,
            joined: BTreeMap::new(),
            peers: BTreeMap::new(),
            encrypted: BTreeMap::new(),
            addresses: BTreeMap::new(),
            epoch: None,
            pending: None,
            detector: settings.failure_detector(),
            paused_until: Duration::ZERO,
            next_heartbeat_check: now,
            failures: Vec::new(),
            recovery: None,
            hang_inquiry: HangInquiry::default(),
            torchrun_nodes: shares_port.then(|| TorchrunNodes::new(&settings.run_id, settings.terms.max_nodes)),
            resumed: false,
            settings,
        }
    }

    /// A coordinator that waits until it has to lead.
    pub fn standby(settings: CoordinatorSettings, now: Instant) -> Coordinator {
        Coordinator { membership: None, ..Coordinator::new(settings, now) }
    }

    fn node(client: ClientId) -> NodeId {
        NodeId(client.0)
    }

    fn send_to(&mut self, node: NodeId, message: &FromCoordinator, context: &mut Context<'_>) {
        if let Some(client) = self.joined.get(&node).map(|joined_node| joined_node.client) {
            self.send(client, message, context);
        }
    }

    fn broadcast(&mut self, message: &FromCoordinator, context: &mut Context<'_>) {
        let clients: Vec<ClientId> = self.joined.values().map(|joined_node| joined_node.client).collect();
        for client in clients {
            self.send(client, message, context);
        }
    }

    /// A node's ranks wait for too long: all nodes are to say what theirs do.
    fn handle_overdue(&mut self, context: &mut Context<'_>) {
        let nodes = self.joined.iter().map(|(node, joined)| (*node, joined.host)).collect();
        for (node, request) in self.hang_inquiry.begin(&nodes, context.now) {
            self.send_to(node, &FromCoordinator::Diagnose(request), context);
        }
    }

    /// A node's answer goes to the launcher that concludes.
    fn handle_evidence(&mut self, node: NodeId, number: u64, evidence: Box<NodeEvidence>, context: &mut Context<'_>) {
        let host = self.joined.iter().find(|(_, joined)| joined.host).map(|(host, _)| *host);
        if let Some(host) = host.filter(|_| self.hang_inquiry.answered(node, number)) {
            self.send_to(host, &FromCoordinator::Evidence { number, evidence }, context);
        }
    }

    fn now(&self, context: &Context<'_>) -> Duration {
        context.now.saturating_duration_since(self.began)
    }

    fn handle_event(&mut self, event: Event, context: &mut Context<'_>) {
        let now = self.now(context);
        let actions = self.membership.as_mut().map(|membership| membership.on(event, now)).unwrap_or_default();
        for action in actions {
            self.perform(action, context);
        }
    }

    fn perform(&mut self, action: Action, context: &mut Context<'_>) {
        match action {
            Action::Start { .. } => self.start(action, context),
            Action::Commit { .. } => {
                if let Some(epoch) = self.pending.take() {
                    self.broadcast(&FromCoordinator::Epoch(epoch.clone()), context);
                    self.epoch = Some(epoch);
                }
            }
            Action::Stop { nodes, reason, at_once } => {
                self.abandon_recovery(&reason, context);
                for node in nodes {
                    self.send_to(node, &FromCoordinator::Stop { reason: reason.clone(), at_once }, context);
                }
            }
            Action::Refuse { node, reason } => self.refuse(node, reason, context),
            Action::Waiting { node: Some(node), reason } => {
                self.send_to(node, &FromCoordinator::Waiting { reason }, context);
            }
            Action::Waiting { node: None, reason } => self.broadcast(&FromCoordinator::Waiting { reason }, context),
            Action::Fail { reason } => {
                self.abandon_recovery(&reason, context);
                let failures = std::mem::take(&mut self.failures);
                self.broadcast(&FromCoordinator::Fail { reason, failures }, context);
            }
            Action::Complete => {
                self.broadcast(&FromCoordinator::Complete {}, context);
                if let Some(torchrun_nodes) = &self.torchrun_nodes {
                    torchrun_nodes.release(context);
                }
            }
        }
    }

    fn start(&mut self, start: Action, context: &mut Context<'_>) {
        let Action::Start { round, restarts, changes, members, world_size, reason } = start else { return };
        self.failures.clear();
        let recovers = self.settings.terms.step_recovery;
        // A static job is complete with its first round: from then on no node of torchrun needs to be looked for.
        self.torchrun_nodes = self.torchrun_nodes.take().filter(TorchrunNodes::any);
        let shared_with_torchrun = self.torchrun_nodes.is_some();
        if round > 0 && !shared_with_torchrun {
            context.begin_generation();
        }
        self.pending = self.settings.terms.elastic().then(|| self.epoch(round, restarts, changes, &members));
        // Workers of torchrun cannot be given one. Without random numbers there is none, and the job goes on.
        let secret = if shared_with_torchrun { None } else { JobSecret::random().ok() };
        let worker_port = self.settings.worker_serves_store.then(free_port).flatten();
        // As for a node that has no part in the round.
        let unassigned = Start {
            round,
            restarts,
            group_rank: members.len(),
            group_world_size: members.len(),
            first_rank: world_size,
            world_size,
            first_role_rank: world_size,
            role_world_size: world_size,
            master_address: self.settings.master_address.clone(),
            master_port: worker_port.unwrap_or(self.settings.master_port),
            launcher_serves_store: worker_port.is_none(),
            reason: None,
            changes,
            epoch: None,
            secret,
            relay: None,
        };
        for member in &members {
            let start = Start {
                group_rank: member.group_rank,
                first_rank: member.first_rank,
                first_role_rank: member.first_role_rank,
                role_world_size: member.role_world_size,
                reason: reason.clone(),
                epoch: self.pending.clone(),
                ..unassigned.clone()
            };
            self.send_to(member.node, &FromCoordinator::Start(start), context);
        }
        self.recovery = recovers.then(|| RoundRecovery::new(&members, unassigned, &self.joined, context.now));
        if let Some(torchrun_nodes) = &mut self.torchrun_nodes {
            torchrun_nodes.assign(&members, world_size, context);
        }
    }

    /// What every launcher must know in case this one is lost.
    fn epoch(&mut self, round: u64, restarts: u32, changes: u32, members: &[RoundMember]) -> Epoch {
        let joined_nodes = members.iter().filter_map(|member| self.joined.get(&member.node));
        let standbys =
            joined_nodes.filter_map(|joined_node| Some((joined_node.launcher, joined_node.standby.clone()?)));
        let addresses: Vec<(LauncherId, HostPort)> = standbys.collect();
        self.addresses.extend(addresses.iter().cloned());
        let successors =
            addresses.into_iter().take(SUCCESSORS).map(|(launcher, address)| Successor { launcher, address });
        Epoch {
            round,
            restarts,
            changes,
            size: members.len(),
            host: Some(self.settings.launcher),
            successors: successors.collect(),
        }
    }

    fn refuse(&mut self, node: NodeId, reason: String, context: &mut Context<'_>) {
        if let Some(joined_node) = self.joined.remove(&node) {
            self.send(joined_node.client, &FromCoordinator::Refused { reason }, context);
            self.close(joined_node.client, context);
        }
    }

    fn handle_hello(&mut self, client: ClientId, hello: Hello, context: &mut Context<'_>) {
        // What became of nodes that are gone comes first: this one may come in place of one of them.
        self.settle_recovery(context);
        let node = Self::node(client);
        if let Some(reason) = self.refusal_reason(&hello) {
            return self.refuse_hello(client, &hello, &reason, context);
        }
        let joined_node = self.joined_node(client, &hello, context);
        if self.membership.is_none() {
            let redirect = self.redirect();
            self.send(client, &redirect, context);
            return self.close(client, context);
        }
        let earlier = self.joined.iter().find(|(_, other)| other.launcher == joined_node.launcher);
        if let Some(earlier) = earlier.map(|(earlier, _)| *earlier) {
            self.drop_silent_nodes(vec![(earlier, "it connected again".to_owned())], context);
        }
        let facts = NodeFacts {
            launcher: hello.launcher,
            last_round: hello.last_round,
            votes: hello.votes,
            busy: hello.busy,
            after_silence: hello.after_silence,
            address: hello.address,
            process: hello.process,
            workers: hello.workers,
            role: hello.role,
            node_rank: hello.node_rank,
            host: joined_node.host,
            foreign: false,
        };
        let now = self.now(context);
        let name = joined_node.name.clone();
        self.joined.insert(node, joined_node);
        let actions = self.membership.as_mut().map(|membership| membership.on(Event::Joined { node, facts }, now));
        let actions = actions.unwrap_or_default();
        let refused = |action: &Action| matches!(action, Action::Refuse { node: whom, .. } if *whom == node);
        if !actions.iter().any(refused) {
            self.send_to(node, &FromCoordinator::Welcome {}, context);
            self.settings.events.note("node_joined", json!({"node": name, "nodes": self.joined.len()}));
            if let Some(epoch) = &self.epoch {
                self.send_to(node, &FromCoordinator::Epoch(epoch.clone()), context);
            }
        }
        for action in actions {
            self.perform(action, context);
        }
    }

    fn joined_node(&mut self, client: ClientId, hello: &Hello, context: &Context<'_>) -> JoinedNode {
        let host = hello.host_token == Some(self.settings.host_token);
        let peer = self.peers.remove(&client).map(|(peer, _)| peer.ip().to_canonical().to_string());
        let standby = match host {
            true => Some(HostPort { host: self.settings.master_address.clone(), port: self.settings.master_port }),
            false => hello.standby_port.and_then(|port| Some(HostPort { host: peer?, port })),
        };
        let now = self.now(context);
        JoinedNode {
            client,
            launcher: hello.launcher,
            name: format!("{} (pid {})", hello.address, hello.process),
            address: hello.address.clone(),
            role: hello.role.clone(),
            spares: hello.spares,
            workers: hello.workers,
            stands_by: hello.stands_by,
            standby,
            host,
            heard: self.detector.as_ref().map_or(now, |detector| detector.awake_time(now)),
        }
    }

    fn handle_message(&mut self, client: ClientId, message: ToCoordinator, context: &mut Context<'_>) {
        let node = Self::node(client);
        if !self.joined.contains_key(&node) {
            return match message {
                ToCoordinator::Hello(hello) => self.handle_hello(client, hello, context),
                ToCoordinator::LeaderQuery(query) => self.handle_leader_query(client, &query, context),
                ToCoordinator::Lead(lead) => self.take_over(client, *lead, context),
                ToCoordinator::ProbeReport(scouted) => self.handle_probe_report(client, scouted, context),
                _ => {
                    self.peers.remove(&client);
                    self.close(client, context);
                }
            };
        }
        match message {
            ToCoordinator::Started {} => self.handle_event(Event::Started { node }, context),
            ToCoordinator::Stopped {} => self.handle_event(Event::Stopped { node }, context),
            ToCoordinator::Finished {} => {
                if let Some(torchrun_nodes) = &mut self.torchrun_nodes {
                    torchrun_nodes.count_ours(context);
                }
                self.handle_event(Event::Finished { node }, context);
            }
            ToCoordinator::Failed(failure) => {
                let cause = failure.describe();
                self.failures.push(*failure);
                self.handle_event(Event::Failed { node, cause }, context);
            }
            ToCoordinator::Lost { workers } => {
                if let Some(recovery) = &mut self.recovery {
                    recovery.lost(node, workers);
                }
            }
            ToCoordinator::RanksFinished { ends } => {
                if let Some(recovery) = &mut self.recovery {
                    recovery.finished(node, ends);
                }
            }
            ToCoordinator::Hung { rank, incarnation } => self.handle_hung(node, rank, incarnation, context),
            ToCoordinator::Overdue {} => self.handle_overdue(context),
            ToCoordinator::Evidence { number, evidence } => self.handle_evidence(node, number, evidence, context),
            ToCoordinator::Draining { cause } => {
                let name = self.joined.get(&node).map(|joined_node| joined_node.name.clone());
                self.settings.events.note("draining", json!({"node": name, "cause": cause}));
                self.handle_event(Event::Draining { node, cause }, context);
            }
            ToCoordinator::Leaving { cause, failed } => {
                let joined_node = self.joined.remove(&node);
                self.close(client, context);
                let (name, host) =
                    joined_node.map_or((String::new(), false), |joined_node| (joined_node.name, joined_node.host));
                self.settings.events.note("node_left", json!({"node": name, "cause": cause}));
                self.handle_event(Event::Left { node, cause, failed }, context);
                if host && self.settings.terms.elastic() {
                    // This process ends. Whoever asks until then must not think that the job is led from here.
                    self.membership = None;
                }
            }
            // It is alive, so that it must not be taken for one that has ended.
            ToCoordinator::Disconnecting { cause } => self.drop_silent_nodes(vec![(node, cause)], context),
            // The answer tells the launcher until when it was surely heard.
            ToCoordinator::Ping { at } => self.send_to(node, &FromCoordinator::Ping { at }, context),
            ToCoordinator::Hello(_)
            | ToCoordinator::LeaderQuery(_)
            | ToCoordinator::Lead(_)
            | ToCoordinator::ProbeReport(_) => {
                self.close(client, context);
                self.handle_lost_node(node, "it sent hello twice", context);
            }
        }
    }

    fn poll_torchrun_nodes(&mut self, context: &mut Context<'_>) {
        let Some(torchrun_nodes) = &mut self.torchrun_nodes else { return };
        for event in torchrun_nodes.poll(context) {
            let event = if self.settings.terms.step_recovery { refuse_torchrun(event) } else { event };
            self.handle_event(event, context);
        }
    }
}

impl Companion for Coordinator {
    fn claims(&self, first: u8) -> bool {
        // With a token whoever connects has to prove it, the store's clients too: their launchers do it for them.
        self.settings.token.is_some() || first == control::FIRST_BYTE || first == channel::FIRST_BYTE
    }

    fn connected(&mut self, client: ClientId, peer: SocketAddr, context: &mut Context<'_>) {
        self.peers.insert(client, (peer, context.now));
    }

    fn received(&mut self, client: ClientId, bytes: &[u8], context: &mut Context<'_>) -> usize {
        self.detect_own_pause(context);
        self.note_heard(Self::node(client), context);
        self.receive(client, bytes, context)
    }

    fn closed(&mut self, client: ClientId, context: &mut Context<'_>) {
        self.detect_own_pause(context);
        self.peers.remove(&client);
        self.encrypted.remove(&client);
        self.handle_lost_node(Self::node(client), "its connection broke", context);
    }

    fn tick(&mut self, context: &mut Context<'_>) -> Option<Instant> {
        self.poll_torchrun_nodes(context);
        self.settle_recovery(context);
        self.check_heartbeats(context);
        let now = self.now(context);
        let wake_at = |coordinator: &Coordinator| coordinator.membership.as_ref().and_then(Membership::wake_at);
        if wake_at(self).is_some_and(|due| due <= now) {
            self.handle_event(Event::Tick, context);
        }
        self.update_probe_request();
        let due = wake_at(self).map(|due| self.began + due);
        let torchrun_poll = self.torchrun_nodes.as_ref().map(|_| context.now + torchrun::POLL_INTERVAL);
        let hello_due = self.drop_silent_connections(context);
        let ping = self.detector.as_ref().map(|_| self.next_heartbeat_check);
        let missed = self.running_recovery().and_then(|recovery| recovery.missed_at());
        [due, torchrun_poll, ping, hello_due, missed].into_iter().flatten().min()
    }

    fn refuses(&mut self, request: &Request<'_>, _peer: SocketAddr) -> Option<String> {
        torchrun::is_dynamic_rendezvous(request).then(|| {
            "Python's torchrun tried to join this c10d job; run instep on all nodes, or use --rdzv-backend static"
                .to_owned()
        })
    }
}

/// A node of torchrun cannot be told to replace a rank: the job ends before it begins.
fn refuse_torchrun(event: Event) -> Event {
    match event {
        Event::Joined { facts, .. } => {
            let whose = facts.address;
            let hint = "run instep on all nodes, or leave out --recover step";
            Event::Unrecoverable { reason: format!("{whose} cannot replace single ranks (--recover step): {hint}") }
        }
        other => other,
    }
}

/// A port nobody listens on now.
fn free_port() -> Option<u16> {
    TcpListener::bind(("0.0.0.0", 0)).and_then(|listener| listener.local_addr()).ok().map(|address| address.port())
}
