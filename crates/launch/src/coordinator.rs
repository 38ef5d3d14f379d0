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
//! In an elastic job every launcher has a coordinator, of which one leads. The others only say where the job is led
//! (module `standing`), and wait for their own launcher to tell them to lead.

mod standing;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use instep_policy::membership::{Action, Event, LauncherId, Member, Membership, NodeFacts, NodeId, Terms};
use instep_policy::silence::Silence;
use instep_policy::succession::{Lineage, Place, SUCCESSORS, Successor};
use instep_store::{ClientId, Companion, Context, Request};
use serde_json::json;

use crate::control::{self, FromCoordinator, Hello, Start, ToCoordinator, WireTerms};
use crate::events::EventLog;
use crate::failure::Failure;
use crate::link::Pulse;
use crate::post::Post;
use crate::secret::JobSecret;
use crate::torchrun::{self, ForeignNodes};

/// What the coordinator is told by the launcher that hosts it.
#[derive(Debug, Clone)]
pub struct Hosting {
    /// The job's id.
    pub run_id: String,
    /// What all nodes must agree on.
    pub terms: Terms,
    /// Known to the launcher in this process alone.
    pub host_token: u64,
    /// The launcher in this process.
    pub launcher: LauncherId,
    /// What workers are told to connect to.
    pub master_address: String,
    /// And the port.
    pub master_port: u16,
    /// Worker rank 0 serves the store, on a port found for each round.
    pub worker_serves_store: bool,
    /// How silence is noticed; without it broken connections alone are.
    pub pulse: Option<Pulse>,
    /// Where the job was led at first, if it was not here.
    pub endpoint: Option<Place>,
    /// What the launcher in this process leaves for us to see.
    pub post: Arc<Post>,
    /// Where events are noted.
    pub events: EventLog,
}

/// A launcher that has introduced itself.
#[derive(Debug)]
struct Guest {
    client: ClientId,
    launcher: LauncherId,
    /// For people: address and process.
    name: String,
    /// Where it would lead.
    standby: Option<Place>,
    host: bool,
    /// When it was last heard, on the clock of `silence`.
    heard: Duration,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Coordinator {
    hosting: Hosting,
    /// `None` while another launcher's coordinator leads.
    membership: Option<Membership>,
    began: Instant,
    /// Connections that have introduced themselves, by node.
    joined: BTreeMap<NodeId, Guest>,
    /// Addresses of connections that have not.
    peers: BTreeMap<ClientId, SocketAddr>,
    /// Where launchers answer that took part.
    places: BTreeMap<LauncherId, Place>,
    /// Of the newest committed round, and of one that is not committed yet.
    lineage: Option<Lineage>,
    pending: Option<Lineage>,
    silence: Option<Silence>,
    /// When this process was last found to have slept; zero for never.
    woke: Duration,
    next_look: Instant,
    /// Failures of the current round.
    failures: Vec<Failure>,
    /// `None` where there are none and cannot be any.
    foreign: Option<ForeignNodes>,
    /// Where this one has taken over, it tells whoever comes to the first endpoint.
    resumed: bool,
}

impl Hosting {
    /// How silence is measured from now on. Launchers of an elastic job go elsewhere while this process sleeps.
    fn silence(&self) -> Option<Silence> {
        let silence = |pulse: Pulse| Silence::new(pulse.interval, pulse.coordinator_window(), Duration::ZERO);
        let silence = self.pulse.map(silence)?;
        Some(if self.terms.elastic() { silence.counting_sleep() } else { silence })
    }
}

impl Coordinator {
    /// A coordinator without nodes, which leads.
    pub fn new(hosting: Hosting, now: Instant) -> Coordinator {
        let shares_port = hosting.terms.fixed_ranks && hosting.terms.max_nodes > 1;
        Coordinator {
            membership: Some(Membership::new(hosting.terms.clone(), Duration::ZERO)),
            began: now,
            joined: BTreeMap::new(),
            peers: BTreeMap::new(),
            places: BTreeMap::new(),
            lineage: None,
            pending: None,
            silence: hosting.silence(),
            woke: Duration::ZERO,
            next_look: now,
            failures: Vec::new(),
            foreign: shares_port.then(|| ForeignNodes::new(&hosting.run_id, hosting.terms.max_nodes)),
            resumed: false,
            hosting,
        }
    }

    /// A coordinator that waits until it has to lead.
    pub fn standby(hosting: Hosting, now: Instant) -> Coordinator {
        Coordinator { membership: None, ..Coordinator::new(hosting, now) }
    }

    fn node(client: ClientId) -> NodeId {
        NodeId(client.0)
    }

    fn tell(&self, node: NodeId, message: &FromCoordinator, context: &mut Context<'_>) {
        if let Some(guest) = self.joined.get(&node) {
            context.send(guest.client, control::encode(message));
        }
    }

    fn tell_all(&self, message: &FromCoordinator, context: &mut Context<'_>) {
        let line = control::encode(message);
        for guest in self.joined.values() {
            context.send(guest.client, line.clone());
        }
    }

    fn now(&self, context: &Context<'_>) -> Duration {
        context.now.saturating_duration_since(self.began)
    }

    fn happened(&mut self, event: Event, context: &mut Context<'_>) {
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
                if let Some(lineage) = self.pending.take() {
                    self.tell_all(&FromCoordinator::Lineage(lineage.clone()), context);
                    self.lineage = Some(lineage);
                }
            }
            Action::Stop { nodes, reason, at_once } => {
                for node in nodes {
                    self.tell(node, &FromCoordinator::Stop { reason: reason.clone(), at_once }, context);
                }
            }
            Action::Refuse { node, reason } => self.refuse(node, reason, context),
            Action::Waiting { node: Some(node), reason } => {
                self.tell(node, &FromCoordinator::Waiting { reason }, context);
            }
            Action::Waiting { node: None, reason } => self.tell_all(&FromCoordinator::Waiting { reason }, context),
            Action::Fail { reason } => {
                let failures = std::mem::take(&mut self.failures);
                self.tell_all(&FromCoordinator::Fail { reason, failures }, context);
            }
            Action::Complete => {
                self.tell_all(&FromCoordinator::Complete {}, context);
                if let Some(foreign) = &self.foreign {
                    foreign.release(context);
                }
            }
        }
    }

    fn start(&mut self, start: Action, context: &mut Context<'_>) {
        let Action::Start { round, restarts, changes, members, world_size, reason } = start else { return };
        self.failures.clear();
        // All places of a static job are taken by its first round: from then on no foreign node needs to be looked for.
        self.foreign = self.foreign.take().filter(ForeignNodes::any);
        let mixed = self.foreign.is_some();
        if round > 0 && !mixed {
            context.begin_generation();
        }
        self.pending = self.hosting.terms.elastic().then(|| self.lineage(round, restarts, changes, &members));
        // Workers of torchrun cannot be given one. Without random numbers there is none, and the job goes on.
        let secret = if mixed { None } else { JobSecret::random().ok() };
        let worker_port = self.hosting.worker_serves_store.then(free_port).flatten();
        for member in &members {
            let start = Start {
                round,
                restarts,
                group_rank: member.group_rank,
                group_world_size: members.len(),
                first_rank: member.first_rank,
                world_size,
                first_role_rank: member.first_role_rank,
                role_world_size: member.role_world_size,
                master_address: self.hosting.master_address.clone(),
                master_port: worker_port.unwrap_or(self.hosting.master_port),
                launcher_serves_store: worker_port.is_none(),
                reason: reason.clone(),
                changes,
                lineage: self.pending.clone(),
                secret: secret.clone(),
            };
            self.tell(member.node, &FromCoordinator::Start(start), context);
        }
        if let Some(foreign) = &mut self.foreign {
            foreign.assign(&members, world_size, context);
        }
    }

    /// What every launcher must know in case this one is lost.
    fn lineage(&mut self, round: u64, restarts: u32, changes: u32, members: &[Member]) -> Lineage {
        let guests = members.iter().filter_map(|member| self.joined.get(&member.node));
        let placed = guests.filter_map(|guest| Some((guest.launcher, guest.standby.clone()?)));
        let places: Vec<(LauncherId, Place)> = placed.collect();
        self.places.extend(places.iter().cloned());
        let successors = places.into_iter().take(SUCCESSORS).map(|(launcher, place)| Successor { launcher, place });
        Lineage {
            round,
            restarts,
            changes,
            size: members.len(),
            host: Some(self.hosting.launcher),
            successors: successors.collect(),
        }
    }

    fn refuse(&mut self, node: NodeId, reason: String, context: &mut Context<'_>) {
        if let Some(guest) = self.joined.remove(&node) {
            context.send(guest.client, control::encode(&FromCoordinator::Refused { reason }));
            context.close(guest.client);
        }
    }

    fn greet(&mut self, client: ClientId, hello: Hello, context: &mut Context<'_>) {
        let node = Self::node(client);
        let guest = self.guest(client, &hello, context);
        if let Some(reason) = self.objection(&hello) {
            self.joined.insert(node, guest);
            return self.refuse(node, reason, context);
        }
        if self.membership.is_none() {
            context.send(client, control::encode(&self.direction()));
            return context.close(client);
        }
        let earlier = self.joined.iter().find(|(_, other)| other.launcher == guest.launcher);
        if let Some(earlier) = earlier.map(|(earlier, _)| *earlier) {
            self.let_go(vec![(earlier, "it connected again".to_owned())], context);
        }
        let facts = NodeFacts {
            launcher: hello.launcher,
            last_round: hello.last_round,
            pledges: hello.pledges,
            busy: hello.busy,
            after_silence: hello.after_silence,
            address: hello.address,
            process: hello.process,
            workers: hello.workers,
            role: hello.role,
            node_rank: hello.node_rank,
            host: guest.host,
            foreign: false,
        };
        let now = self.now(context);
        let name = guest.name.clone();
        self.joined.insert(node, guest);
        let actions = self.membership.as_mut().map(|membership| membership.on(Event::Joined { node, facts }, now));
        let actions = actions.unwrap_or_default();
        let refused = |action: &Action| matches!(action, Action::Refuse { node: whom, .. } if *whom == node);
        if !actions.iter().any(refused) {
            self.tell(node, &FromCoordinator::Welcome {}, context);
            self.hosting.events.note("node_joined", json!({"node": name, "nodes": self.joined.len()}));
            if let Some(lineage) = &self.lineage {
                self.tell(node, &FromCoordinator::Lineage(lineage.clone()), context);
            }
        }
        for action in actions {
            self.perform(action, context);
        }
    }

    fn guest(&mut self, client: ClientId, hello: &Hello, context: &Context<'_>) -> Guest {
        let host = hello.host_token == Some(self.hosting.host_token);
        let peer = self.peers.remove(&client).map(|peer| peer.ip().to_canonical().to_string());
        let standby = match host {
            true => Some(Place { address: self.hosting.master_address.clone(), port: self.hosting.master_port }),
            false => hello.standby_port.and_then(|port| Some(Place { address: peer?, port })),
        };
        let now = self.now(context);
        Guest {
            client,
            launcher: hello.launcher,
            name: format!("{} (pid {})", hello.address, hello.process),
            standby,
            host,
            heard: self.silence.as_ref().map_or(now, |silence| silence.mark(now)),
        }
    }

    /// Gives up nodes that may be alive, and tells them.
    fn let_go(&mut self, nodes: Vec<(NodeId, String)>, context: &mut Context<'_>) {
        for (node, cause) in &nodes {
            let Some(guest) = self.joined.remove(node) else { continue };
            context.send(guest.client, control::encode(&FromCoordinator::Dropped { reason: cause.clone() }));
            context.close(guest.client);
            let Guest { name, .. } = guest;
            self.hosting.events.note("node_lost", json!({"node": name, "cause": cause, "silent": true}));
        }
        if !nodes.is_empty() {
            self.happened(Event::Silent { nodes }, context);
        }
    }

    fn objection(&self, hello: &Hello) -> Option<String> {
        if hello.protocol != control::PROTOCOL {
            let ours = env!("CARGO_PKG_VERSION");
            return Some(format!("this node runs instep {}, the first node {ours}; use one version", hello.version));
        }
        if hello.run_id != self.hosting.run_id {
            let here = &self.hosting.run_id;
            return Some(format!("the endpoint serves job \"{here}\", this node wants job \"{}\"", hello.run_id));
        }
        WireTerms::from(&self.hosting.terms).disagreement(&hello.terms)
    }

    fn heard(&mut self, client: ClientId, message: ToCoordinator, context: &mut Context<'_>) {
        let node = Self::node(client);
        if !self.joined.contains_key(&node) {
            return match message {
                ToCoordinator::Hello(hello) => self.greet(client, hello, context),
                ToCoordinator::Contact(contact) => self.contacted(client, &contact, context),
                ToCoordinator::Lead(lead) => self.lead(client, *lead, context),
                ToCoordinator::Scouted(scouted) => self.scouted(client, scouted, context),
                _ => {
                    self.peers.remove(&client);
                    context.close(client);
                }
            };
        }
        match message {
            ToCoordinator::Started {} => self.happened(Event::Started { node }, context),
            ToCoordinator::Stopped {} => self.happened(Event::Stopped { node }, context),
            ToCoordinator::Finished {} => {
                if let Some(foreign) = &mut self.foreign {
                    foreign.count_ours(context);
                }
                self.happened(Event::Finished { node }, context);
            }
            ToCoordinator::Failed(failure) => {
                let cause = failure.describe();
                self.failures.push(*failure);
                self.happened(Event::Failed { node, cause }, context);
            }
            ToCoordinator::Draining { cause } => {
                let name = self.joined.get(&node).map(|guest| guest.name.clone());
                self.hosting.events.note("draining", json!({"node": name, "cause": cause}));
                self.happened(Event::Draining { node, cause }, context);
            }
            ToCoordinator::Leaving { cause, failed } => {
                let guest = self.joined.remove(&node);
                context.close(client);
                let (name, host) = guest.map_or((String::new(), false), |guest| (guest.name, guest.host));
                self.hosting.events.note("node_left", json!({"node": name, "cause": cause}));
                self.happened(Event::Left { node, cause, failed }, context);
                if host && self.hosting.terms.elastic() {
                    // This process ends. Whoever asks until then must not think that the job is led from here.
                    self.membership = None;
                }
            }
            // It is alive, so that it must not be taken for one that has ended.
            ToCoordinator::Parting { cause } => self.let_go(vec![(node, cause)], context),
            // The answer tells the launcher until when it was surely heard.
            ToCoordinator::Ping { at } => self.tell(node, &FromCoordinator::Ping { at }, context),
            ToCoordinator::Hello(_)
            | ToCoordinator::Contact(_)
            | ToCoordinator::Lead(_)
            | ToCoordinator::Scouted(_) => {
                context.close(client);
                self.lose(node, "it sent hello twice", context);
            }
        }
    }

    fn lose(&mut self, node: NodeId, cause: &str, context: &mut Context<'_>) {
        if let Some(Guest { name, .. }) = self.joined.remove(&node) {
            self.hosting.events.note("node_lost", json!({"node": name, "cause": cause, "silent": false}));
            self.happened(Event::Lost { node, cause: cause.to_owned(), silent: false }, context);
        }
    }

    /// If this process was stopped for so long that the launchers have given it up, what they said before is void: they
    /// may have gone on elsewhere. To be called before anything else in a turn.
    fn wake_up(&mut self, context: &mut Context<'_>) {
        let now = self.now(context);
        let (Some(silence), Some(pulse)) = (&mut self.silence, self.hosting.pulse) else { return };
        let away = silence.look(now);
        if !away.is_zero() {
            self.woke = now;
        }
        if !silence.outlasts(away, pulse.window()) || !self.hosting.terms.elastic() {
            return;
        }
        let cause = "this launcher was suspended and cannot know what the others did";
        let guests = self.joined.iter().filter(|(_, guest)| !guest.host);
        let guests = guests.map(|(node, _)| (*node, cause.to_owned())).collect();
        self.let_go(guests, context);
    }

    /// Gives up those who do not speak; once an interval at least.
    fn feel_the_pulse(&mut self, context: &mut Context<'_>) {
        self.wake_up(context);
        let now = self.now(context);
        let Some(silence) = &self.silence else { return };
        let silent = self.joined.iter().filter(|(_, guest)| !guest.host);
        let silent = silent.filter_map(|(node, guest)| Some((*node, silence.verdict(guest.heard, now)?)));
        let silent: Vec<(NodeId, String)> = silent.collect();
        let interval = silence.interval();
        self.next_look = context.now + interval;
        self.let_go(silent, context);
    }

    fn look_for_foreign_nodes(&mut self, context: &mut Context<'_>) {
        let Some(foreign) = &mut self.foreign else { return };
        for event in foreign.look(context) {
            self.happened(event, context);
        }
    }
}

impl Companion for Coordinator {
    fn claims(&self, first: u8) -> bool {
        first == control::FIRST_BYTE
    }

    fn connected(&mut self, client: ClientId, peer: SocketAddr, _context: &mut Context<'_>) {
        self.peers.insert(client, peer);
    }

    fn received(&mut self, client: ClientId, bytes: &[u8], context: &mut Context<'_>) -> usize {
        self.wake_up(context);
        let now = self.now(context);
        // What is read right after a sleep may have been said long before.
        let is_news = |silence: &&Silence| self.woke.is_zero() || now > self.woke + silence.interval() / 2;
        let silence = self.silence.as_ref().filter(is_news);
        if let (Some(silence), Some(guest)) = (silence, self.joined.get_mut(&Self::node(client))) {
            guest.heard = silence.mark(now);
        }
        let mut consumed = 0;
        loop {
            match control::decode::<ToCoordinator>(&bytes[consumed..]) {
                Ok(None) => return consumed,
                Ok(Some((message, length))) => {
                    consumed += length;
                    self.heard(client, message, context);
                }
                Err(_) => {
                    context.close(client);
                    self.closed(client, context);
                    return bytes.len();
                }
            }
        }
    }

    fn closed(&mut self, client: ClientId, context: &mut Context<'_>) {
        self.wake_up(context);
        self.peers.remove(&client);
        self.lose(Self::node(client), "its connection broke", context);
    }

    fn tick(&mut self, context: &mut Context<'_>) -> Option<Instant> {
        self.look_for_foreign_nodes(context);
        self.feel_the_pulse(context);
        let now = self.now(context);
        let wake_at = |coordinator: &Coordinator| coordinator.membership.as_ref().and_then(Membership::wake_at);
        if wake_at(self).is_some_and(|due| due <= now) {
            self.happened(Event::Tick, context);
        }
        self.send_out_scouts();
        let due = wake_at(self).map(|due| self.began + due);
        let look = self.foreign.as_ref().map(|_| context.now + torchrun::LOOK_INTERVAL);
        let ping = self.silence.as_ref().map(|_| self.next_look);
        [due, look, ping].into_iter().flatten().min()
    }

    fn refuses(&mut self, request: &Request<'_>, _peer: SocketAddr) -> Option<String> {
        torchrun::is_dynamic_rendezvous(request).then(|| {
            "Python's torchrun tried to join this c10d job; run instep on all nodes, or use --rdzv-backend static"
                .to_owned()
        })
    }
}

/// A port nobody listens on now.
fn free_port() -> Option<u16> {
    TcpListener::bind(("0.0.0.0", 0)).and_then(|listener| listener.local_addr()).ok().map(|address| address.port())
}
