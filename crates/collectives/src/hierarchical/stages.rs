//! The operations in stages.
//!
//! | operation | inside each host | between hosts, on every rail | inside each host |
//! |---|---|---|---|
//! | all_reduce | rank i of the host reduces segment i of as many as there are rails | all_reduce of it | all segments to all |
//! | reduce | the same | reduce to the root's host | all segments to the root |
//! | broadcast | barrier, or broadcast if the root is on no rail | broadcast on the root's rail | broadcast from it |
//! | all_gather of even hosts | all_gather | all_gather of one's own part | all_gather of what came, host by host |
//! | reduce_scatter of even hosts | reduce_scatter of the parts of each host | reduce_scatter | barrier |
//! | gather, scatter of small parts | through one rank of each host | its parts together | see `gather_scatter` |
//! | barrier | barrier | barrier | barrier |
//!
//! A rank returns after a last barrier with its host: by then every rail knows of every host that all its ranks came.
//! A host of L ranks sends and receives what one rank would; B bytes of an all_reduce cross its link 2·B·(h − 1)/h times in
//! both directions, for h hosts.

use std::ops::Range;

use super::{HierarchicalTransport, StageContext};
use crate::operation::{Operation, Source, Target};
use crate::partition::{Cut, segment};
use crate::rank::LocalRank;
use crate::schedule::Topology;
use crate::shm::transport::Work;
use crate::{DataType, Error, Rank, Reduction};

/// Up to so many bytes of each rank a gather or scatter has stages. Longer parts go straight from rank to rank: through a
/// leader they are copied twice, which takes longer than opening the connections for that once.
const MAX_STAGED_PART: usize = 64 << 10;
/// Bytes of a buffer that go through the stages at once; the sums of two such chunks lie beside the buffers.
pub(super) const CHUNK_BYTES: usize = 4 << 20;

/// What ranks of a host do for a reduction of all ranks.
fn intra_host_reduction(reduction: Reduction) -> Reduction {
    match reduction {
        Reduction::Average => Reduction::Sum,
        other => other,
    }
}

/// What hosts do with the results of that.
fn inter_host_reduction(reduction: Reduction) -> Reduction {
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
type SegmentChunk = Vec<(usize, usize)>;

/// all_reduce and reduce.
struct StagedReduction {
    input: Source,
    output: Target,
    dtype: DataType,
    reduction: Reduction,
    root: Option<Rank>,
}

impl HierarchicalTransport {
    pub(super) fn perform(&mut self, operation: &Operation, context: &StageContext) -> Result<(), Error> {
        let reduces = matches!(
            operation,
            Operation::AllReduce { .. } | Operation::Reduce { .. } | Operation::ReduceScatter { .. }
        );
        if self.canonical && reduces {
            return self.direct(operation, context);
        }
        match operation {
            &Operation::AllReduce { input, output, dtype, reduction } => {
                self.reduce(&StagedReduction { input, output, dtype, reduction, root: None }, context)
            }
            &Operation::Reduce { input, output, dtype, reduction, root } => {
                self.reduce(&StagedReduction { input, output, dtype, reduction, root: Some(root) }, context)
            }
            &Operation::Broadcast { buffer, dtype, root } => self.broadcast(buffer, dtype, root, context),
            Operation::AllGather { input, outputs, dtype } if self.topology.is_even() => {
                self.all_gather(*input, outputs, *dtype, context)
            }
            Operation::ReduceScatter { inputs, output, dtype, reduction } if self.topology.is_even() => {
                self.reduce_scatter(inputs, *output, (*dtype, *reduction), context)
            }
            Operation::Barrier => {
                self.host_barrier(context)?;
                self.inter_host(&Operation::Barrier, context)?;
                self.host_barrier(context)
            }
            Operation::Gather { input, outputs, dtype, root } if input.bytes <= MAX_STAGED_PART => {
                self.gather(*input, outputs, *dtype, *root, context)
            }
            Operation::Scatter { inputs, output, dtype, root } if output.bytes <= MAX_STAGED_PART => {
                self.scatter(inputs, *output, *dtype, *root, context)
            }
            Operation::AllGather { .. }
            | Operation::ReduceScatter { .. }
            | Operation::Gather { .. }
            | Operation::Scatter { .. }
            | Operation::AllToAll { .. } => self.direct(operation, context),
        }
    }

    /// This rank's number in its host, and how many ranks there are.
    pub(super) fn local_rank_and_size(&self) -> (LocalRank, usize) {
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
    fn reduce(&mut self, reduction_job: &StagedReduction, context: &StageContext) -> Result<(), Error> {
        let size = reduction_job.dtype.size();
        let cut = Cut::new(reduction_job.input.bytes / size, size, CHUNK_BYTES);
        let number = self.local_rank_and_size().0.0;
        let chunk = |transport: &HierarchicalTransport, step: usize| transport.chunk(cut.range(step), size);
        // The first is the longest.
        let room = chunk(self, 0)[number].1.next_multiple_of(64);
        let halves = self.scratch(2 * room);
        let half = |step: usize, chunk: &SegmentChunk| target(halves, step % 2 * room, chunk[number].1);
        let mut next = chunk(self, 0);
        self.reduce_scatter_segments(reduction_job, &next, half(0, &next), context)?;
        let mut before: Option<(SegmentChunk, Target)> = None;
        for step in 0..cut.steps() {
            let current = next;
            let own = half(step, &current);
            next = chunk(self, step + 1);
            let after = (step + 1 < cut.steps()).then(|| (&next, half(step + 1, &next)));
            let travelling = self.reduce_inter_host(reduction_job, own);
            let work = |transport: &mut HierarchicalTransport| {
                if let Some((chunk, own)) = &before {
                    transport.gather_segments(reduction_job, chunk, *own, context)?;
                }
                after.map_or(Ok(()), |(chunk, own)| {
                    transport.reduce_scatter_segments(reduction_job, chunk, own, context)
                })
            };
            self.overlap(travelling, context, (cut.steps() > 1).then_some(work))?;
            before = Some((current, own));
        }
        before.map_or(Ok(()), |(chunk, own)| self.gather_segments(reduction_job, &chunk, own, context))
    }

    /// Who reduces what of some elements: the segments of the ranks of this host.
    fn chunk(&self, range: Range<usize>, size: usize) -> SegmentChunk {
        let (rails, (_, ranks)) = (self.topology.rails(), self.local_rank_and_size());
        (0..ranks)
            .map(|rank| if rank < rails { segment(range.len(), size, rails, rank) } else { 0..0 })
            .map(|part| ((range.start + part.start) * size, part.len() * size))
            .collect()
    }

    /// The values of this host, each segment reduced by its rank.
    fn reduce_scatter_segments(
        &mut self,
        reduction_job: &StagedReduction,
        chunk: &SegmentChunk,
        own: Target,
        context: &StageContext,
    ) -> Result<(), Error> {
        let &StagedReduction { input, dtype, reduction, .. } = reduction_job;
        let parts = chunk.iter().map(|(start, bytes)| source(input, *start, *bytes)).collect();
        self.intra_host(
            &Work::ReduceScatter { parts, output: own, dtype, reduction: intra_host_reduction(reduction) },
            context,
        )
    }

    /// What hosts do with a segment, in place.
    fn reduce_inter_host(&self, reduction_job: &StagedReduction, own: Target) -> Operation {
        let &StagedReduction { dtype, reduction, root, .. } = reduction_job;
        let (input, reduction) = (Source::new(own.pointer, own.bytes), inter_host_reduction(reduction));
        match root {
            None => Operation::AllReduce { input, output: own, dtype, reduction },
            Some(root) => {
                let root = Rank(self.topology.host(root));
                Operation::Reduce { input, output: own, dtype, reduction, root }
            }
        }
    }

    /// The segments to those of this host who want the result.
    fn gather_segments(
        &mut self,
        reduction_job: &StagedReduction,
        chunk: &SegmentChunk,
        own: Target,
        context: &StageContext,
    ) -> Result<(), Error> {
        let wanted = match reduction_job.root {
            None => true,
            Some(root) if self.topology.host(root) != self.topology.host(self.rank) => {
                return self.host_barrier(context);
            }
            Some(root) => root == self.rank,
        };
        self.touched |= wanted;
        let output = |(start, bytes): &(usize, usize)| target(reduction_job.output, *start, *bytes);
        let outputs = chunk.iter().filter(|_| wanted).map(output).collect();
        let lengths = chunk.iter().map(|(_, bytes)| *bytes).collect();
        self.intra_host(&Work::Gather { input: Source::new(own.pointer, own.bytes), lengths, outputs }, context)
    }

    fn broadcast(&mut self, buffer: Target, dtype: DataType, root: Rank, context: &StageContext) -> Result<(), Error> {
        let (root_host, root_number) = (self.topology.host(root), self.topology.local(root));
        let rails = self.topology.rails();
        let (at_home, rail) = (root_host == self.topology.host(self.rank), root_number.0 % rails);
        let from = |number: usize| Operation::Broadcast { buffer, dtype, root: Rank(number) };
        self.touched |= self.rank != root;
        // A root without a rail gives it to its host first.
        let early = at_home && root_number.0 >= rails;
        self.intra_host(&Work::Operation(&if early { from(root_number.0) } else { Operation::Barrier }), context)?;
        let own_rail = self.topology.local(self.rank) == LocalRank(rail);
        self.inter_host(&if own_rail { from(root_host) } else { Operation::Barrier }, context)?;
        self.intra_host(&Work::Operation(&if early { Operation::Barrier } else { from(rail) }), context)
    }

    fn all_gather(
        &mut self,
        input: Source,
        outputs: &[Target],
        dtype: DataType,
        context: &StageContext,
    ) -> Result<(), Error> {
        let own_host = self.topology.host(self.rank);
        let (number, _) = self.local_rank_and_size();
        let of_host = |topology: &Topology, host: usize| -> Vec<Target> {
            topology.hosts[host].iter().map(|rank| outputs[rank.0]).collect()
        };
        self.touched = true;
        let intra_host = Operation::AllGather { input, outputs: of_host(&self.topology, own_host), dtype };
        self.intra_host(&Work::Operation(&intra_host), context)?;
        let rail: Vec<Target> = self.topology.rail(number).into_iter().map(|rank| outputs[rank.0]).collect();
        self.inter_host(&Operation::AllGather { input, outputs: rail.clone(), dtype }, context)?;
        for host in (0..rail.len()).filter(|host| *host != own_host) {
            let input = Source::new(rail[host].pointer, rail[host].bytes);
            let outputs = of_host(&self.topology, host);
            self.intra_host(&Work::Operation(&Operation::AllGather { input, outputs, dtype }), context)?;
        }
        Ok(())
    }

    fn reduce_scatter(
        &mut self,
        inputs: &[Source],
        output: Target,
        (dtype, reduction): (DataType, Reduction),
        context: &StageContext,
    ) -> Result<(), Error> {
        let (size, hosts) = (dtype.size(), self.topology.hosts.len());
        let cut = Cut::new(output.bytes / size, size, CHUNK_BYTES / hosts);
        for step in 0..cut.steps() {
            let range = cut.range(step);
            let (start, bytes) = (range.start * size, range.len() * size);
            let sums = self.scratch(hosts * bytes).split(hosts);
            for (host, output) in sums.iter().enumerate() {
                let parts = self.topology.hosts[host].iter().map(|rank| source(inputs[rank.0], start, bytes)).collect();
                let reduction = intra_host_reduction(reduction);
                let intra_host = Operation::ReduceScatter { inputs: parts, output: *output, dtype, reduction };
                self.intra_host(&Work::Operation(&intra_host), context)?;
            }
            let inputs = sums.iter().map(|sum| Source::new(sum.pointer, sum.bytes)).collect();
            let output = target(output, start, bytes);
            self.touched = true;
            let reduction = inter_host_reduction(reduction);
            self.inter_host(&Operation::ReduceScatter { inputs, output, dtype, reduction }, context)?;
        }
        self.host_barrier(context)
    }
}
