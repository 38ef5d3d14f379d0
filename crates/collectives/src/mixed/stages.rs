//! The operations in stages.
//!
//! | operation | inside each host | between hosts, on every rail | inside each host |
//! |---|---|---|---|
//! | all_reduce | rank i of the host reduces segment i of as many as there are rails | all_reduce of it | all segments to all |
//! | reduce | the same | reduce to the root's host | all segments to the root |
//! | broadcast | meet, or broadcast if the root is on no rail | broadcast on the root's rail | broadcast from it |
//! | all_gather of even hosts | all_gather | all_gather of one's own part | all_gather of what came, host by host |
//! | reduce_scatter of even hosts | reduce_scatter of the parts of each host | reduce_scatter | meet |
//! | gather, scatter of small parts | through one rank of each host | its parts together | see `parts` |
//! | barrier | meet | barrier | meet |
//!
//! A rank returns after it has met its host again: by then every rail has heard from every host that all its ranks came.
//! A host of L ranks sends and receives what one rank would; B bytes of an all_reduce cross its link 2·B·(h − 1)/h times in
//! both directions, for h hosts.

use std::ops::Range;

use super::parts::SMALL_PART;
use super::{Engine, Watch};
use crate::engine::Work;
use crate::operation::{Operation, Source, Target};
use crate::plan::{Cut, segment};
use crate::{DataType, Error, Rank, Reduction};

/// Bytes of a buffer that go through the stages at once; the sums of two such chunks lie beside the buffers.
pub(super) const CHUNK_BYTES: usize = 4 << 20;

/// What ranks of a host do for a reduction of all ranks.
fn inside_of(reduction: Reduction) -> Reduction {
    match reduction {
        Reduction::Average => Reduction::Sum,
        other => other,
    }
}

/// What hosts do with the results of that.
fn between_of(reduction: Reduction) -> Reduction {
    match reduction {
        Reduction::PremultipliedSum(_) => Reduction::Sum,
        other => other,
    }
}

/// The bytes of a buffer from `start` on.
pub(super) fn source(buffer: Source, start: usize, bytes: usize) -> Source {
    Source::new(buffer.pointer.wrapping_add(start), bytes)
}

pub(super) fn target(buffer: Target, start: usize, bytes: usize) -> Target {
    Target::new(buffer.pointer.wrapping_add(start), bytes)
}

/// By rank of the host: where its segment of the buffer starts, and its length, in bytes.
type Chunk = Vec<(usize, usize)>;

/// all_reduce and reduce.
struct Reducing {
    input: Source,
    output: Target,
    dtype: DataType,
    reduction: Reduction,
    root: Option<usize>,
}

impl Engine {
    pub(super) fn perform(&mut self, operation: &Operation, watch: &Watch) -> Result<(), Error> {
        let reduces = matches!(
            operation,
            Operation::AllReduce { .. } | Operation::Reduce { .. } | Operation::ReduceScatter { .. }
        );
        if self.canonical && reduces {
            return self.straight(operation, watch);
        }
        match operation {
            &Operation::AllReduce { input, output, dtype, reduction } => {
                self.reduce(&Reducing { input, output, dtype, reduction, root: None }, watch)
            }
            &Operation::Reduce { input, output, dtype, reduction, root } => {
                self.reduce(&Reducing { input, output, dtype, reduction, root: Some(root.0) }, watch)
            }
            &Operation::Broadcast { buffer, dtype, root } => self.broadcast(buffer, dtype, root.0, watch),
            Operation::AllGather { input, outputs, dtype } if self.topology.is_even() => {
                self.all_gather(*input, outputs, *dtype, watch)
            }
            Operation::ReduceScatter { inputs, output, dtype, reduction } if self.topology.is_even() => {
                self.reduce_scatter(inputs, *output, (*dtype, *reduction), watch)
            }
            Operation::Barrier => {
                self.meet_inside(watch)?;
                self.between(&Operation::Barrier, watch)?;
                self.meet_inside(watch)
            }
            Operation::Gather { input, outputs, dtype, root } if input.bytes <= SMALL_PART => {
                self.gather(*input, outputs, *dtype, root.0, watch)
            }
            Operation::Scatter { inputs, output, dtype, root } if output.bytes <= SMALL_PART => {
                self.scatter(inputs, *output, *dtype, root.0, watch)
            }
            Operation::AllGather { .. }
            | Operation::ReduceScatter { .. }
            | Operation::Gather { .. }
            | Operation::Scatter { .. }
            | Operation::AllToAll { .. } => self.straight(operation, watch),
        }
    }

    /// This rank's number in its host, and how many ranks there are.
    pub(super) fn place(&self) -> (usize, usize) {
        let host = self.topology.host(self.rank);
        (self.topology.local(self.rank), self.topology.hosts[host].len())
    }

    pub(super) fn scratch(&mut self, bytes: usize) -> Target {
        if self.scratch.len() < bytes {
            self.scratch = vec![0; bytes];
        }
        Target::new(self.scratch.as_mut_ptr(), bytes)
    }

    /// Chunk by chunk: while one is between the hosts, the ranks of a host share the one before and add up the one after.
    fn reduce(&mut self, reducing: &Reducing, watch: &Watch) -> Result<(), Error> {
        let size = reducing.dtype.size();
        let cut = Cut::new(reducing.input.bytes / size, size, CHUNK_BYTES);
        let number = self.place().0;
        let chunk = |engine: &Engine, step: usize| engine.chunk(cut.range(step), size);
        // The first is the longest.
        let room = chunk(self, 0)[number].1.next_multiple_of(64);
        let halves = self.scratch(2 * room);
        let half = |step: usize, chunk: &Chunk| target(halves, step % 2 * room, chunk[number].1);
        let mut next = chunk(self, 0);
        self.spread(reducing, &next, half(0, &next), watch)?;
        let mut before: Option<(Chunk, Target)> = None;
        for step in 0..cut.steps() {
            let current = next;
            let own = half(step, &current);
            next = chunk(self, step + 1);
            let after = (step + 1 < cut.steps()).then(|| (&next, half(step + 1, &next)));
            let travelling = self.reduce_between(reducing, own);
            let work = |engine: &mut Engine| {
                if let Some((chunk, own)) = &before {
                    engine.collect(reducing, chunk, *own, watch)?;
                }
                after.map_or(Ok(()), |(chunk, own)| engine.spread(reducing, chunk, own, watch))
            };
            self.meanwhile(travelling, watch, (cut.steps() > 1).then_some(work))?;
            before = Some((current, own));
        }
        before.map_or(Ok(()), |(chunk, own)| self.collect(reducing, &chunk, own, watch))
    }

    /// Who reduces what of some elements: the segments of the ranks of this host.
    fn chunk(&self, range: Range<usize>, size: usize) -> Chunk {
        let (rails, (_, ranks)) = (self.topology.rails(), self.place());
        (0..ranks)
            .map(|rank| if rank < rails { segment(range.len(), size, rails, rank) } else { 0..0 })
            .map(|part| ((range.start + part.start) * size, part.len() * size))
            .collect()
    }

    /// The values of this host, each segment reduced by its rank.
    fn spread(&mut self, reducing: &Reducing, chunk: &Chunk, own: Target, watch: &Watch) -> Result<(), Error> {
        let &Reducing { input, dtype, reduction, .. } = reducing;
        let parts = chunk.iter().map(|(start, bytes)| source(input, *start, *bytes)).collect();
        self.inside(&Work::Spread { parts, output: own, dtype, reduction: inside_of(reduction) }, watch)
    }

    /// What hosts do with a segment, in place.
    fn reduce_between(&self, reducing: &Reducing, own: Target) -> Operation {
        let &Reducing { dtype, reduction, root, .. } = reducing;
        let (input, reduction) = (Source::new(own.pointer, own.bytes), between_of(reduction));
        match root {
            None => Operation::AllReduce { input, output: own, dtype, reduction },
            Some(root) => {
                let root = Rank(self.topology.host(root));
                Operation::Reduce { input, output: own, dtype, reduction, root }
            }
        }
    }

    /// The segments to those of this host who want the result.
    fn collect(&mut self, reducing: &Reducing, chunk: &Chunk, own: Target, watch: &Watch) -> Result<(), Error> {
        let wanted = match reducing.root {
            None => true,
            Some(root) if self.topology.host(root) != self.topology.host(self.rank) => return self.meet_inside(watch),
            Some(root) => root == self.rank,
        };
        self.touched |= wanted;
        let output = |(start, bytes): &(usize, usize)| target(reducing.output, *start, *bytes);
        let outputs = chunk.iter().filter(|_| wanted).map(output).collect();
        let lengths = chunk.iter().map(|(_, bytes)| *bytes).collect();
        self.inside(&Work::Collect { input: Source::new(own.pointer, own.bytes), lengths, outputs }, watch)
    }

    fn broadcast(&mut self, buffer: Target, dtype: DataType, root: usize, watch: &Watch) -> Result<(), Error> {
        let (root_host, root_number) = (self.topology.host(root), self.topology.local(root));
        let rails = self.topology.rails();
        let (at_home, rail) = (root_host == self.topology.host(self.rank), root_number % rails);
        let from = |number: usize| Operation::Broadcast { buffer, dtype, root: Rank(number) };
        self.touched |= self.rank != root;
        // A root without a rail gives it to its host first.
        let early = at_home && root_number >= rails;
        self.inside(&Work::Operation(&if early { from(root_number) } else { Operation::Barrier }), watch)?;
        let own_rail = self.topology.local(self.rank) == rail;
        self.between(&if own_rail { from(root_host) } else { Operation::Barrier }, watch)?;
        self.inside(&Work::Operation(&if early { Operation::Barrier } else { from(rail) }), watch)
    }

    fn all_gather(&mut self, input: Source, outputs: &[Target], dtype: DataType, watch: &Watch) -> Result<(), Error> {
        let own_host = self.topology.host(self.rank);
        let (number, _) = self.place();
        let of_host = |topology: &crate::route::Topology, host: usize| -> Vec<Target> {
            topology.hosts[host].iter().map(|rank| outputs[*rank]).collect()
        };
        self.touched = true;
        let inside = Operation::AllGather { input, outputs: of_host(&self.topology, own_host), dtype };
        self.inside(&Work::Operation(&inside), watch)?;
        let rail: Vec<Target> = self.topology.rail(number).into_iter().map(|rank| outputs[rank]).collect();
        self.between(&Operation::AllGather { input, outputs: rail.clone(), dtype }, watch)?;
        for host in (0..rail.len()).filter(|host| *host != own_host) {
            let input = Source::new(rail[host].pointer, rail[host].bytes);
            let outputs = of_host(&self.topology, host);
            self.inside(&Work::Operation(&Operation::AllGather { input, outputs, dtype }), watch)?;
        }
        Ok(())
    }

    fn reduce_scatter(
        &mut self,
        inputs: &[Source],
        output: Target,
        (dtype, reduction): (DataType, Reduction),
        watch: &Watch,
    ) -> Result<(), Error> {
        let (size, hosts) = (dtype.size(), self.topology.hosts.len());
        let cut = Cut::new(output.bytes / size, size, CHUNK_BYTES / hosts);
        for step in 0..cut.steps() {
            let range = cut.range(step);
            let (start, bytes) = (range.start * size, range.len() * size);
            let sums = self.scratch(hosts * bytes).split(hosts);
            for (host, output) in sums.iter().enumerate() {
                let parts = self.topology.hosts[host].iter().map(|rank| source(inputs[*rank], start, bytes)).collect();
                let reduction = inside_of(reduction);
                let inside = Operation::ReduceScatter { inputs: parts, output: *output, dtype, reduction };
                self.inside(&Work::Operation(&inside), watch)?;
            }
            let inputs = sums.iter().map(|sum| Source::new(sum.pointer, sum.bytes)).collect();
            let output = target(output, start, bytes);
            self.touched = true;
            let reduction = between_of(reduction);
            self.between(&Operation::ReduceScatter { inputs, output, dtype, reduction }, watch)?;
        }
        self.meet_inside(watch)
    }
}
