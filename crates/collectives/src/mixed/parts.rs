//! gather and scatter in stages: the parts of a host travel together, through one rank of it.
//!
//! That rank, the *leader*, is the one on the root's rail, or on another one if the root is on none. The bytes between hosts
//! are those that a rank of the root's host and the others have for each other; what a leader holds at once is a chunk of all
//! ranks' parts, host by host.
#![expect(unsafe_code, reason = "copies memory that callers vouch for")]

use super::stages::{CHUNK_BYTES, source, target};
use super::{Engine, Watch};
use crate::engine::Work;
use crate::operation::{Operation, Source, Target, hold_apart};
use crate::plan::Cut;
use crate::{DataType, Error, Rank};

/// Up to so many bytes of each rank. Longer parts go straight from rank to rank: through a leader they are copied twice, which
/// takes longer than opening the connections for that once.
pub(super) const SMALL_PART: usize = 64 << 10;

/// How the parts of all ranks go to a root or come from it, as one rank sees it.
struct Way {
    root: usize,
    root_host: usize,
    /// The leaders' number in their hosts.
    leader: usize,
    /// The root is of this host.
    at_home: bool,
    /// This rank leads.
    leads: bool,
    /// The leader has to pass it on: it is not the root.
    passes: bool,
    /// By host: how many ranks there are, and how many before.
    hosts: Vec<(usize, usize)>,
    /// All ranks, host by host.
    order: Vec<usize>,
    dtype: DataType,
}

impl Way {
    /// A chunk of each rank of a host, among those of all.
    fn of_host(&self, all: Target, host: usize, bytes: usize) -> Target {
        let (ranks, before) = self.hosts[host];
        target(all, before * bytes, ranks * bytes)
    }
}

/// A chunk: where it starts in every part, how long it is, and memory for those of this host and for those of all.
struct Chunk {
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

impl Engine {
    fn way(&self, root: usize, dtype: DataType) -> Way {
        let topology = &self.topology;
        let (root_host, root_number) = (topology.host(root), topology.local(root));
        let leader = root_number % topology.rails();
        let mut before = 0;
        let hosts = topology.hosts.iter().map(|host| {
            before += host.len();
            (host.len(), before - host.len())
        });
        Way {
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
        way: &Way,
        bytes: usize,
        watch: &Watch,
        work: impl Fn(&mut Engine, &Chunk) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (size, ranks) = (way.dtype.size(), self.world());
        let cut = Cut::new(bytes / size, size, CHUNK_BYTES / ranks);
        for step in 0..cut.steps() {
            let range = cut.range(step);
            let (start, bytes) = (range.start * size, range.len() * size);
            let near = if way.leads { self.place().1 * bytes } else { 0 };
            let all = if way.at_home && (way.leads || way.root == self.rank) { ranks * bytes } else { 0 };
            let scratch = self.scratch(near + all);
            let chunk = Chunk { start, bytes, near: target(scratch, 0, near), all: target(scratch, near, all) };
            work(self, &chunk)?;
        }
        self.meet_inside(watch)
    }

    /// Between the leader and the root, where the leader is another rank.
    fn pass(&mut self, way: &Way, chunk: &Chunk, to_root: bool, watch: &Watch) -> Result<(), Error> {
        if !(way.at_home && way.passes) {
            return self.meet_inside(watch);
        }
        let (number, ranks) = self.place();
        let root = self.topology.local(way.root);
        let (from, to) = if to_root { (way.leader, root) } else { (root, way.leader) };
        let gives = |peer: usize| number == from && peer == to;
        let takes = |peer: usize| number == to && peer == from;
        let part = |given: bool| if given { chunk.all } else { target(chunk.all, 0, 0) };
        let inputs = (0..ranks).map(|peer| readable(part(gives(peer)))).collect();
        let outputs = (0..ranks).map(|peer| part(takes(peer))).collect();
        self.inside(&Work::Operation(&Operation::AllToAll { inputs, outputs, dtype: way.dtype }), watch)
    }

    /// Between the leaders of the root's host and of the others.
    fn carry(&mut self, way: &Way, chunk: &Chunk, to_root: bool, watch: &Watch) -> Result<(), Error> {
        if !way.leads {
            return self.between(&Operation::Barrier, watch);
        }
        let nothing = target(chunk.near, 0, 0);
        let hosts = 0..way.hosts.len();
        // What this host has for the root's, or gets from it; and what the root's host has for the others, or gets.
        let near = |host: usize| if host == way.root_host { chunk.near } else { nothing };
        let far = |host: usize| if way.at_home { way.of_host(chunk.all, host, chunk.bytes) } else { nothing };
        let (given, taken): (Vec<Target>, Vec<Target>) = if to_root {
            hosts.map(|host| (near(host), far(host))).unzip()
        } else {
            hosts.map(|host| (far(host), near(host))).unzip()
        };
        let inputs = given.into_iter().map(readable).collect();
        self.between(&Operation::AllToAll { inputs, outputs: taken, dtype: way.dtype }, watch)
    }

    pub(super) fn gather(
        &mut self,
        input: Source,
        outputs: &[Target],
        dtype: DataType,
        root: usize,
        watch: &Watch,
    ) -> Result<(), Error> {
        let way = self.way(root, dtype);
        let held = hold_apart(&[input], outputs);
        let input = held.as_ref().map_or(input, |(_, inputs)| inputs[0]);
        self.touched |= self.rank == root;
        self.chunks(&way, input.bytes, watch, |engine, chunk| {
            let &Chunk { start, bytes, near, all } = chunk;
            let outputs_here = if way.leads { near.split(engine.place().1) } else { Vec::new() };
            let own = source(input, start, bytes);
            let root_here = Rank(way.leader);
            let inside = Operation::Gather { input: own, outputs: outputs_here, dtype, root: root_here };
            engine.inside(&Work::Operation(&inside), watch)?;
            engine.carry(&way, chunk, true, watch)?;
            engine.pass(&way, chunk, true, watch)?;
            if engine.rank == root {
                for (place, rank) in way.order.iter().enumerate() {
                    copy(readable(target(all, place * bytes, bytes)), target(outputs[*rank], start, bytes));
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
        root: usize,
        watch: &Watch,
    ) -> Result<(), Error> {
        let way = self.way(root, dtype);
        let held = hold_apart(inputs, &[output]);
        let inputs = held.as_ref().map_or(inputs, |(_, inputs)| inputs);
        self.touched = true;
        self.chunks(&way, output.bytes, watch, |engine, chunk| {
            let &Chunk { start, bytes, near, all } = chunk;
            if engine.rank == root {
                for (place, rank) in way.order.iter().enumerate() {
                    copy(source(inputs[*rank], start, bytes), target(all, place * bytes, bytes));
                }
            }
            engine.pass(&way, chunk, false, watch)?;
            engine.carry(&way, chunk, false, watch)?;
            let inputs_here = if way.leads { readable(near).split(engine.place().1) } else { Vec::new() };
            let (output, root_here) = (target(output, start, bytes), Rank(way.leader));
            let inside = Operation::Scatter { inputs: inputs_here, output, dtype, root: root_here };
            engine.inside(&Work::Operation(&inside), watch)
        })
    }
}
