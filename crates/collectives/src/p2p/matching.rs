//! Which message goes to which receive, and what to say next: decisions only, no sockets, no memory, no clock.
//!
//! Rules:
//!
//! 1. Messages between two ranks with the same tag are received in the order in which they were sent; a receive from
//!    anybody takes the earliest that arrived; of two receives that fit a message, the earlier one gets it.
//! 2. A message of at most `Limits::eager` bytes travels at once, as long as the receiver holds less than
//!    `Limits::window` of this sender's that nobody has asked for. Others are offered, and travel when they are wanted.
//! 3. What a peer can make this rank hold is bounded: by the window, and by `Limits::offers`. Who goes beyond breaks the
//!    protocol.
//! 4. A message that is longer or shorter than the buffer of its receive is an error of both.
//!
//! The caller performs the [`Action`]s in order, and says when bytes are written, read and copied.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::wire::Frame;
use crate::{LossCause, Rank};

/// How much travels unasked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The longest message that is sent without asking.
    pub(crate) eager: usize,
    /// How much of one sender's a receiver holds, [`Limits::cost`] counted for each message.
    pub(crate) window: usize,
    /// Offers of one sender that a receiver remembers.
    pub(crate) offers: usize,
    /// The longest piece of a large message: others get their turn in between.
    pub(crate) part: usize,
}

impl Limits {
    pub(crate) const USUAL: Limits = Limits { eager: 64 << 10, window: 1 << 20, offers: 1 << 17, part: 1 << 20 };

    /// Also a message of no bytes takes room.
    fn cost(length: usize) -> usize {
        length + 128
    }
}

/// Numbers of this rank's sends and receives.
pub(crate) type Id = u64;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Say this to a peer. The bytes of a message or part are those of the send of that id, from `offset` on; tell
    /// [`Matching::written`] when all of it is out.
    Write { to: Rank, frame: Frame, offset: usize },
    /// The operation is over, and well; receives learn from whom.
    Finish { id: Id, source: Option<Rank> },
    /// Copy what a send to this rank itself has to where a receive wants it.
    Copy { send: Id, receive: Id },
    /// Keep what a send to this rank itself has, as `held`.
    Keep { send: Id, held: Id },
    /// Copy what is held to where a receive wants it, and forget it.
    Deliver { held: Id, receive: Id },
    /// Forget it.
    Forget { held: Id },
    /// Read a peer's memory; tell [`Matching::fetched`].
    Fetch { from: Rank, message: u64, pointer: u64, receive: Id },
    /// Have a connection to this peer, at least to learn when it goes.
    Reach { peer: Rank },
}

/// Where the bytes go that follow a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Into the target of a receive. `message` is the sender's number.
    Target { receive: Id, message: u64, offset: usize },
    /// Into new memory of the frame's length.
    Held { held: Id },
}

/// Why nothing can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatchError {
    /// A message does not fit the receive it belongs to.
    Mismatch { from: Rank, message: u64, bytes: usize, receive: Id },
    /// A peer says what it must not say.
    Violation { by: Rank },
    /// The other rank of this operation is gone.
    Gone { id: Id, peer: Rank, noticed: LossCause },
}

/// An operation that is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) sends: bool,
    /// The other rank, once it is known.
    pub(crate) peer: Option<Rank>,
    pub(crate) tag: u64,
    pub(crate) bytes: usize,
}

#[derive(Clone, Copy, Debug)]
enum UnexpectedBody {
    Held(Id),
    Offer {
        message: u64,
        pointer: u64,
    },
    /// A send to this rank itself that waits.
    Own(Id),
}

#[derive(Clone, Copy, Debug)]
struct Unexpected {
    order: u64,
    message: u64,
    bytes: usize,
    what: UnexpectedBody,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    from: Rank,
    bytes: usize,
    complete: bool,
    wanted_by: Option<Id>,
}

/// An offer that this rank has asked for.
#[derive(Clone, Copy, Debug)]
struct IncomingTransfer {
    receive: Id,
    bytes: usize,
    /// Bytes announced by parts so far.
    announced: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct PeerWindow {
    /// Cost of what it may still hold of ours.
    at_peer: usize,
    /// Cost of what we hold of it.
    here: usize,
    /// Room that is free again and that it does not know of yet.
    to_return: usize,
    offers: usize,
    gone: Option<LossCause>,
}

/// All messages of one rank.
#[derive(Debug)]
pub(crate) struct Matching {
    rank: Rank,
    limits: Limits,
    /// Peers can read each other's memory.
    single_copy: bool,
    peers: Vec<PeerWindow>,
    pending: BTreeMap<Id, Pending>,
    receives: HashMap<(Option<Rank>, u64), VecDeque<Id>>,
    unexpected: HashMap<(Rank, u64), VecDeque<Unexpected>>,
    incoming: HashMap<(Rank, u64), IncomingTransfer>,
    /// Sends that wait for their receiver, with how much is written once it has asked for the bytes.
    offered: HashMap<Id, (Rank, Option<usize>)>,
    held: HashMap<Id, Held>,
    next_held: Id,
    next_order: u64,
    actions: VecDeque<Action>,
}

impl Matching {
    pub(crate) fn new(rank: Rank, world: usize, single_copy: bool, limits: Limits) -> Matching {
        Matching {
            rank,
            limits,
            single_copy,
            peers: vec![PeerWindow::default(); world],
            pending: BTreeMap::new(),
            receives: HashMap::new(),
            unexpected: HashMap::new(),
            incoming: HashMap::new(),
            offered: HashMap::new(),
            held: HashMap::new(),
            next_held: 0,
            next_order: 0,
            actions: VecDeque::new(),
        }
    }

    /// What is to be done next, in order.
    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// An operation that is not over.
    pub(crate) fn pending(&self, id: Id) -> Option<&Pending> {
        self.pending.get(&id)
    }

    /// This rank sends. Ids grow from call to call.
    pub(crate) fn send(&mut self, id: Id, to: Rank, tag: u64, bytes: usize, pointer: u64) -> Result<(), MatchError> {
        self.pending.insert(id, Pending { sends: true, peer: Some(to), tag, bytes });
        if to == self.rank {
            return self.send_to_self(id, tag, bytes);
        }
        if let Some(noticed) = self.peers[to.0].gone {
            return Err(MatchError::Gone { id, peer: to, noticed });
        }
        self.actions.push_back(Action::Reach { peer: to });
        let cost = Limits::cost(bytes);
        let peer = &mut self.peers[to.0];
        let frame = if bytes <= self.limits.eager && peer.at_peer + cost <= self.limits.window {
            peer.at_peer += cost;
            Frame::Message { id, tag, length: bytes }
        } else {
            self.offered.insert(id, (to, None));
            let pointer = if self.single_copy && bytes > self.limits.eager { pointer } else { 0 };
            Frame::Offer { id, tag, length: bytes, pointer }
        };
        self.actions.push_back(Action::Write { to, frame, offset: 0 });
        Ok(())
    }

    fn send_to_self(&mut self, id: Id, tag: u64, bytes: usize) -> Result<(), MatchError> {
        if let Some(receive) = self.take_posted_receive(self.rank, tag) {
            self.check_size(self.rank, id, bytes, receive)?;
            self.copy_own(id, receive);
            return Ok(());
        }
        let cost = Limits::cost(bytes);
        let keep = bytes <= self.limits.eager && self.peers[self.rank.0].here + cost <= self.limits.window;
        let what = if keep {
            let held = self.hold(self.rank, bytes, true);
            self.actions.push_back(Action::Keep { send: id, held });
            self.finish(id, None);
            UnexpectedBody::Held(held)
        } else {
            UnexpectedBody::Own(id)
        };
        self.arrive(self.rank, tag, id, bytes, what);
        Ok(())
    }

    fn copy_own(&mut self, send: Id, receive: Id) {
        self.actions.push_back(Action::Copy { send, receive });
        self.finish(send, None);
        self.finish(receive, Some(self.rank));
    }

    /// This rank wants a message, from a peer or from anybody.
    pub(crate) fn receive(&mut self, id: Id, from: Option<Rank>, tag: u64, bytes: usize) -> Result<(), MatchError> {
        self.pending.insert(id, Pending { sends: false, peer: from, tag, bytes });
        let candidates = from.map_or(0..self.peers.len(), |peer| peer.0..peer.0 + 1).map(Rank);
        let first = |peer: Rank| Some((self.unexpected.get(&(peer, tag))?.front()?.order, peer));
        if let Some((_, peer)) = candidates.clone().filter_map(first).min() {
            let arrival = self.take_arrival(peer, tag);
            return self.join(peer, arrival, id);
        }
        self.receives.entry((from, tag)).or_default().push_back(id);
        for peer in candidates.filter(|peer| *peer != self.rank) {
            if self.peers[peer.0].gone.is_none() {
                self.actions.push_back(Action::Reach { peer });
            }
        }
        self.still_possible(id)
    }

    /// Whether the ranks that an operation needs are there.
    fn still_possible(&self, id: Id) -> Result<(), MatchError> {
        let Some(pending) = self.pending.get(&id) else { return Ok(()) };
        let gone = |peer: Rank| self.peers[peer.0].gone.map(|noticed| MatchError::Gone { id, peer, noticed });
        let error = match pending.peer {
            Some(peer) => gone(peer),
            None => {
                let others = || self.rank.others(self.peers.len());
                // Who leaves in good order leaves the others; who dies may be the one that was to send.
                let died = others().find(|peer| self.peers[peer.0].gone.is_some_and(|how| how != LossCause::LeftGroup));
                let all_left = others().all(|peer| self.peers[peer.0].gone.is_some());
                died.or_else(|| others().next().filter(|_| all_left)).and_then(gone)
            }
        };
        error.map_or(Ok(()), Err)
    }

    /// A peer says something. If bytes follow, they go to the destination returned; [`Matching::arrived`] when they are there.
    pub(crate) fn handle_frame(&mut self, from: Rank, frame: Frame) -> Result<Option<Destination>, MatchError> {
        let violation = MatchError::Violation { by: from };
        if self.peers[from.0].gone.is_some() {
            return Err(violation);
        }
        match frame {
            Frame::Message { id, tag, length } => {
                let here = self.peers[from.0].here + Limits::cost(length);
                if length > self.limits.eager || here > self.limits.window {
                    return Err(violation);
                }
                if let Some(receive) = self.take_posted_receive(from, tag) {
                    self.check_size(from, id, length, receive)?;
                    self.peers[from.0].here = here;
                    return Ok(Some(Destination::Target { receive, message: id, offset: 0 }));
                }
                let held = self.hold(from, length, false);
                self.arrive(from, tag, id, length, UnexpectedBody::Held(held));
                Ok(Some(Destination::Held { held }))
            }
            Frame::Offer { id, tag, length, pointer } => {
                let what = UnexpectedBody::Offer { message: id, pointer };
                if let Some(receive) = self.take_posted_receive(from, tag) {
                    let arrival = Unexpected { order: 0, message: id, bytes: length, what };
                    self.peers[from.0].offers += 1;
                    return self.join(from, arrival, receive).map(|()| None);
                }
                if self.peers[from.0].offers >= self.limits.offers {
                    return Err(violation);
                }
                self.peers[from.0].offers += 1;
                self.arrive(from, tag, id, length, what);
                Ok(None)
            }
            Frame::Ready { id } => match self.offered.get_mut(&id) {
                Some((to, written @ None)) if *to == from => {
                    *written = Some(0);
                    self.write_part(id);
                    Ok(None)
                }
                _ => Err(violation),
            },
            Frame::Part { id, length } => {
                let incoming = self.incoming.get_mut(&(from, id)).ok_or(violation)?;
                let offset = incoming.announced;
                if length > self.limits.part || length > incoming.bytes - offset {
                    return Err(violation);
                }
                incoming.announced += length;
                Ok(Some(Destination::Target { receive: incoming.receive, message: id, offset }))
            }
            Frame::Taken { id } => match self.offered.get(&id) {
                Some(&(to, None)) if to == from => {
                    self.offered.remove(&id);
                    self.finish(id, None);
                    Ok(None)
                }
                _ => Err(violation),
            },
            Frame::Credit { bytes } => {
                let peer = &mut self.peers[from.0];
                peer.at_peer = peer.at_peer.checked_sub(bytes).ok_or(violation)?;
                Ok(None)
            }
            // The caller deals with these.
            Frame::Goodbye | Frame::Abort => Ok(None),
        }
    }

    /// The bytes that followed a frame are where they belong.
    pub(crate) fn arrived(&mut self, from: Rank, destination: Destination, length: usize) {
        match destination {
            Destination::Held { held } => {
                let Some(entry) = self.held.get_mut(&held) else { return };
                entry.complete = true;
                if let Some(receive) = entry.wanted_by {
                    self.deliver(held, receive);
                }
            }
            Destination::Target { receive, message, offset } => {
                if let Some(incoming) = self.incoming.get(&(from, message)) {
                    if offset + length == incoming.bytes {
                        self.incoming.remove(&(from, message));
                        self.finish(receive, Some(from));
                    }
                } else {
                    self.release(from, Limits::cost(length));
                    self.finish(receive, Some(from));
                }
            }
        }
    }

    /// All of a frame, and of the bytes after it, is out.
    pub(crate) fn written(&mut self, frame: Frame) {
        match frame {
            Frame::Message { id, .. } => self.finish(id, None),
            Frame::Part { id, length } => {
                let Some((_, Some(written))) = self.offered.get_mut(&id) else { return };
                *written += length;
                let bytes = self.pending.get(&id).map_or(0, |pending| pending.bytes);
                if *written >= bytes {
                    self.offered.remove(&id);
                    self.finish(id, None);
                } else {
                    self.write_part(id);
                }
            }
            Frame::Offer { .. }
            | Frame::Ready { .. }
            | Frame::Taken { .. }
            | Frame::Credit { .. }
            | Frame::Goodbye
            | Frame::Abort => {}
        }
    }

    /// A peer's memory was read, or could not be; then it is asked to send.
    pub(crate) fn fetched(&mut self, from: Rank, message: u64, receive: Id, done: bool) {
        if done {
            self.actions.push_back(Action::Write { to: from, frame: Frame::Taken { id: message }, offset: 0 });
            self.finish(receive, Some(from));
        } else {
            self.request(from, message, receive);
        }
    }

    /// A peer is gone: what needs it cannot be any more.
    pub(crate) fn peer_lost(&mut self, peer: Rank, noticed: LossCause) -> Result<(), MatchError> {
        if self.peers[peer.0].gone.is_some() {
            return Ok(());
        }
        self.peers[peer.0].gone = Some(noticed);
        // What is here stays receivable, what is only announced does not.
        let held = &mut self.held;
        for ((from, _), queue) in &mut self.unexpected {
            if *from == peer {
                queue.retain(|arrival| match arrival.what {
                    UnexpectedBody::Held(id) => held.get(&id).is_some_and(|entry| entry.complete),
                    UnexpectedBody::Offer { .. } => false,
                    UnexpectedBody::Own(_) => true,
                });
            }
        }
        let actions = &mut self.actions;
        held.retain(|id, entry| {
            let keep = entry.from != peer || entry.complete;
            if !keep {
                actions.push_back(Action::Forget { held: *id });
            }
            keep
        });
        self.pending.keys().try_for_each(|id| self.still_possible(*id))
    }

    fn arrive(&mut self, from: Rank, tag: u64, message: u64, bytes: usize, what: UnexpectedBody) {
        let order = self.next_order;
        self.next_order += 1;
        self.unexpected.entry((from, tag)).or_default().push_back(Unexpected { order, message, bytes, what });
    }

    fn hold(&mut self, from: Rank, bytes: usize, complete: bool) -> Id {
        let held = self.next_held;
        self.next_held += 1;
        self.held.insert(held, Held { from, bytes, complete, wanted_by: None });
        self.peers[from.0].here += Limits::cost(bytes);
        held
    }

    fn take_arrival(&mut self, peer: Rank, tag: u64) -> Unexpected {
        let queue = self.unexpected.get_mut(&(peer, tag)).expect("the caller has looked");
        let arrival = queue.pop_front().expect("the caller has looked");
        if queue.is_empty() {
            self.unexpected.remove(&(peer, tag));
        }
        arrival
    }

    /// The earliest receive that a message fits.
    fn take_posted_receive(&mut self, from: Rank, tag: u64) -> Option<Id> {
        let first = |key: (Option<Rank>, u64)| Some((*self.receives.get(&key)?.front()?, key));
        let (id, key) = [(Some(from), tag), (None, tag)].into_iter().filter_map(first).min_by_key(|(id, _)| *id)?;
        let queue = self.receives.get_mut(&key).expect("found above");
        queue.pop_front();
        if queue.is_empty() {
            self.receives.remove(&key);
        }
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.peer = Some(from);
        }
        Some(id)
    }

    fn check_size(&self, from: Rank, message: u64, bytes: usize, receive: Id) -> Result<(), MatchError> {
        let expected = self.pending.get(&receive).map_or(bytes, |pending| pending.bytes);
        if expected == bytes { Ok(()) } else { Err(MatchError::Mismatch { from, message, bytes, receive }) }
    }

    /// A message and a receive have found each other.
    fn join(&mut self, from: Rank, arrival: Unexpected, receive: Id) -> Result<(), MatchError> {
        if let Some(pending) = self.pending.get_mut(&receive) {
            pending.peer = Some(from);
        }
        self.check_size(from, arrival.message, arrival.bytes, receive)?;
        match arrival.what {
            UnexpectedBody::Held(held) => {
                let entry = self.held.get_mut(&held).expect("what arrived is held until it is delivered");
                entry.wanted_by = Some(receive);
                if entry.complete {
                    self.deliver(held, receive);
                }
            }
            UnexpectedBody::Offer { message, pointer } => {
                self.peers[from.0].offers -= 1;
                if pointer != 0 && self.single_copy && arrival.bytes > 0 {
                    self.actions.push_back(Action::Fetch { from, message, pointer, receive });
                } else {
                    self.request(from, message, receive);
                }
            }
            UnexpectedBody::Own(send) => self.copy_own(send, receive),
        }
        Ok(())
    }

    fn request(&mut self, from: Rank, message: u64, receive: Id) {
        let bytes = self.pending.get(&receive).map_or(0, |pending| pending.bytes);
        self.incoming.insert((from, message), IncomingTransfer { receive, bytes, announced: 0 });
        self.actions.push_back(Action::Write { to: from, frame: Frame::Ready { id: message }, offset: 0 });
    }

    fn deliver(&mut self, held: Id, receive: Id) {
        if let Some(entry) = self.held.remove(&held) {
            self.actions.push_back(Action::Deliver { held, receive });
            self.release(entry.from, Limits::cost(entry.bytes));
            self.finish(receive, Some(entry.from));
        }
    }

    /// Room of the window is free again; the peer is told now and then.
    fn release(&mut self, from: Rank, cost: usize) {
        let peer = &mut self.peers[from.0];
        peer.here -= cost;
        if from == self.rank || peer.gone.is_some() {
            return;
        }
        peer.to_return += cost;
        if peer.to_return >= self.limits.window / 4 {
            let frame = Frame::Credit { bytes: std::mem::take(&mut peer.to_return) };
            self.actions.push_back(Action::Write { to: from, frame, offset: 0 });
        }
    }

    fn write_part(&mut self, id: Id) {
        let (Some(&(to, Some(written))), Some(pending)) = (self.offered.get(&id), self.pending.get(&id)) else {
            return;
        };
        let length = (pending.bytes - written).min(self.limits.part);
        self.actions.push_back(Action::Write { to, frame: Frame::Part { id, length }, offset: written });
    }

    fn finish(&mut self, id: Id, source: Option<Rank>) {
        if self.pending.remove(&id).is_some() {
            self.actions.push_back(Action::Finish { id, source });
        }
    }
}

#[cfg(test)]
mod tests;
