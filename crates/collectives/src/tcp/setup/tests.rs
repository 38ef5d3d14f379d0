//! Ranks whose set-ups are joined by queues under a virtual clock, as quinn's `Pair` joins its connections: no sockets.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::Address;
use crate::tcp::handshake::HELLO_DEADLINE;
use crate::tcp::secret::Secret;
use crate::tcp::wire::HELLO_BYTES;

const TIMEOUT: Duration = Duration::from_secs(10);

fn endpoint(rank: usize, number: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, rank as u8], 1000 + number))
}

fn addresses(world: usize) -> Vec<Address> {
    let address = |rank: usize| Address {
        host: format!("host{rank}"),
        memory: format!("m{rank}"),
        socket: Vec::new(),
        token: [rank as u8 + 1; 16],
        network: format!("n{rank}"),
        endpoints: vec![endpoint(rank, 0), endpoint(rank, 1)],
        p2p_port: 1,
        canonical: false,
    };
    (0..world).map(address).collect()
}

/// One end of a connection: whose, and what it is called there.
type End = (usize, ConnectionId);

/// Set-ups of several ranks, and the bytes between them.
struct Network<'a> {
    ranks: Vec<Option<Setup<'a>>>,
    /// From each end to the other.
    peers: BTreeMap<End, End>,
    /// On their way to an end.
    wires: BTreeMap<End, VecDeque<u8>>,
    dead: BTreeSet<SocketAddr>,
    start: Instant,
    now: Instant,
    /// The most bytes that arrive at once.
    piece: usize,
}

impl<'a> Network<'a> {
    fn new(ranks: Vec<Option<Setup<'a>>>, start: Instant, piece: usize) -> Network<'a> {
        let (peers, wires, dead) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Network { ranks, peers, wires, dead, start, now: start, piece }
    }

    fn perform(&mut self, rank: usize) {
        while let Some(action) = self.ranks[rank].as_mut().and_then(Setup::next_action) {
            match action {
                SetupAction::Dial { id, endpoint } => self.dial((rank, id), endpoint),
                SetupAction::Send { id, bytes } => match self.peers.get(&(rank, id)) {
                    Some(other) => self.wires.entry(*other).or_default().extend(bytes),
                    None => self.closed((rank, id)),
                },
                SetupAction::Close { id } => {
                    if let Some(other) = self.peers.remove(&(rank, id)) {
                        self.peers.remove(&other);
                        // What was written before arrives, then the end.
                        self.deliver(other);
                        self.closed(other);
                    }
                }
            }
        }
    }

    fn dial(&mut self, end: End, endpoint: SocketAddr) {
        let called = (0..self.ranks.len()).find(|rank| self.has(*rank, endpoint));
        let accepted = called.filter(|_| !self.dead.contains(&endpoint)).and_then(|called| {
            let id = self.ranks[called].as_mut()?.accepted(self.now)?;
            Some((called, id))
        });
        match accepted {
            Some(other) => {
                self.peers.insert(end, other);
                self.peers.insert(other, end);
                self.with(end.0, |setup| setup.connected(end.1));
            }
            None => self.closed(end),
        }
    }

    fn has(&self, rank: usize, at: SocketAddr) -> bool {
        [0, 1].map(|number| endpoint(rank, number)).contains(&at)
    }

    fn with(&mut self, rank: usize, event: impl FnOnce(&mut Setup<'a>)) {
        if let Some(setup) = &mut self.ranks[rank] {
            event(setup);
        }
        self.perform(rank);
    }

    fn closed(&mut self, (rank, id): End) {
        self.with(rank, |setup| setup.closed(id));
    }

    /// Hands over what has arrived at an end, as far as it is wanted there.
    fn deliver(&mut self, (rank, id): End) {
        loop {
            let wanted = self.ranks[rank].as_ref().map_or(0, |setup| setup.wanted_bytes(id)).min(self.piece);
            let Some(wire) = self.wires.get_mut(&(rank, id)) else { return };
            let bytes: Vec<u8> = wire.drain(..wanted.min(wire.len())).collect();
            if bytes.is_empty() {
                return;
            }
            self.with(rank, |setup| setup.received(id, &bytes));
        }
    }

    /// Hands over everything that is wanted, also what is sent in answer; only then does the clock move.
    fn deliver_all(&mut self) {
        loop {
            let wanted = |(rank, id): &End| self.ranks[*rank].as_ref().map_or(0, |setup| setup.wanted_bytes(*id));
            let ready = self.wires.iter().filter(|(end, wire)| !wire.is_empty() && wanted(end) > 0);
            let ready: Vec<End> = ready.map(|(end, _)| *end).collect();
            if ready.is_empty() {
                return;
            }
            ready.into_iter().for_each(|end| self.deliver(end));
        }
    }

    /// Runs until every rank has an outcome.
    fn run(&mut self) -> Vec<Option<SetupOutcome>> {
        loop {
            for rank in 0..self.ranks.len() {
                let now = self.now;
                self.with(rank, |setup| setup.tick(now));
            }
            self.deliver_all();
            let now = self.now;
            let outcomes: Vec<_> =
                self.ranks.iter().map(|setup| setup.as_ref().map(|setup| setup.outcome(now))).collect();
            if outcomes.iter().flatten().all(|outcome| *outcome != SetupOutcome::Waiting) {
                return outcomes;
            }
            let next = self.ranks.iter().flatten().map(Setup::wakeup).min().expect("somebody waits");
            self.now = next.max(self.now + Duration::from_millis(1));
            assert!(self.now <= self.start + 2 * TIMEOUT, "the deadline ends it");
        }
    }
}

fn wanted(world: usize) -> Vec<Vec<WantedConnection>> {
    Rank::all(world).map(|rank| WantedConnection::to_all(rank, world, Purpose::Collectives)).collect()
}

fn membership<'a>(rank: usize, addresses: &'a [Address], secret: Option<&'a Secret>) -> Membership<'a> {
    Membership { rank: Rank(rank), addresses, generation: 3, secret }
}

fn failure(outcome: &Option<SetupOutcome>) -> &str {
    match outcome {
        Some(SetupOutcome::Failed(text)) => text,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn every_pair_is_connected_once_however_bytes_arrive(world in 2usize..6, piece in 1usize..100, dead in any::<u8>()) {
        let (addresses, wanted, start) = (addresses(world), wanted(world), Instant::now());
        let setup = |rank: usize| Setup::new(membership(rank, &addresses, None), &wanted[rank], start, start + TIMEOUT).ok();
        let mut network = Network::new((0..world).map(setup).collect(), start, piece);
        // One of the two endpoints of some ranks answers nobody.
        network.dead = (0..world).filter(|rank| dead >> rank & 1 == 1).map(|rank| endpoint(rank, 0)).collect();
        let outcomes = network.run();
        for (rank, outcome) in outcomes.iter().enumerate() {
            let Some(SetupOutcome::Connected(ids)) = outcome else { panic!("rank {rank}: {outcome:?}") };
            for (wanted, id) in wanted[rank].iter().zip(ids) {
                let (peer, other) = network.peers[&(rank, *id)];
                prop_assert_eq!(Rank(peer), wanted.peer);
                let Some(SetupOutcome::Connected(theirs)) = &outcomes[peer] else { panic!("rank {peer}") };
                prop_assert!(theirs.contains(&other), "both ends take the same connection");
            }
        }
        prop_assert!(network.now < start + TIMEOUT / 2);
    }
}

#[test]
fn a_late_rank_is_named_in_the_failure() {
    let (addresses, wanted, start) = (addresses(4), wanted(4), Instant::now());
    let setup = |rank: usize| {
        (rank != 2)
            .then(|| Setup::new(membership(rank, &addresses, None), &wanted[rank], start, start + TIMEOUT).unwrap())
    };
    let mut network = Network::new((0..4).map(setup).collect(), start, 7);
    let outcomes = network.run();
    assert!(outcomes[2].is_none() && network.now >= start + TIMEOUT);
    for rank in [0, 1, 3] {
        assert_eq!(failure(&outcomes[rank]), "rank 2 did not arrive");
    }
}

#[test]
fn ranks_with_different_secrets_get_a_hint() {
    let (addresses, wanted, start) = (addresses(2), wanted(2), Instant::now());
    let secrets = ["one", "other"].map(Secret::new);
    let setup = |rank: usize| {
        Setup::new(membership(rank, &addresses, Some(&secrets[rank])), &wanted[rank], start, start + TIMEOUT).ok()
    };
    let outcomes = Network::new((0..2).map(setup).collect(), start, 48).run();
    for outcome in &outcomes {
        assert!(failure(outcome).contains("is INSTEP_SECRET the same on all?"), "{outcome:?}");
    }
}

#[test]
fn a_rank_of_an_earlier_generation_is_refused_with_the_reason() {
    let (addresses, wanted, start) = (addresses(2), wanted(2), Instant::now());
    let setup = |rank: usize| {
        let membership = Membership { generation: if rank == 0 { 3 } else { 2 }, ..membership(rank, &addresses, None) };
        Setup::new(membership, &wanted[rank], start, start + TIMEOUT).ok()
    };
    let outcomes = Network::new((0..2).map(setup).collect(), start, 5).run();
    assert_eq!(failure(&outcomes[1]), "rank 0 is at generation 3, rank 1 at 2");
    assert_eq!(failure(&outcomes[0]), "rank 1 did not arrive");
}

#[test]
fn a_caller_that_says_nothing_is_closed_and_noise_is_too() {
    let (addresses, wanted, start) = (addresses(2), wanted(2), Instant::now());
    let mut setup = Setup::new(membership(0, &addresses, None), &wanted[0], start, start + TIMEOUT).unwrap();
    let [silent, noisy] = [(); 2].map(|()| setup.accepted(start).unwrap());
    assert_eq!(setup.wakeup(), start + HELLO_DEADLINE);
    setup.received(noisy, &[0x55; HELLO_BYTES]);
    assert_eq!(setup.next_action(), Some(SetupAction::Close { id: noisy }));
    setup.tick(start + HELLO_DEADLINE - Duration::from_millis(1));
    assert_eq!(setup.next_action(), None);
    setup.tick(start + HELLO_DEADLINE);
    assert_eq!(setup.next_action(), Some(SetupAction::Close { id: silent }));
    assert_eq!(setup.outcome(start + HELLO_DEADLINE), SetupOutcome::Waiting);
}

#[test]
fn a_connection_that_cannot_be_confirmed_is_sought_again() {
    let (addresses, wanted, start) = (addresses(2), wanted(2), Instant::now());
    let mut setup = Setup::new(membership(1, &addresses, None), &wanted[1], start, start + TIMEOUT).unwrap();
    setup.tick(start);
    let Some(SetupAction::Dial { id, .. }) = setup.next_action() else { panic!("the higher rank calls") };
    setup.connected(id);
    setup.received(id, &crate::tcp::wire::answer(addresses[1].token, ""));
    assert_eq!(setup.outcome(start), SetupOutcome::Connected(vec![id]));
    setup.closed(id);
    assert_eq!(setup.outcome(start), SetupOutcome::Waiting);
    setup.tick(start + STAGGER);
    while let Some(action) = setup.next_action() {
        if matches!(action, SetupAction::Dial { id: again, .. } if again != id) {
            return;
        }
    }
    panic!("it is not dialled again");
}
