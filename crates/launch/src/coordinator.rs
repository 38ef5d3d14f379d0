//! The coordinator: carries out the decisions of [`Membership`] for the launchers connected to the store's port.
//!
//! It lives on the store server's thread as its [`Companion`]. Launchers' messages become events, actions become
//! messages, and every round but the first begins a new generation of the store, so that its workers see clean keys
//! while the port stays the same.
//!
//! In a `static` job some nodes may be run by Python's torchrun. They announce themselves by keys in the store
//! (module `torchrun`) instead of a connection; the coordinator answers them by keys, and then leaves the
//! generations alone, since such a node keeps its connection and expects its keys to stay.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use instep_policy::membership::{Action, Event, Member, Membership, NodeFacts, NodeId, Terms};
use instep_store::{ClientId, Companion, Context, Request};

use crate::control::{self, FromCoordinator, Hello, Start, ToCoordinator, WireTerms};
use crate::failure::Failure;
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
    /// What workers are told to connect to.
    pub master_address: String,
    /// And the port.
    pub master_port: u16,
    /// Worker rank 0 serves the store, on a port found for each round.
    pub worker_serves_store: bool,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Coordinator {
    hosting: Hosting,
    membership: Membership,
    began: Instant,
    /// Connections that have introduced themselves, by node.
    joined: BTreeMap<NodeId, ClientId>,
    /// Failures of the current round.
    failures: Vec<Failure>,
    /// `None` where there are none and cannot be any.
    foreign: Option<ForeignNodes>,
}

impl Coordinator {
    /// A coordinator without nodes.
    pub fn new(hosting: Hosting, now: Instant) -> Coordinator {
        let shares_port = hosting.terms.fixed_ranks && hosting.terms.max_nodes > 1;
        Coordinator {
            membership: Membership::new(hosting.terms.clone(), Duration::ZERO),
            began: now,
            joined: BTreeMap::new(),
            failures: Vec::new(),
            foreign: shares_port.then(|| ForeignNodes::new(&hosting.run_id, hosting.terms.max_nodes)),
            hosting,
        }
    }

    fn node(client: ClientId) -> NodeId {
        NodeId(client.0)
    }

    fn tell(&self, node: NodeId, message: &FromCoordinator, context: &mut Context<'_>) {
        if let Some(client) = self.joined.get(&node) {
            context.send(*client, control::encode(message));
        }
    }

    fn tell_all(&self, message: &FromCoordinator, context: &mut Context<'_>) {
        for node in self.joined.keys() {
            self.tell(*node, message, context);
        }
    }

    fn happened(&mut self, event: Event, context: &mut Context<'_>) {
        let now = context.now.saturating_duration_since(self.began);
        for action in self.membership.on(event, now) {
            self.perform(action, context);
        }
    }

    fn perform(&mut self, action: Action, context: &mut Context<'_>) {
        match action {
            Action::Start { round, restarts, members, world_size } => {
                self.start(round, restarts, &members, world_size, context);
            }
            Action::Stop { nodes, reason } => {
                for node in nodes {
                    self.tell(node, &FromCoordinator::Stop { reason: reason.clone() }, context);
                }
            }
            Action::Refuse { node, reason } => self.refuse(node, reason, context),
            Action::Waiting { reason } => self.tell_all(&FromCoordinator::Waiting { reason }, context),
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

    fn start(&mut self, round: u64, restarts: u32, members: &[Member], world_size: usize, context: &mut Context<'_>) {
        self.failures.clear();
        // All places of a static job are taken by its first round: from then on no foreign node needs to be looked for.
        self.foreign = self.foreign.take().filter(ForeignNodes::any);
        let mixed = self.foreign.is_some();
        if round > 0 && !mixed {
            context.begin_generation();
        }
        let worker_port = self.hosting.worker_serves_store.then(free_port).flatten();
        for member in members {
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
            };
            self.tell(member.node, &FromCoordinator::Start(start), context);
        }
        if let Some(foreign) = &mut self.foreign {
            foreign.assign(members, world_size, context);
        }
    }

    fn refuse(&mut self, node: NodeId, reason: String, context: &mut Context<'_>) {
        if let Some(client) = self.joined.remove(&node) {
            context.send(client, control::encode(&FromCoordinator::Refused { reason }));
            context.close(client);
        }
    }

    fn greet(&mut self, client: ClientId, hello: Hello, context: &mut Context<'_>) {
        let node = Self::node(client);
        self.joined.insert(node, client);
        if let Some(reason) = self.objection(&hello) {
            return self.refuse(node, reason, context);
        }
        let facts = NodeFacts {
            address: hello.address,
            process: hello.process,
            workers: hello.workers,
            role: hello.role,
            node_rank: hello.node_rank,
            host: hello.host_token == Some(self.hosting.host_token),
            foreign: false,
        };
        let now = context.now.saturating_duration_since(self.began);
        let actions = self.membership.on(Event::Joined { node, facts }, now);
        let refused = |action: &Action| matches!(action, Action::Refuse { node: whom, .. } if *whom == node);
        if !actions.iter().any(refused) {
            self.tell(node, &FromCoordinator::Welcome {}, context);
        }
        for action in actions {
            self.perform(action, context);
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
                _ => context.close(client),
            };
        }
        match message {
            ToCoordinator::Hello(_) => {
                self.joined.remove(&node);
                context.close(client);
                self.happened(Event::Lost { node, cause: "it said hello twice".to_owned() }, context);
            }
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
            ToCoordinator::Leaving { cause } => {
                self.joined.remove(&node);
                context.close(client);
                self.happened(Event::Left { node, cause }, context);
            }
        }
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

    fn connected(&mut self, _client: ClientId, _peer: SocketAddr, _context: &mut Context<'_>) {}

    fn received(&mut self, client: ClientId, bytes: &[u8], context: &mut Context<'_>) -> usize {
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
        let node = Self::node(client);
        if self.joined.remove(&node).is_some() {
            self.happened(Event::Lost { node, cause: "its connection broke".to_owned() }, context);
        }
    }

    fn tick(&mut self, context: &mut Context<'_>) -> Option<Instant> {
        self.look_for_foreign_nodes(context);
        let now = context.now.saturating_duration_since(self.began);
        if self.membership.wake_at().is_some_and(|due| due <= now) {
            self.happened(Event::Tick, context);
        }
        let due = self.membership.wake_at().map(|due| self.began + due);
        let look = self.foreign.as_ref().map(|_| context.now + torchrun::LOOK_INTERVAL);
        [due, look].into_iter().flatten().min()
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
