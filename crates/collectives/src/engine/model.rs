//! The steps of operations, tried by loom in every order of the ranks' accesses.
//!
//! Here runs the engine itself. Loom cannot see through raw pointers into slots, so the flows of these models move cells of
//! loom in their place, one for every segment of a slot: two accesses that the counters do not order stop the model. What
//! needs no slot, because it travels beside the counters, runs with nothing replaced. See `arena::model` for the rest.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use super::{Engine, Flow, Move, Needs, View, Watch};
use crate::arena::model::{Data, explore, never};
use crate::arena::wait::Waiter;
use crate::arena::{Arena, DEPTH};
use crate::call::Call;
use crate::operation::{Operation, Source, Target};
use crate::{DataType, Kind, Reduction};

const WORLD: usize = 2;
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Runs this on every rank, with slots that are new.
fn on_every_rank(rank_does: impl Fn(Engine, &Slots) + Copy + Send + 'static) {
    let (arena, slots) = (Arena::model(WORLD), Arc::new(Slots::default()));
    let other = thread::spawn({
        let (arena, slots) = (arena.clone(), slots.clone());
        move || rank_does(Engine::model(arena, 1), &slots)
    });
    rank_does(Engine::model(arena, 0), &slots);
    other.join().expect("the other rank is content");
}

impl Engine {
    /// A place in an arena without the operations that usually come first.
    fn model(arena: Arc<Arena>, rank: usize) -> Engine {
        let (waiter, members) = (Waiter::new(Arc::new([]), rank, arena.world(), 1), (0..arena.world()).collect());
        let mut engine = Engine::at_first_step(arena, waiter, members, Vec::new());
        engine.small_bytes = engine.arena.slot_bytes();
        engine
    }

    /// What [`Engine::run`] and [`Engine::perform`] do, with a flow of the model.
    fn run_modelled(&mut self, flow: Flow<'_>) {
        let call = Call::new(Kind::AllReduce, DataType::U8, WORLD * flow.steps);
        let (sequence, rank) = (self.sequence, self.rank());
        let watch = Watch { call, sequence, shown: sequence, timeout: PATIENCE, deadline: never() };
        self.wait_free(self.step, &watch).expect("nobody aborts");
        let fingerprint = call.fingerprint(sequence);
        self.arena.control(rank).enter(sequence, self.step, &call, fingerprint);
        self.run_flow(flow, Some(fingerprint), &watch).expect("nobody aborts");
        self.arena.control(rank).complete(sequence);
        self.sequence += 1;
    }
}

/// In place of the slots: for every rank and buffer a segment that belongs to each rank.
#[derive(Default)]
struct Slots([[[Data; WORLD]; DEPTH as usize]; WORLD]);

impl Slots {
    /// The segment of a slot, which is found as the real one is.
    fn segment(&self, view: &View<'_>, rank: usize, step: usize, segment: usize) -> &Data {
        let first = view.arena.slot(rank, 0) as usize;
        let buffer = (view.slot(rank, step) as usize - first) / view.arena.slot_bytes();
        &self.0[rank][buffer][segment]
    }
}

/// What a rank contributes to a segment of a step.
fn input(rank: usize, number: u64, segment: usize) -> u64 {
    1 + rank as u64 + 10 * segment as u64 + 100 * number
}

fn sum(number: u64, segment: usize) -> u64 {
    (0..WORLD).map(|rank| input(rank, number, segment)).sum()
}

/// As all_reduce: everybody reduces its segment, and keeps the result in its own slot or puts it back into those of the others.
fn reduce_by_segments(slots: &Slots, steps: usize, stays: bool) -> Flow<'_> {
    let number = |view: &View<'_>, step: usize| view.base + step as u64;
    let fill: Move<'_> = Box::new(move |view, step| {
        for peer in view.peers() {
            slots.segment(view, view.rank, step, peer).write(input(view.rank, number(view, step), peer));
        }
        Ok(())
    });
    let take: Move<'_> = Box::new(move |view, step| {
        let given = |peer: usize| slots.segment(view, peer, step, view.rank);
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
    let collect: Move<'_> = Box::new(move |view, step| {
        for peer in view.peers() {
            let result = slots.segment(view, if stays { peer } else { view.rank }, step, peer).read();
            assert_eq!(result, sum(number(view, step), peer));
        }
        Ok(())
    });
    Flow { fill: Some(fill), needs: Needs::All, take: Some(take), collect: Some(collect), ..Flow::new(steps) }
}

/// As broadcast, in which nobody waits for who only receives, until the slots are all in use.
fn give_from_first(slots: &Slots, rank: usize, steps: usize) -> Flow<'_> {
    let fill: Move<'_> = Box::new(move |view, step| {
        slots.segment(view, 0, step, 0).write(input(0, view.base + step as u64, 0));
        Ok(())
    });
    let take: Move<'_> = Box::new(move |view, step| {
        let given = slots.segment(view, 0, step, 0).read();
        assert_eq!(given, input(0, view.base + step as u64, 0));
        Ok(())
    });
    let (fill, take) = if rank == 0 { (Some(fill), None) } else { (None, Some(take)) };
    Flow { fill, needs: Needs::Only(0), take, ..Flow::new(steps) }
}

/// Operations of so many steps one after the other.
fn explore_operations(flow: for<'s> fn(&'s Slots, usize, usize, usize) -> Flow<'s>) {
    for (operations, steps, preemptions) in [(1, 4, 2), (3, 1, 2), (2, 2, 2), (1, 2, 3)] {
        explore(Some(preemptions), move || {
            on_every_rank(move |mut engine, slots| {
                for operation in 0..operations {
                    let flow = flow(slots, engine.rank(), operation, steps);
                    engine.run_modelled(flow);
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
            on_every_rank(move |mut engine, _| {
                for number in 0..operations {
                    let given = [0, 1].map(|segment| input(engine.rank(), number, segment) as i64);
                    let mut found = [0i64; 2];
                    let operation = Operation::AllReduce {
                        input: Source::of(&given),
                        output: Target::of(&mut found),
                        dtype: DataType::I64,
                        reduction: Reduction::Sum,
                    };
                    engine.run(&operation, PATIENCE).expect("nobody aborts");
                    assert_eq!(found, [0, 1].map(|segment| sum(number, segment) as i64));
                }
            });
        });
    }
}
