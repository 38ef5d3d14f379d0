//! gather and scatter in stages: the parts of a host travel together, through one rank of it.
//!
//! That rank, the *leader*, is the one on the root's rail, or on another one if the root is on none. The bytes between hosts
//! are those that a rank of the root's host and the others have for each other; what a leader holds at once is a chunk of all
//! ranks' parts, host by host.
#![expect(unsafe_code, reason = "copies memory that callers vouch for")]

use super::stages::{CHUNK_BYTES, source, target};
use super::{HierarchicalTransport, StageContext};
use crate::operation::{Operation, Source, Target, hold_apart};
use crate::partition::Cut;
use crate::rank::LocalRank;
use crate::shm::transport::Work;
use crate::{DataType, Error, Rank};

/// How the parts of all ranks go to a root or come from it, as one rank sees it.
struct LeaderPath {
    root: Rank,
    root_host: usize,
    /// The leaders' number in their hosts.
    leader: LocalRank,
    /// The root is of this host.
    at_home: bool,
    /// This rank leads.
    leads: bool,
    /// The leader has to pass it on: it is not the root.
    passes: bool,
    /// By host: how many ranks there are, and how many before.
    hosts: Vec<(usize, usize)>,
    /// All ranks, host by host.
    order: Vec<Rank>,
    dtype: DataType,
}

impl LeaderPath {
    /// A chunk of each rank of a host, among those of all.
    fn of_host(&self, all: Target, host: usize, bytes: usize) -> Target {
        let (ranks, before) = self.hosts[host];
        target(all, before * bytes, ranks * bytes)
    }
}

/// A chunk: where it starts in every part, how long it is, and memory for those of this host and for those of all.
struct PartChunk {
    start: usize,
    bytes: usize,
    near: Target,
    all: Target,
}

fn readable(memory: Target) -> Source {
    Source::new(memory.pointer, memory.bytes)
}

fn copy(from: Source, into: Target) {
    // SAFETY: both are of an operation under way, or scratch memory, and of the same length; `hold_apart` saw to the rest.
    unsafe { std::ptr::copy(from.pointer, into.pointer, from.bytes.min(into.bytes)) };
}

impl HierarchicalTransport {
    fn path(&self, root: Rank, dtype: DataType) -> LeaderPath {
        let topology = &self.topology;
        let (root_host, root_number) = (topology.host(root), topology.local(root));
        let leader = LocalRank(root_number.0 % topology.rails());
        let mut before = 0;
        let hosts = topology.hosts.iter().map(|host| {
            before += host.len();
            (host.len(), before - host.len())
        });
        LeaderPath {
            root,
            root_host,
            leader,
            at_home: topology.host(self.rank) == root_host,
            leads: topology.local(self.rank) == leader,
            passes: root_number != leader,
            hosts: hosts.collect(),
            order: topology.hosts.concat(),
            dtype,
        }
    }

    /// The chunks of parts of so many bytes, one after the other.
    fn chunks(
        &mut self,
        path: &LeaderPath,
        bytes: usize,
        context: &StageContext,
        work: impl Fn(&mut HierarchicalTransport, &PartChunk) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (size, ranks) = (path.dtype.size(), self.world());
        let cut = Cut::new(bytes / size, size, CHUNK_BYTES / ranks);
        for step in 0..cut.steps() {
            let range = cut.range(step);
            let (start, bytes) = (range.start * size, range.len() * size);
            let near = if path.leads { self.local_rank_and_size().1 * bytes } else { 0 };
            let all = if path.at_home && (path.leads || path.root == self.rank) { ranks * bytes } else { 0 };
            let scratch = self.scratch(near + all);
            let chunk = PartChunk { start, bytes, near: target(scratch, 0, near), all: target(scratch, near, all) };
            work(self, &chunk)?;
        }
        self.host_barrier(context)
    }

    /// Between the leader and the root, where the leader is another rank.
    fn pass(
        &mut self,
        path: &LeaderPath,
        chunk: &PartChunk,
        to_root: bool,
        context: &StageContext,
    ) -> Result<(), Error> {
        if !(path.at_home && path.passes) {
            return self.host_barrier(context);
        }
        let (number, ranks) = self.local_rank_and_size();
        let root = self.topology.local(path.root);
        let (from, to) = if to_root { (path.leader, root) } else { (root, path.leader) };
        let gives = |peer: LocalRank| number == from && peer == to;
        let takes = |peer: LocalRank| number == to && peer == from;
        let part = |given: bool| if given { chunk.all } else { target(chunk.all, 0, 0) };
        let inputs = LocalRank::all(ranks).map(|peer| readable(part(gives(peer)))).collect();
        let outputs = LocalRank::all(ranks).map(|peer| part(takes(peer))).collect();
        self.intra_host(&Work::Operation(&Operation::AllToAll { inputs, outputs, dtype: path.dtype }), context)
    }

    /// Between the leaders of the root's host and of the others.
    fn carry(
        &mut self,
        path: &LeaderPath,
        chunk: &PartChunk,
        to_root: bool,
        context: &StageContext,
    ) -> Result<(), Error> {
        if !path.leads {
            return self.inter_host(&Operation::Barrier, context);
        }
        let nothing = target(chunk.near, 0, 0);
        let hosts = 0..path.hosts.len();
        // What this host has for the root's, or gets from it; and what the root's host has for the others, or gets.
        let near = |host: usize| if host == path.root_host { chunk.near } else { nothing };
        let far = |host: usize| if path.at_home { path.of_host(chunk.all, host, chunk.bytes) } else { nothing };
        let (given, taken): (Vec<Target>, Vec<Target>) = if to_root {
            hosts.map(|host| (near(host), far(host))).unzip()
        } else {
            hosts.map(|host| (far(host), near(host))).unzip()
        };
        let inputs = given.into_iter().map(readable).collect();
        self.inter_host(&Operation::AllToAll { inputs, outputs: taken, dtype: path.dtype }, context)
    }

    pub(super) fn gather(
        &mut self,
        input: Source,
        outputs: &[Target],
        dtype: DataType,
        root: Rank,
        context: &StageContext,
    ) -> Result<(), Error> {
        let path = self.path(root, dtype);
        let held = hold_apart(&[input], outputs);
        let input = held.as_ref().map_or(input, |(_, inputs)| inputs[0]);
        self.touched |= self.rank == root;
        self.chunks(&path, input.bytes, context, |transport, chunk| {
            let &PartChunk { start, bytes, near, all } = chunk;
            let outputs_here = if path.leads { near.split(transport.local_rank_and_size().1) } else { Vec::new() };
            let own = source(input, start, bytes);
            let root_here = Rank(path.leader.0);
            let intra_host = Operation::Gather { input: own, outputs: outputs_here, dtype, root: root_here };
            transport.intra_host(&Work::Operation(&intra_host), context)?;
            transport.carry(&path, chunk, true, context)?;
            transport.pass(&path, chunk, true, context)?;
            if transport.rank == root {
                for (position, rank) in path.order.iter().enumerate() {
                    copy(readable(target(all, position * bytes, bytes)), target(outputs[rank.0], start, bytes));
                }
            }
            Ok(())
        })
    }

    pub(super) fn scatter(
        &mut self,
        inputs: &[Source],
        output: Target,
        dtype: DataType,
        root: Rank,
        context: &StageContext,
    ) -> Result<(), Error> {
        let path = self.path(root, dtype);
        let held = hold_apart(inputs, &[output]);
        let inputs = held.as_ref().map_or(inputs, |(_, inputs)| inputs);
        self.touched = true;
        self.chunks(&path, output.bytes, context, |transport, chunk| {
            let &PartChunk { start, bytes, near, all } = chunk;
            if transport.rank == root {
                for (position, rank) in path.order.iter().enumerate() {
                    copy(source(inputs[rank.0], start, bytes), target(all, position * bytes, bytes));
                }
            }
            transport.pass(&path, chunk, false, context)?;
            transport.carry(&path, chunk, false, context)?;
            let inputs_here =
                if path.leads { readable(near).split(transport.local_rank_and_size().1) } else { Vec::new() };
            let (output, root_here) = (target(output, start, bytes), Rank(path.leader.0));
            let intra_host = Operation::Scatter { inputs: inputs_here, output, dtype, root: root_here };
            transport.intra_host(&Work::Operation(&intra_host), context)
        })
    }
}
