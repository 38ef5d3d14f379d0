//! The steps of operations, tried by loom in every order of the ranks' accesses.
//!
//! Here runs the transport itself. Loom cannot see through raw pointers into slots, so the pipelines of these models move cells of
//! loom in their place, one for every segment of a slot: two accesses that the counters do not order stop the model. What
//! needs no slot, because it travels beside the counters, runs with nothing replaced. See `arena::model` for the rest.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use super::ShmTransport;
use super::pipeline::{Needs, Pipeline, StepContext, StepFn, View};
use crate::call::Call;
use crate::operation::{Operation, Source, Target};
use crate::rank::LocalRank;
use crate::shm::arena::model::{Data, explore, never};
use crate::shm::arena::{Arena, DEPTH};
use crate::shm::wait::Waiter;
use crate::transport::Transport;
use crate::{DataType, Kind, Rank, Reduction};

const WORLD: usize = 2;
const FIRST: LocalRank = LocalRank(0);
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Runs this on every rank, with slots that are new.
fn on_every_rank(rank_does: impl Fn(ShmTransport, &Slots) + Copy + Send + 'static) {
    let (arena, slots) = (Arena::model(WORLD), Arc::new(Slots::default()));
    let other = thread::spawn({
        let (arena, slots) = (arena.clone(), slots.clone());
        move || rank_does(ShmTransport::model(arena, LocalRank(1)), &slots)
    });
    rank_does(ShmTransport::model(arena, LocalRank(0)), &slots);
    other.join().expect("the other rank is content");
}

impl ShmTransport {
    /// A transport on an arena without the operations that usually come first.
    fn model(arena: Arc<Arena>, rank: LocalRank) -> ShmTransport {
        let (waiter, members) = (Waiter::new(Arc::new([]), rank, arena.world(), 1), Rank::all(arena.world()).collect());
        let mut transport = ShmTransport::at_first_step(arena, waiter, members, Vec::new());
        transport.small_bytes = transport.arena.slot_bytes();
        transport
    }

    /// What [`ShmTransport::run`] and [`ShmTransport::perform`] do, with a pipeline of the model.
    fn run_modelled(&mut self, pipeline: Pipeline<'_>) {
        let call = Call::new(Kind::AllReduce, DataType::U8, WORLD * pipeline.steps);
        let (sequence, rank) = (self.sequence, self.local_rank());
        let context = StepContext { call, sequence, user_sequence: sequence, timeout: PATIENCE, deadline: never() };
        self.wait_free(self.step, &context).expect("nobody aborts");
        let fingerprint = call.fingerprint(sequence);
        self.arena.control(rank).enter(sequence, self.step, &call, fingerprint);
        self.run_pipeline(pipeline, Some(fingerprint), &context).expect("nobody aborts");
        self.arena.control(rank).complete(sequence);
        self.sequence += 1;
    }
}

/// In place of the slots: for every rank and buffer a segment that belongs to each rank.
#[derive(Default)]
struct Slots([[[Data; WORLD]; DEPTH as usize]; WORLD]);

impl Slots {
    /// The segment of a slot, which is found as the real one is.
    fn segment(&self, view: &View<'_>, rank: LocalRank, step: usize, segment: LocalRank) -> &Data {
        let first = view.arena.slot(rank, 0) as usize;
        let buffer = (view.slot(rank, step) as usize - first) / view.arena.slot_bytes();
        &self.0[rank.0][buffer][segment.0]
    }
}

/// What a rank contributes to a segment of a step.
fn input(rank: LocalRank, number: u64, segment: LocalRank) -> u64 {
    1 + rank.0 as u64 + 10 * segment.0 as u64 + 100 * number
}

fn sum(number: u64, segment: LocalRank) -> u64 {
    LocalRank::all(WORLD).map(|rank| input(rank, number, segment)).sum()
}

/// As all_reduce: everybody reduces its segment, and keeps the result in its own slot or puts it back into those of the others.
fn reduce_by_segments(slots: &Slots, steps: usize, stays: bool) -> Pipeline<'_> {
    let number = |view: &View<'_>, step: usize| view.base + step as u64;
    let fill: StepFn<'_> = Box::new(move |view, step| {
        for peer in view.peers() {
            slots.segment(view, view.rank, step, peer).write(input(view.rank, number(view, step), peer));
        }
        Ok(())
    });
    let take: StepFn<'_> = Box::new(move |view, step| {
        let given = |peer: LocalRank| slots.segment(view, peer, step, view.rank);
        let own = input(view.rank, number(view, step), view.rank);
        let result = own + view.peers().map(|peer| given(peer).read()).sum::<u64>();
        assert_eq!(result, sum(number(view, step), view.rank));
        if stays {
            given(view.rank).write(result);
        } else {
            view.peers().for_each(|peer| given(peer).write(result));
        }
        Ok(())
    });
    let collect: StepFn<'_> = Box::new(move |view, step| {
        for peer in view.peers() {
            let result = slots.segment(view, if stays { peer } else { view.rank }, step, peer).read();
            assert_eq!(result, sum(number(view, step), peer));
        }
        Ok(())
    });
    Pipeline { fill: Some(fill), needs: Needs::All, take: Some(take), collect: Some(collect), ..Pipeline::new(steps) }
}

/// As broadcast, in which nobody waits for who only receives, until the slots are all in use.
fn give_from_first(slots: &Slots, rank: LocalRank, steps: usize) -> Pipeline<'_> {
    let fill: StepFn<'_> = Box::new(move |view, step| {
        slots.segment(view, FIRST, step, FIRST).write(input(FIRST, view.base + step as u64, FIRST));
        Ok(())
    });
    let take: StepFn<'_> = Box::new(move |view, step| {
        let given = slots.segment(view, FIRST, step, FIRST).read();
        assert_eq!(given, input(FIRST, view.base + step as u64, FIRST));
        Ok(())
    });
    let (fill, take) = if rank == FIRST { (Some(fill), None) } else { (None, Some(take)) };
    Pipeline { fill, needs: Needs::Only(FIRST), take, ..Pipeline::new(steps) }
}

/// Operations of so many steps one after the other.
fn explore_operations(pipeline: for<'s> fn(&'s Slots, LocalRank, usize, usize) -> Pipeline<'s>) {
    for (operations, steps, preemptions) in [(1, 4, 2), (3, 1, 2), (2, 2, 2), (1, 2, 3)] {
        explore(Some(preemptions), move || {
            on_every_rank(move |mut transport, slots| {
                for operation in 0..operations {
                    let pipeline = pipeline(slots, transport.local_rank(), operation, steps);
                    transport.run_modelled(pipeline);
                }
            });
        });
    }
}

#[test]
fn segments_are_reduced_and_handed_back_over_reused_slots() {
    explore_operations(|slots, _, _, steps| reduce_by_segments(slots, steps, false));
}

#[test]
fn segments_are_reduced_and_kept_over_reused_slots() {
    explore_operations(|slots, _, _, steps| reduce_by_segments(slots, steps, true));
}

#[test]
fn what_a_rank_kept_is_read_before_it_gives_something_else() {
    explore_operations(|slots, rank, operation, steps| match operation % 2 {
        0 => reduce_by_segments(slots, steps, true),
        _ => give_from_first(slots, rank, steps),
    });
}

#[test]
fn a_root_runs_ahead_only_as_far_as_there_are_slots() {
    explore_operations(|slots, rank, _, steps| give_from_first(slots, rank, steps));
}

#[test]
fn a_few_bytes_travel_beside_the_counter() {
    for (operations, preemptions) in [(4, 2), (2, 3)] {
        explore(Some(preemptions), move || {
            on_every_rank(move |mut transport, _| {
                for number in 0..operations {
                    let given =
                        [0, 1].map(LocalRank).map(|segment| input(transport.local_rank(), number, segment) as i64);
                    let mut found = [0i64; 2];
                    let operation = Operation::AllReduce {
                        input: Source::of(&given),
                        output: Target::of(&mut found),
                        dtype: DataType::I64,
                        reduction: Reduction::Sum,
                    };
                    transport.run(&operation, PATIENCE).expect("nobody aborts");
                    assert_eq!(found, [0, 1].map(LocalRank).map(|segment| sum(number, segment) as i64));
                }
            });
        });
    }
}
