//! Schedules executed in memory: links hold a few bytes, and who moves next is drawn by lot.
#![expect(unsafe_code, reason = "tests of code that is given raw memory")]

use std::collections::VecDeque;

use proptest::prelude::*;

use super::cursor::Cursor;
use super::{Buffer, Collective, Primitive, Schedule, Span, Thresholds, Topology, schedule};
use crate::dtype::{DataType, Reduction};
use crate::kernel;
use crate::partition::segment;

/// One member: its memory and how far it is.
struct Member<'a> {
    schedule: &'a Schedule,
    cursor: Cursor<'a>,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
    scratch: Vec<u8>,
    /// By peer: bytes of the message under way that are out, and in.
    sent: Vec<usize>,
    received: Vec<usize>,
    wire: usize,
}

impl Member<'_> {
    fn memory(&mut self, span: Span) -> &mut [u8] {
        let (inputs, outputs) = (self.inputs.len(), self.outputs.len());
        let whole = match span.buffer {
            Buffer::Input(part) => &mut self.inputs[part % inputs],
            Buffer::Output(part) => &mut self.outputs[part % outputs],
            Buffer::Scratch => &mut self.scratch,
        };
        &mut whole[span.start..span.start + span.bytes]
    }

    /// Whether it did some work on its own memory.
    fn work(&mut self, rank: usize, world: usize, dtype: DataType) -> bool {
        let Some(step) = self.cursor.local() else { return false };
        match self.schedule.steps[step].primitive {
            Primitive::Copy { from, into } => {
                let bytes = self.memory(from).to_vec();
                self.memory(into).copy_from_slice(&bytes);
            }
            Primitive::Fold { base, stride, own, into } => {
                let contribution_of =
                    |peer: usize| Span { buffer: Buffer::Scratch, start: base + peer * stride, bytes: own.bytes };
                let values: Vec<Vec<u8>> = (0..world)
                    .map(|peer| self.memory(if peer == rank { own } else { contribution_of(peer) }).to_vec())
                    .collect();
                let inputs: Vec<*const u8> = values.iter().map(|values| values.as_ptr()).collect();
                let into = self.memory(into);
                // SAFETY: all are as long as `own`, and copies but for the output.
                unsafe {
                    kernel::reduce(dtype, Reduction::Sum, &inputs, &[into.as_mut_ptr()], own.bytes / dtype.size());
                }
            }
            Primitive::Send { .. } | Primitive::Receive { .. } => unreachable!("no work on memory"),
        }
        self.cursor.finish(step);
        true
    }
}

/// Bytes on their way between two members, with the length of each message before it, as the real ones have it.
#[derive(Default)]
struct Wire {
    bytes: VecDeque<u8>,
    lengths: VecDeque<usize>,
}

struct Network<'a> {
    members: Vec<Member<'a>>,
    /// `from × world + to`.
    wires: Vec<Wire>,
    /// Bytes that a wire holds.
    capacity: usize,
    dtype: DataType,
}

impl Network<'_> {
    fn push(&mut self, from: usize, to: usize, most: usize) -> bool {
        let world = self.members.len();
        let member = &mut self.members[from];
        let Some(step) = member.cursor.send(to) else { return false };
        let Primitive::Send { span, .. } = member.schedule.steps[step].primitive else { unreachable!("a send") };
        let wire = &mut self.wires[from * world + to];
        let done = member.sent[to];
        // An empty message takes room, too.
        if wire.bytes.len() >= self.capacity || (done == 0 && wire.lengths.len() >= self.capacity) {
            return false;
        }
        if done == 0 {
            wire.lengths.push_back(span.bytes);
        }
        let room = self.capacity - wire.bytes.len();
        let now = (span.bytes - done).min(most).min(room);
        let bytes = member.memory(span)[done..done + now].to_vec();
        wire.bytes.extend(bytes);
        member.wire += now;
        member.sent[to] = done + now;
        if done + now == span.bytes {
            member.sent[to] = 0;
            member.cursor.finish(step);
        }
        true
    }

    fn pull(&mut self, to: usize, from: usize, most: usize) -> bool {
        let world = self.members.len();
        let member = &mut self.members[to];
        let Some(step) = member.cursor.receive(from) else { return false };
        let Primitive::Receive { span, .. } = member.schedule.steps[step].primitive else { unreachable!("a receive") };
        let wire = &mut self.wires[from * world + to];
        let done = member.received[from];
        let Some(length) = wire.lengths.front() else { return false };
        assert_eq!(*length, span.bytes, "what {from} sends is what {to} expects");
        let now = (span.bytes - done).min(most).min(wire.bytes.len());
        if now == 0 && done < span.bytes {
            return false;
        }
        let bytes: Vec<u8> = wire.bytes.drain(..now).collect();
        member.memory(span)[done..done + now].copy_from_slice(&bytes);
        member.received[from] = done + now;
        if done + now == span.bytes {
            wire.lengths.pop_front();
            member.received[from] = 0;
            member.cursor.finish(step);
        }
        true
    }

    /// Everybody moves as `lot` says until all are through; panics when nobody can.
    fn settle(&mut self, mut lot: impl FnMut(usize) -> usize) {
        let world = self.members.len();
        loop {
            let mut moved = false;
            for _ in 0..world * world {
                let (one, other, most) = (lot(world), lot(world), 1 + lot(self.capacity));
                let dtype = self.dtype;
                moved |= match lot(3) {
                    0 if one != other => self.push(one, other, most),
                    1 if one != other => self.pull(one, other, most),
                    _ => self.members[one].work(one, world, dtype),
                };
            }
            if moved {
                continue;
            }
            // The lot may have been unlucky: now everybody tries everything.
            for one in 0..world {
                for other in (0..world).filter(|other| *other != one) {
                    moved |= self.push(one, other, self.capacity) | self.pull(one, other, self.capacity);
                }
                let dtype = self.dtype;
                moved |= self.members[one].work(one, world, dtype);
            }
            if self.members.iter().all(|member| member.cursor.is_over()) {
                assert!(self.wires.iter().all(|wire| wire.lengths.is_empty()), "something is left on the wire");
                return;
            }
            assert!(moved, "nobody can move");
        }
    }
}

/// What every member has before and after.
struct Outcome {
    outputs: Vec<Vec<Vec<u8>>>,
    /// Bytes that each sent.
    wire: Vec<usize>,
}

fn execute(
    world: usize,
    sizes: &Thresholds,
    capacity: usize,
    seed: u64,
    dtype: DataType,
    collective: impl Fn(usize) -> Collective,
    memory: impl Fn(usize) -> (Vec<Vec<u8>>, Vec<Vec<u8>>),
) -> Outcome {
    let schedules: Vec<Schedule> = (0..world).map(|rank| schedule(&collective(rank), world, rank, sizes)).collect();
    let member = |rank: usize| {
        let (inputs, outputs) = memory(rank);
        let (schedule, zeros) = (&schedules[rank], vec![0; world]);
        let (cursor, scratch) = (Cursor::new(schedule, world), vec![0xcc; schedule.scratch]);
        Member { schedule, cursor, inputs, outputs, scratch, sent: zeros.clone(), received: zeros, wire: 0 }
    };
    let members = (0..world).map(member).collect();
    let wires = (0..world * world).map(|_| Wire::default()).collect();
    let mut network = Network { members, wires, capacity, dtype };
    let mut state = seed | 1;
    network.settle(|below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below
    });
    let wire = network.members.iter().map(|member| member.wire).collect();
    Outcome { outputs: network.members.into_iter().map(|member| member.outputs).collect(), wire }
}

fn values(rank: usize, part: usize, count: usize) -> Vec<f32> {
    // Numbers whose sum depends on the order.
    (0..count).map(|at| ((rank * 31 + part * 17 + at * 7) % 101) as f32 * 0.1 + 1e-7 * rank as f32).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// The sum in the order of ranks.
fn summed(world: usize, part: usize, count: usize) -> Vec<u8> {
    let all: Vec<Vec<f32>> = (0..world).map(|rank| values(rank, part, count)).collect();
    let sum = |at: usize| all.iter().skip(1).fold(all[0][at], |sum, values| sum + values[at]);
    bytes(&(0..count).map(sum).collect::<Vec<_>>())
}

/// Bytes of a member's segments, round by round, as the documentation counts them.
fn own_segments(sizes: &Thresholds, count: usize, world: usize, rank: usize) -> usize {
    let share = (sizes.scratch / (3 * world)).clamp(sizes.message.min(4 << 10), sizes.message);
    let round = (share / 4).max(1).next_multiple_of(16) * world;
    (0..count.div_ceil(round)).map(|number| segment(round.min(count - number * round), 4, world, rank).len() * 4).sum()
}

fn shapes() -> impl Strategy<Value = (usize, usize, Thresholds, usize, u64)> {
    (2usize..7, 0usize..700, 1usize..6, 1usize..300, 64usize..4000, any::<u64>()).prop_map(
        |(world, count, small, message, scratch, seed)| {
            let sizes = Thresholds { small: 64 * small, direct: 256, message: 64 + 4 * message, scratch };
            (world, count, sizes, 1 + (seed % 97) as usize, seed)
        },
    )
}

proptest! {
    #[test]
    fn an_all_reduce_is_the_sum_in_the_order_of_ranks((world, count, sizes, capacity, seed) in shapes()) {
        let empty = vec![vec![0xee; 4 * count]];
        let collective = |_: usize| Collective::AllReduce { count, element: 4 };
        let memory = |rank: usize| (vec![bytes(&values(rank, 0, count))], empty.clone());
        let found = execute(world, &sizes, capacity, seed, DataType::F32, collective, memory);
        let expected = summed(world, 0, count);
        for (rank, outputs) in found.outputs.iter().enumerate() {
            prop_assert_eq!(&outputs[0], &expected);
            let own = own_segments(&sizes, count, world, rank);
            let formula = if 4 * count <= sizes.small {
                (world - 1) * 4 * count
            } else {
                (4 * count - own) + (world - 1) * own
            };
            prop_assert_eq!(found.wire[rank], formula);
        }
    }

    #[test]
    fn a_reduce_reaches_the_root_alone((world, count, sizes, capacity, seed) in shapes()) {
        let root = count % world;
        let collective = |_: usize| Collective::Reduce { count, element: 4, root };
        let memory = |rank: usize| (vec![bytes(&values(rank, 0, count))], vec![vec![0xee; 4 * count]]);
        let found = execute(world, &sizes, capacity, seed, DataType::F32, collective, memory);
        for (rank, outputs) in found.outputs.iter().enumerate() {
            let expected = if rank == root { summed(world, 0, count) } else { vec![0xee; 4 * count] };
            prop_assert_eq!(&outputs[0], &expected);
            let own = own_segments(&sizes, count, world, rank);
            let formula = match (rank == root, 4 * count <= sizes.small) {
                (true, true) => 0,
                (true, false) => 4 * count - own,
                (false, _) => 4 * count,
            };
            prop_assert_eq!(found.wire[rank], formula);
        }
    }

    #[test]
    fn a_reduce_scatter_gives_everybody_its_part((world, count, sizes, capacity, seed) in shapes()) {
        let collective = |_: usize| Collective::ReduceScatter { count, element: 4 };
        let memory = |rank: usize| {
            let inputs = (0..world).map(|part| bytes(&values(rank, part, count))).collect();
            (inputs, vec![vec![0xee; 4 * count]])
        };
        let found = execute(world, &sizes, capacity, seed, DataType::F32, collective, memory);
        for (rank, outputs) in found.outputs.iter().enumerate() {
            prop_assert_eq!(&outputs[0], &summed(world, rank, count));
            prop_assert_eq!(found.wire[rank], (world - 1) * 4 * count);
        }
    }

    #[test]
    fn a_broadcast_comes_from_the_root((world, count, sizes, capacity, seed) in shapes()) {
        let root = seed as usize % world;
        let collective = |_: usize| Collective::Broadcast { bytes: 4 * count, root };
        let expected = bytes(&values(root, 0, count));
        // One buffer is both input and output, as in the operation.
        let memory = |rank: usize| {
            let own = if rank == root { expected.clone() } else { vec![0xee; 4 * count] };
            (vec![own.clone()], vec![own])
        };
        let found = execute(world, &sizes, capacity, seed, DataType::F32, collective, memory);
        let chain = 4 * count > sizes.direct && world > 2;
        for (rank, outputs) in found.outputs.iter().enumerate() {
            prop_assert_eq!(&outputs[0], &expected);
            let last = (root + world - 1) % world;
            let formula = match (chain, rank == root, rank == last) {
                (true, _, false) => 4 * count,
                (false, true, _) => (world - 1) * 4 * count,
                _ => 0,
            };
            prop_assert_eq!(found.wire[rank], formula);
        }
    }

    #[test]
    fn parts_go_where_they_belong((world, count, sizes, capacity, seed) in shapes(), kind in 0usize..5) {
        let root = seed as usize % world;
        let length = |from: usize, to: usize| if kind >= 3 { (from * 5 + to * 3) % 7 * count } else { count };
        let collective = |rank: usize| match kind {
            0 => Collective::AllGather { bytes: count },
            1 => Collective::Gather { bytes: count, root },
            2 => Collective::Scatter { bytes: count, root },
            _ => Collective::AllToAll {
                sends: (0..world).map(|to| length(rank, to)).collect(),
                expects: (0..world).map(|from| length(from, rank)).collect(),
                with_all: kind == 3,
            },
        };
        let content = |from: usize, to: usize| vec![(from * 16 + to) as u8; length(from, to)];
        let memory = |rank: usize| match kind {
            0 => (vec![content(rank, 0)], vec![vec![0xee; count]; world]),
            1 => (vec![content(rank, 0)], if rank == root { vec![vec![0xee; count]; world] } else { vec![vec![]] }),
            2 if rank == root => ((0..world).map(|to| content(rank, to)).collect(), vec![vec![0xee; count]]),
            2 => (vec![vec![]], vec![vec![0xee; count]]),
            _ => (
                (0..world).map(|to| content(rank, to)).collect(),
                (0..world).map(|from| vec![0xee; length(from, rank)]).collect(),
            ),
        };
        let found = execute(world, &sizes, capacity, seed, DataType::Bytes, collective, memory);
        for (rank, outputs) in found.outputs.iter().enumerate() {
            let expected: Vec<Vec<u8>> = match kind {
                0 => (0..world).map(|from| content(from, 0)).collect(),
                1 if rank == root => (0..world).map(|from| content(from, 0)).collect(),
                1 => vec![vec![]],
                2 => vec![content(root, rank)],
                _ => (0..world).map(|from| content(from, rank)).collect(),
            };
            prop_assert_eq!(outputs, &expected);
            let formula: usize = match kind {
                0 => (world - 1) * count,
                1 => if rank == root { 0 } else { count },
                2 => if rank == root { (world - 1) * count } else { 0 },
                _ => (0..world).filter(|to| *to != rank).map(|to| length(rank, to)).sum(),
            };
            prop_assert_eq!(found.wire[rank], formula);
        }
    }
}

/// Hosts with random numbers of ranks, and a random number of elements.
fn hosts() -> impl Strategy<Value = (Vec<usize>, usize, usize, u64)> {
    (proptest::collection::vec(1usize..5, 2..5), 0usize..2000, 1usize..97, any::<u64>())
}

proptest! {
    /// The stages between hosts of an all_reduce in two levels: what the ranks of a host have added up goes over as many
    /// rails as the smallest host has ranks.
    #[test]
    fn rails_carry_what_hosts_have_and_not_what_ranks_have((ranks, count, capacity, seed) in hosts()) {
        let keys: Vec<usize> = ranks.iter().enumerate().flat_map(|(host, ranks)| vec![host; *ranks]).collect();
        let topology = Topology::new(&keys);
        let (world, rails) = (ranks.len(), topology.rails());
        let sizes = Thresholds { small: 256, direct: 256, message: 512, scratch: 1 << 14 };
        // What a host has: the sum of its ranks, in their order.
        let of_host = |host: usize| {
            let all: Vec<Vec<f32>> = topology.hosts[host].iter().map(|rank| values(rank.0, 0, count)).collect();
            let sum = |at: usize| all.iter().skip(1).fold(all[0][at], |sum, values| sum + values[at]);
            (0..count).map(sum).collect::<Vec<f32>>()
        };
        let sums: Vec<Vec<f32>> = (0..world).map(of_host).collect();
        let (mut wire, mut whole, mut own_bytes) = (vec![0; world], vec![Vec::new(); world], 0);
        for rail in 0..rails {
            let part = segment(count, 4, rails, rail);
            let collective = |_: usize| Collective::AllReduce { count: part.len(), element: 4 };
            let memory = |host: usize| (vec![bytes(&sums[host][part.clone()])], vec![vec![0xee; 4 * part.len()]]);
            let found = execute(world, &sizes, capacity, seed, DataType::F32, collective, memory);
            for host in 0..world {
                wire[host] += found.wire[host];
                whole[host].extend(found.outputs[host][0].clone());
            }
            // The most that one host may reduce for the others, from segments that are cut at whole lines.
            own_bytes += if 4 * part.len() <= sizes.small {
                4 * part.len()
            } else {
                (0..world).map(|host| own_segments(&sizes, part.len(), world, host)).max().unwrap_or(0)
            };
        }
        let sum = |at: usize| sums.iter().skip(1).fold(sums[0][at], |sum, values| sum + values[at]);
        let expected = bytes(&(0..count).map(sum).collect::<Vec<_>>());
        for host in 0..world {
            prop_assert_eq!(&whole[host], &expected);
            // However many ranks it has: B for what it gives away, and its share for each of the others.
            prop_assert!(wire[host] <= 4 * count + (world - 1) * own_bytes);
        }
        let small = (0..rails).all(|rail| 4 * segment(count, 4, rails, rail).len() <= sizes.small);
        let large = (0..rails).all(|rail| 4 * segment(count, 4, rails, rail).len() > sizes.small);
        let total: usize = wire.iter().sum();
        if small {
            prop_assert_eq!(total, world * (world - 1) * 4 * count);
        } else if large {
            // 2 · B · (h − 1) / h for each of h hosts.
            prop_assert_eq!(total, 2 * 4 * count * (world - 1));
        }
    }
}

#[test]
fn nobody_is_through_before_all_have_entered() {
    let sizes = Thresholds { small: 64, direct: 64, message: 128, scratch: 1 << 12 };
    let tasks = [
        Collective::Barrier,
        Collective::AllReduce { count: 5, element: 4 },
        Collective::AllReduce { count: 500, element: 4 },
        Collective::Reduce { count: 500, element: 4, root: 1 },
        Collective::ReduceScatter { count: 0, element: 4 },
        Collective::Broadcast { bytes: 10, root: 2 },
        Collective::Broadcast { bytes: 1000, root: 2 },
        Collective::AllGather { bytes: 0 },
        Collective::Gather { bytes: 9, root: 0 },
        Collective::Scatter { bytes: 9, root: 0 },
        Collective::AllToAll { sends: vec![0; 4], expects: vec![0; 4], with_all: true },
    ];
    for collective in tasks {
        for rank in 0..4 {
            let schedule = schedule(&collective, 4, rank, &sizes);
            for other in (0..4).filter(|other| *other != rank) {
                let receives =
                    |primitive: Primitive| matches!(primitive, Primitive::Receive { from, .. } if from == other);
                assert!(
                    schedule.steps.iter().any(|step| receives(step.primitive)),
                    "{collective:?}: {rank} hears of {other}"
                );
            }
            assert!(schedule.scratch <= 3 * 4 * (64 + 128 + 64), "{collective:?}: {}", schedule.scratch);
        }
    }
}
