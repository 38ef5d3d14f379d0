//! Ranks whose matchings are joined by queues: every message reaches the right receive, in order, whatever the timing, and
//! nobody holds more than the limits.

use std::collections::{BTreeMap, HashMap, VecDeque};

use proptest::prelude::*;

use super::*;

const WORLD: usize = 3;
const LIMITS: Limits = Limits { eager: 64, window: 1024, offers: 1000, part: 100 };

/// A rank with its memory: what a message carries is one number, repeated.
struct Node {
    matching: Matching,
    sends: HashMap<Id, (u64, usize)>,
    received: BTreeMap<Id, (u64, usize, Option<usize>)>,
    receives: HashMap<Id, (Vec<u64>, usize)>,
    finished_sends: Vec<Id>,
    held: HashMap<Id, (u64, usize)>,
}

/// A frame on its way, with what its bytes carry and how many they are.
type Packet = (Frame, u64);

struct World {
    nodes: Vec<Node>,
    wires: HashMap<(usize, usize), VecDeque<Packet>>,
    /// Frames that are out but whose bytes are not all written.
    writing: Vec<(usize, Frame)>,
    next: Id,
}

impl World {
    fn new(single_copy: bool) -> World {
        let node = |rank| Node {
            matching: Matching::new(Rank(rank), WORLD, single_copy, LIMITS),
            sends: HashMap::new(),
            received: BTreeMap::new(),
            receives: HashMap::new(),
            finished_sends: Vec::new(),
            held: HashMap::new(),
        };
        World { nodes: (0..WORLD).map(node).collect(), wires: HashMap::new(), writing: Vec::new(), next: 0 }
    }

    fn send(&mut self, from: usize, to: usize, tag: u64, bytes: usize) -> Id {
        let id = self.next;
        self.next += 1;
        self.nodes[from].sends.insert(id, (id, bytes));
        self.nodes[from].matching.send(id, Rank(to), tag, bytes, id + 1).unwrap();
        self.settle(from);
        id
    }

    fn receive(&mut self, at: usize, from: Option<usize>, tag: u64, bytes: usize) -> Result<Id, MatchError> {
        let id = self.next;
        self.next += 1;
        self.nodes[at].receives.insert(id, (Vec::new(), bytes));
        self.nodes[at].matching.receive(id, from.map(Rank), tag, bytes)?;
        self.settle(at);
        Ok(id)
    }

    fn settle(&mut self, rank: usize) {
        while let Some(action) = self.nodes[rank].matching.next_action() {
            let node = &mut self.nodes[rank];
            match action {
                Action::Write { to, frame, .. } => {
                    let content = match frame {
                        Frame::Message { id, .. } | Frame::Part { id, .. } => node.sends[&id].0,
                        _ => 0,
                    };
                    self.wires.entry((rank, to.0)).or_default().push_back((frame, content));
                    self.writing.push((rank, frame));
                }
                Action::Finish { id, source } => {
                    if let Some((content, bytes)) = node.receives.remove(&id) {
                        assert!(content.windows(2).all(|pair| pair[0] == pair[1]), "pieces of different messages");
                        node.received.insert(
                            id,
                            (content.first().copied().unwrap_or(u64::MAX), bytes, source.map(|rank| rank.0)),
                        );
                    } else {
                        assert!(node.sends.contains_key(&id));
                        node.finished_sends.push(id);
                    }
                }
                Action::Copy { send, receive } => {
                    let content = node.sends[&send].0;
                    node.receives.get_mut(&receive).unwrap().0.push(content);
                }
                Action::Keep { send, held } => {
                    node.held.insert(held, node.sends[&send]);
                }
                Action::Deliver { held, receive } => {
                    let (content, bytes) = node.held.remove(&held).unwrap();
                    let target = node.receives.get_mut(&receive).unwrap();
                    assert_eq!(target.1, bytes);
                    target.0.push(content);
                }
                Action::Forget { held } => {
                    node.held.remove(&held);
                }
                Action::Fetch { from, message, pointer, receive } => {
                    assert_eq!(pointer, message + 1);
                    // Every third time the kernel says no.
                    let done = message % 3 != 0;
                    if done {
                        let content = self.nodes[from.0].sends[&message].0;
                        assert!(!self.nodes[from.0].finished_sends.contains(&message), "its memory is given back");
                        self.nodes[rank].receives.get_mut(&receive).unwrap().0.push(content);
                    }
                    self.nodes[rank].matching.fetched(from, message, receive, done);
                }
                Action::Reach { .. } => {}
            }
            let held: usize = self.nodes[rank].held.values().map(|(_, bytes)| bytes).sum();
            assert!(held <= WORLD * LIMITS.window);
        }
    }

    /// Lets one frame get out, or one arrive; false if nothing is on its way.
    fn step(&mut self, choice: usize) -> bool {
        let busy: Vec<(usize, usize)> =
            self.wires.iter().filter(|(_, wire)| !wire.is_empty()).map(|(pair, _)| *pair).collect();
        let options = busy.len() + self.writing.len();
        if options == 0 {
            return false;
        }
        let mut busy = busy;
        busy.sort_unstable();
        let pick = choice % options;
        if let Some(index) = pick.checked_sub(busy.len()) {
            let (rank, frame) = self.writing.remove(index);
            self.nodes[rank].matching.written(frame);
            self.settle(rank);
            return true;
        }
        let (from, to) = busy[pick];
        let (frame, content) = self.wires.get_mut(&(from, to)).unwrap().pop_front().unwrap();
        // Bytes arrive only once they are written.
        if let Some(index) = self.writing.iter().position(|entry| *entry == (from, frame)) {
            self.writing.remove(index);
            self.nodes[from].matching.written(frame);
            self.settle(from);
        }
        let destination = self.nodes[to].matching.handle_frame(Rank(from), frame).unwrap();
        self.settle(to);
        if let Some(destination) = destination {
            let node = &mut self.nodes[to];
            match destination {
                Destination::Target { receive, .. } => node.receives.get_mut(&receive).unwrap().0.push(content),
                Destination::Held { held } => {
                    node.held.insert(held, (content, frame.payload()));
                }
            }
            node.matching.arrived(Rank(from), destination, frame.payload());
            self.settle(to);
        }
        true
    }
}

#[derive(Clone, Debug)]
enum Event {
    Send { from: usize, to: usize, tag: u64 },
    Receive { at: usize, from: Option<usize>, tag: u64 },
    Step(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        (0..WORLD, 0..WORLD, 0..2u64).prop_map(|(from, to, tag)| Event::Send { from, to, tag }),
        (0..WORLD, proptest::option::of(0..WORLD), 0..2u64).prop_map(|(at, from, tag)| Event::Receive {
            at,
            from,
            tag
        }),
        any::<usize>().prop_map(Event::Step),
        any::<usize>().prop_map(Event::Step),
    ];
    proptest::collection::vec(event, 0..120)
}

/// Sizes belong to tags, so that receives from anybody fit.
fn size(tag: u64, large: bool) -> usize {
    [[0, 30], [64, 333]][tag as usize % 2][usize::from(large)]
}

proptest! {
    #[test]
    fn messages_reach_their_receives_in_order(events in events(), single_copy: bool, wide: bool) {
        let mut world = World::new(single_copy);
        // Per pair and tag: what was sent, in order. Per rank and tag: how many are still wanted.
        let mut sent: HashMap<(usize, usize, u64), Vec<Id>> = HashMap::new();
        let mut receives: Vec<(usize, Option<usize>, u64, Id)> = Vec::new();
        for event in events {
            match event {
                Event::Send { from, to, tag } => {
                    let id = world.send(from, to, tag, size(tag, wide));
                    sent.entry((from, to, tag)).or_default().push(id);
                }
                Event::Receive { at, from, tag } => {
                    let id = world.receive(at, from, tag, size(tag, wide)).unwrap();
                    receives.push((at, from, tag, id));
                }
                Event::Step(choice) => {
                    world.step(choice);
                }
            }
        }
        while world.step(0) {}
        // Whatever was sent and is not received yet is asked for, from anybody.
        let total = |at: usize, tag: u64| -> usize {
            sent.iter().filter(|((_, to, of), _)| (*to, *of) == (at, tag)).map(|(_, ids)| ids.len()).sum()
        };
        for at in 0..WORLD {
            for tag in 0..2 {
                let done = receives.iter().filter(|(rank, _, of, id)| {
                    (*rank, *of) == (at, tag) && world.nodes[at].received.contains_key(id)
                });
                for _ in done.count()..total(at, tag) {
                    let id = world.receive(at, None, tag, size(tag, wide)).unwrap();
                    receives.push((at, None, tag, id));
                    while world.step(0) {}
                }
            }
        }
        let mut seen: HashMap<(usize, usize, u64), Vec<u64>> = HashMap::new();
        for (at, from, tag, id) in &receives {
            let Some((content, bytes, source)) = world.nodes[*at].received.get(id) else { continue };
            let source = source.unwrap();
            prop_assert!(from.is_none_or(|from| from == source));
            prop_assert_eq!(*bytes, size(*tag, wide));
            seen.entry((source, *at, *tag)).or_default().push(*content);
        }
        for (key, ids) in &sent {
            let found = seen.remove(key).unwrap_or_default();
            let expected: Vec<u64> = if size(key.2, wide) == 0 { vec![u64::MAX; ids.len()] } else { ids.clone() };
            // An empty message carries nothing to tell it by, but they are as many.
            let found: Vec<u64> = if size(key.2, wide) == 0 { vec![u64::MAX; found.len()] } else { found };
            prop_assert_eq!(found, expected);
        }
        prop_assert!(seen.is_empty());
        for (rank, node) in world.nodes.iter().enumerate() {
            let own = sent.iter().filter(|((from, _, _), _)| *from == rank).map(|(_, ids)| ids.len()).sum::<usize>();
            prop_assert_eq!(node.finished_sends.len(), own);
            prop_assert!(node.held.is_empty());
            prop_assert!(node.matching.held.is_empty() && node.matching.offered.is_empty() && node.matching.incoming.is_empty());
        }
    }

    /// Whatever an authenticated peer says, the worst is a violation.
    #[test]
    fn nonsense_from_a_peer_is_a_violation_at_worst(
        frames in proptest::collection::vec((0..8u8, 0..4u64, 0..2u64, 0..400usize), 0..60),
    ) {
        let mut matching = Matching::new(Rank(0), 2, true, LIMITS);
        for id in 0..3 {
            matching.send(id, Rank(1), id % 2, 100 * id as usize, 1).unwrap();
            matching.receive(10 + id, None, id % 2, 50 * id as usize).unwrap();
        }
        for (kind, id, tag, length) in frames {
            while matching.next_action().is_some() {}
            let frame = match kind {
                0 => Frame::Message { id, tag, length },
                1 => Frame::Offer { id, tag, length, pointer: tag },
                2 => Frame::Ready { id },
                3 => Frame::Part { id, length },
                4 => Frame::Taken { id },
                5 => Frame::Credit { bytes: length },
                6 => Frame::Goodbye,
                _ => Frame::Abort,
            };
            match matching.handle_frame(Rank(1), frame) {
                Ok(Some(destination)) => matching.arrived(Rank(1), destination, frame.payload()),
                Ok(None) => {}
                Err(MatchError::Violation { by: Rank(1) } | MatchError::Mismatch { from: Rank(1), .. }) => return Ok(()),
                Err(other) => prop_assert!(false, "{other:?}"),
            }
        }
    }
}

#[test]
fn a_lost_peer_fails_what_needs_it() {
    let gone = |peer: Rank, noticed: LossCause| {
        move |error: MatchError| match error {
            MatchError::Gone { peer: found, noticed: how, .. } => (found, how) == (peer, noticed),
            _ => false,
        }
    };
    for noticed in [LossCause::ConnectionReset, LossCause::LeftGroup] {
        // A receive from it.
        let mut matching = Matching::new(Rank(0), 3, false, LIMITS);
        matching.receive(0, Some(Rank(1)), 0, 8).unwrap();
        assert!(matching.peer_lost(Rank(2), noticed).is_ok());
        assert!(matching.peer_lost(Rank(1), noticed).is_err_and(gone(Rank(1), noticed)));
        // A send to it, before and after.
        let mut matching = Matching::new(Rank(0), 3, false, LIMITS);
        matching.send(0, Rank(1), 0, 8, 0).unwrap();
        assert!(matching.peer_lost(Rank(1), noticed).is_err_and(gone(Rank(1), noticed)));
        assert!(matching.send(1, Rank(1), 0, 8, 0).is_err_and(gone(Rank(1), noticed)));
        // A receive from anybody: a death is fatal, a leave only when nobody is left.
        let mut matching = Matching::new(Rank(0), 3, false, LIMITS);
        matching.receive(0, None, 0, 8).unwrap();
        assert_eq!(matching.peer_lost(Rank(1), noticed).is_err(), noticed != LossCause::LeftGroup);
        assert!(matching.peer_lost(Rank(2), noticed).is_err());
        // What has arrived stays, what was only offered goes.
        let mut matching = Matching::new(Rank(0), 2, false, LIMITS);
        let destination = matching.handle_frame(Rank(1), Frame::Message { id: 0, tag: 0, length: 8 }).unwrap().unwrap();
        matching.arrived(Rank(1), destination, 8);
        matching.handle_frame(Rank(1), Frame::Offer { id: 1, tag: 0, length: 99, pointer: 0 }).unwrap();
        matching.peer_lost(Rank(1), noticed).unwrap();
        matching.receive(0, Some(Rank(1)), 0, 8).unwrap();
        assert!(matching.receive(1, Some(Rank(1)), 0, 99).is_err_and(gone(Rank(1), noticed)));
    }
}
