//! Ranks whose set-ups are joined by queues under a virtual clock, as quinn's `Pair` joins its connections: no sockets.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::Address;
use crate::partition::NetworkChannels;
use crate::tcp::handshake::{CONFIRMATION_DEADLINE, HELLO_DEADLINE};
use crate::tcp::secret::Secret;
use crate::tcp::wire::{ANSWER_BYTES, CONFIRMATION_BYTES, HELLO_BYTES};

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
        encrypted: false,
        channels: NetworkChannels::ONE,
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
    /// Everything that was ever sent to an end.
    overheard: BTreeMap<End, Vec<u8>>,
}

impl<'a> Network<'a> {
    fn new(ranks: Vec<Option<Setup<'a>>>, start: Instant, piece: usize) -> Network<'a> {
        let (peers, wires, dead, overheard) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Network { ranks, peers, wires, dead, start, now: start, piece, overheard }
    }

    fn perform(&mut self, rank: usize) {
        while let Some(action) = self.ranks[rank].as_mut().and_then(Setup::next_action) {
            match action {
                SetupAction::Dial { id, endpoint } => self.dial((rank, id), endpoint),
                SetupAction::Send { id, bytes } => match self.peers.get(&(rank, id)) {
                    Some(other) => {
                        self.overheard.entry(*other).or_default().extend(&bytes);
                        self.wires.entry(*other).or_default().extend(bytes);
                    }
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
            let id = self.ranks[called].as_mut()?.accepted(self.now);
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
    in_channels(world, NetworkChannels::ONE)
}

fn in_channels(world: usize, channels: NetworkChannels) -> Vec<Vec<WantedConnection>> {
    Rank::all(world)
        .map(|rank| WantedConnection::in_channels(rank.others(world), channels, Purpose::Collectives))
        .collect()
}

fn membership<'a>(rank: usize, addresses: &'a [Address], secret: Option<&'a Secret>) -> Membership<'a> {
    Membership { rank: Rank(rank), addresses, generation: 3, secret, encrypt: false }
}

fn nonces(seed: u8) -> Nonces {
    Nonces::new([seed; 32])
}

fn failure(outcome: &Option<SetupOutcome>) -> &str {
    match outcome {
        Some(SetupOutcome::Failed(text)) => text,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn every_pair_is_connected_once_however_bytes_arrive((world, channels) in (2usize..6, 1usize..4), piece in 1usize..100, dead in any::<u8>()) {
        let channels = NetworkChannels::new(channels, 0);
        let (addresses, wanted_by, start) = (addresses(world), in_channels(world, channels), Instant::now());
        let setup = |rank: usize| Setup::new(membership(rank, &addresses, None), &wanted_by[rank], nonces(rank as u8), start, start + TIMEOUT).ok();
        let mut network = Network::new((0..world).map(setup).collect(), start, piece);
        // One of the two endpoints of some ranks answers nobody.
        network.dead = (0..world).filter(|rank| dead >> rank & 1 == 1).map(|rank| endpoint(rank, 0)).collect();
        let outcomes = network.run();
        for (rank, outcome) in outcomes.iter().enumerate() {
            let Some(SetupOutcome::Connected(ids)) = outcome else { panic!("rank {rank}: {outcome:?}") };
            for (wanted, id) in wanted_by[rank].iter().zip(ids) {
                let (peer, other) = network.peers[&(rank, *id)];
                prop_assert_eq!(Rank(peer), wanted.peer);
                let Some(SetupOutcome::Connected(theirs)) = &outcomes[peer] else { panic!("rank {peer}") };
                let at = theirs.iter().position(|id| *id == other).expect("both ends take the same connection");
                prop_assert_eq!(wanted_by[peer][at], WantedConnection { peer: Rank(rank), purpose: wanted.purpose });
            }
        }
        prop_assert!(network.now < start + TIMEOUT / 2);
    }
}

#[test]
fn a_late_rank_is_named_in_the_failure() {
    let (addresses, wanted, start) = (addresses(4), wanted(4), Instant::now());
    let setup = |rank: usize| {
        (rank != 2).then(|| {
            Setup::new(membership(rank, &addresses, None), &wanted[rank], nonces(rank as u8), start, start + TIMEOUT)
                .unwrap()
        })
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
        Setup::new(
            membership(rank, &addresses, Some(&secrets[rank])),
            &wanted[rank],
            nonces(rank as u8),
            start,
            start + TIMEOUT,
        )
        .ok()
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
        Setup::new(membership, &wanted[rank], nonces(rank as u8), start, start + TIMEOUT).ok()
    };
    let outcomes = Network::new((0..2).map(setup).collect(), start, 5).run();
    assert_eq!(failure(&outcomes[1]), "rank 0 is at generation 3, rank 1 at 2");
    assert_eq!(failure(&outcomes[0]), "rank 1 did not arrive");
}

#[test]
fn a_caller_that_says_nothing_is_closed_and_noise_is_too() {
    let (addresses, wanted, start) = (addresses(2), wanted(2), Instant::now());
    let mut setup = Setup::new(membership(0, &addresses, None), &wanted[0], nonces(0), start, start + TIMEOUT).unwrap();
    let [silent, noisy] = [(); 2].map(|()| setup.accepted(start));
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
    let [mut called, mut setup] = [0, 1].map(|rank| pair_member(rank, &addresses, &wanted, start, None));
    let id = welcomed(&mut setup, &mut called, start);
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

fn pair_member<'a>(
    rank: usize,
    addresses: &'a [Address],
    wanted: &'a [Vec<WantedConnection>],
    start: Instant,
    secret: Option<&'a Secret>,
) -> Setup<'a> {
    // Other nonces than in `Network`, as in another set-up of the same generation.
    let nonces = nonces(100 + rank as u8);
    Setup::new(membership(rank, addresses, secret), &wanted[rank], nonces, start, start + TIMEOUT).unwrap()
}

/// What a set-up sends next, on this connection; others may be closed before.
fn sent(setup: &mut Setup<'_>, id: ConnectionId) -> Vec<u8> {
    loop {
        match setup.next_action() {
            Some(SetupAction::Send { id: other, bytes }) if other == id => return bytes,
            Some(SetupAction::Close { id: other }) if other != id => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Has the called welcome the caller, who has not sent its confirmation yet.
fn welcomed(caller: &mut Setup<'_>, called: &mut Setup<'_>, now: Instant) -> ConnectionId {
    caller.tick(now);
    let Some(SetupAction::Dial { id, .. }) = caller.next_action() else { panic!("the higher rank calls") };
    caller.connected(id);
    let accepted = called.accepted(now);
    called.received(accepted, &sent(caller, id));
    caller.received(id, &sent(called, accepted));
    id
}

/// What rank 1 said to rank 0 on their connection, and what it was told.
fn conversation(addresses: &[Address], secret: Option<&Secret>) -> (Vec<u8>, Vec<u8>) {
    let (wanted, start) = (wanted(2), Instant::now());
    let setup = |rank: usize| {
        Setup::new(membership(rank, addresses, secret), &wanted[rank], nonces(rank as u8), start, start + TIMEOUT).ok()
    };
    let mut network = Network::new((0..2).map(setup).collect(), start, 100);
    assert!(network.run().iter().flatten().all(|outcome| matches!(outcome, SetupOutcome::Connected(_))));
    let of = |rank: usize| network.overheard.iter().find(|((other, _), _)| *other == rank).unwrap().1.clone();
    (of(0), of(1))
}

#[test]
fn a_conversation_that_was_recorded_opens_nothing_on_either_side() {
    let secret = Secret::new("of the job");
    for secret in [None, Some(&secret)] {
        let (addresses, wanted, start) = (addresses(2), wanted(2), Instant::now());
        let (said, answered) = conversation(&addresses, secret);
        assert_eq!((said.len(), answered.len()), (HELLO_BYTES + CONFIRMATION_BYTES, ANSWER_BYTES));

        // Somebody says to rank 0 what rank 1 said: there is an answer, and the old last word does not fit it.
        let mut setup = pair_member(0, &addresses, &wanted, start, secret);
        let id = setup.accepted(start);
        setup.received(id, &said[..HELLO_BYTES]);
        assert_ne!(sent(&mut setup, id), answered);
        setup.received(id, &said[HELLO_BYTES..]);
        assert_eq!(setup.next_action(), Some(SetupAction::Close { id }));
        assert_eq!(setup.outcome(start), SetupOutcome::Waiting);

        // Somebody answers rank 1 as rank 0 did: nothing more is said.
        let mut setup = pair_member(1, &addresses, &wanted, start, secret);
        setup.tick(start);
        let Some(SetupAction::Dial { id, .. }) = setup.next_action() else { panic!("the higher rank calls") };
        setup.connected(id);
        assert_ne!(sent(&mut setup, id), said[..HELLO_BYTES]);
        setup.received(id, &answered);
        assert_eq!(setup.next_action(), Some(SetupAction::Close { id }));
        assert_eq!(setup.outcome(start), SetupOutcome::Waiting);
    }
}

#[test]
fn a_refusal_that_was_recorded_ends_nothing() {
    let (addresses, wanted, start) = (addresses(2), wanted(2), Instant::now());
    let mut ahead = pair_member(0, &addresses, &wanted, start, None);
    ahead.membership.generation += 1;
    let mut callers = [(); 2].map(|()| pair_member(1, &addresses, &wanted, start, None));
    // The second draws other nonces than the first.
    callers[1].nonces = nonces(200);
    let [(refusal, first), (_, second)] = callers.each_mut().map(|caller| {
        caller.tick(start);
        let Some(SetupAction::Dial { id, .. }) = caller.next_action() else { panic!("the higher rank calls") };
        caller.connected(id);
        let accepted = ahead.accepted(start);
        ahead.received(accepted, &sent(caller, id));
        let refusal = sent(&mut ahead, accepted);
        assert_eq!(ahead.next_action(), Some(SetupAction::Close { id: accepted }));
        (refusal, id)
    });
    for (caller, id) in callers.iter_mut().zip([first, second]) {
        caller.received(id, &refusal[..ANSWER_BYTES]);
        caller.received(id, &refusal[ANSWER_BYTES..]);
    }
    assert!(matches!(callers[0].outcome(start), SetupOutcome::Failed(text) if text.contains("at generation 4")));
    assert_eq!(callers[1].outcome(start), SetupOutcome::Waiting);
}

#[test]
fn callers_that_do_not_go_on_are_bounded_in_number_and_time() {
    let (addresses, wanted, start) = (addresses(2), wanted(2), Instant::now());
    let (said, _) = conversation(&addresses, None);
    let most = 2 * wanted[0].len() + MAX_UNIDENTIFIED;
    let mut setup = pair_member(0, &addresses, &wanted, start, None);
    // A hello that was recorded, and then many who say a part of one or nothing.
    let replayed = setup.accepted(start);
    setup.received(replayed, &said[..HELLO_BYTES]);
    sent(&mut setup, replayed);
    for number in 0..1000 {
        let id = setup.accepted(start);
        setup.received(id, &said[..number % HELLO_BYTES]);
        assert!(setup.incoming.len() <= most);
    }
    assert!(setup.incoming.contains_key(&replayed), "those that have shown nothing give way first");
    // The same again is a stranger's, as many times as it is said.
    let again = setup.accepted(start);
    setup.actions.clear();
    setup.received(again, &said[..HELLO_BYTES]);
    assert_eq!(setup.next_action(), Some(SetupAction::Close { id: again }));
    // In the middle of that rank 1 calls, and is let in although more strangers come before it confirms.
    let mut caller = pair_member(1, &addresses, &wanted, start, None);
    caller.nonces = nonces(200);
    setup.actions.clear();
    let id = welcomed(&mut caller, &mut setup, start);
    for _ in 0..1000 {
        setup.accepted(start);
    }
    let of_caller = *setup.incoming.iter().rfind(|(_, caller)| caller.claimed().is_some()).unwrap().0;
    setup.received(of_caller, &sent(&mut caller, id));
    assert_eq!(setup.outcome(start), SetupOutcome::Connected(vec![of_caller]));
    // The strangers are closed in time.
    setup.tick(start + HELLO_DEADLINE);
    assert_eq!(setup.incoming.keys().copied().collect::<Vec<_>>(), [replayed]);
    setup.tick(start + CONFIRMATION_DEADLINE);
    assert!(setup.incoming.is_empty());
}
