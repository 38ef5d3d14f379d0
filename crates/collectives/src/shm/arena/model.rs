//! What ranks share, tried by loom in every order of their accesses: sleeping, waking and the abort.
//!
//! The ranks are threads; the memory is mapped and laid out as always, but holds loom's atomics. Futexes have no time-out
//! here (see [`super::event`]), so a wake-up that is lost is a deadlock, which loom reports. The steps of operations are
//! tried in `shm::transport::model`. Part of `make soak`.
//!
//! What loom does not know: that a sequentially consistent load must not see less than the last sequentially consistent
//! store, if what it sees is older than all of them. That is why [`Arena::model`] writes every counter once.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loom::cell::UnsafeCell;
use loom::thread;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

use super::control::{Control, Counter};
use super::event::AtomicU64;
use super::{Arena, ArenaHeader, DEPTH, Layout, Mapping};
use crate::abort::AbortReason;
use crate::call::Call;
use crate::rank::LocalRank;
use crate::shm::wait::{Interrupted, Waiter};
use crate::{DataType, Kind, LossCause, Rank};

const SLOT_BYTES: usize = 64;

/// Tries every order, or with a bound those in which a thread is interrupted so often: most mistakes need one or two.
pub(crate) fn explore(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}

pub(crate) fn never() -> Instant {
    Instant::now() + Duration::from_secs(24 * 3600)
}

impl Arena {
    /// An arena of loom's atomics.
    pub(crate) fn model(world: usize) -> Arc<Arena> {
        let layout = Layout { world, slot_bytes: SLOT_BYTES, channels: 1 };
        let channel = layout.channel(0);
        let length = NonZeroUsize::new(layout.total()).expect("an arena has a header");
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(None, length, protection, MapFlags::MAP_PRIVATE) };
        let base = base.expect("a few pages can be mapped").cast::<u8>();
        // SAFETY: the parts lie inside the mapping, aligned, and nobody else has it yet. They own nothing but their bytes:
        // it does not matter that they are unmapped without being dropped.
        unsafe {
            base.cast::<ArenaHeader>().write(ArenaHeader { world: world as u64, ..ArenaHeader::default() });
            for rank in 0..world {
                base.add(channel.controls()).cast::<Control>().add(rank).write(Control::default());
            }
            for word in 0..world * DEPTH as usize * channel.row_words() {
                base.add(channel.rows()).cast::<AtomicU64>().add(word).write(AtomicU64::default());
            }
        }
        let arena = Arena::new(Mapping { base, length: length.get() }, layout);
        for rank in LocalRank::all(world) {
            let control = arena.control(rank);
            control.publish(Counter::Ready, 0);
            control.publish(Counter::Done, 0);
            assert!(control.fall_asleep(Counter::Ready, 0).is_none());
            control.woke_up();
        }
        Arc::new(arena)
    }

    /// Waits as `rank` until rank 0 has reached the first step.
    fn wait_for_first(&self, rank: LocalRank, counter: Counter) -> Result<(), Interrupted> {
        Waiter::new(Arc::new([]), rank, self.world(), 1).wait(self, LocalRank(0), counter, 1, 0, never())
    }
}

/// Memory that is written before a counter moves, and read after.
#[derive(Default)]
pub(crate) struct Data(UnsafeCell<u64>);

// SAFETY: it is loom's task to find accesses at the same time.
unsafe impl Sync for Data {}

impl Data {
    pub(crate) fn write(&self, value: u64) {
        // SAFETY: loom stops the model if somebody else uses the cell.
        self.0.with_mut(|cell| unsafe { *cell = value });
    }

    pub(crate) fn read(&self) -> u64 {
        // SAFETY: loom stops the model if somebody else writes to the cell.
        self.0.with(|cell| unsafe { *cell })
    }
}

#[test]
fn a_counter_that_moves_wakes_who_waits_for_it() {
    explore(None, || {
        let (arena, data) = (Arena::model(2), Arc::new(Data::default()));
        let waiting = thread::spawn({
            let (arena, data) = (arena.clone(), data.clone());
            move || {
                assert_eq!(arena.wait_for_first(LocalRank(1), Counter::Ready), Ok(()));
                assert_eq!(data.read(), 7);
            }
        });
        data.write(7);
        arena.control(LocalRank(0)).publish(Counter::Ready, 1);
        waiting.join().expect("the waiting rank is content");
    });
}

#[test]
fn two_wait_for_different_counters_of_one_rank() {
    explore(Some(3), || {
        let (arena, data) = (Arena::model(3), Arc::new([Data::default(), Data::default()]));
        let waiting = [(1, Counter::Ready), (2, Counter::Done)].map(|(rank, counter)| {
            let (arena, data) = (arena.clone(), data.clone());
            thread::spawn(move || {
                assert_eq!(arena.wait_for_first(LocalRank(rank), counter), Ok(()));
                assert_eq!(data[rank - 1].read(), rank as u64);
            })
        });
        data[0].write(1);
        arena.control(LocalRank(0)).publish(Counter::Ready, 1);
        data[1].write(2);
        arena.control(LocalRank(0)).publish(Counter::Done, 1);
        for rank in waiting {
            rank.join().expect("the waiting ranks are content");
        }
    });
}

#[test]
fn who_leaves_wakes_who_waits_and_what_it_did_before_counts() {
    for reaches in [false, true] {
        explore(None, move || {
            let arena = Arena::model(2);
            let waiting = thread::spawn({
                let arena = arena.clone();
                move || arena.wait_for_first(LocalRank(1), Counter::Ready)
            });
            if reaches {
                arena.control(LocalRank(0)).publish(Counter::Ready, 1);
            }
            arena.control(LocalRank(0)).leave();
            let found = waiting.join().expect("a wait does not panic");
            let expected = if reaches { Ok(()) } else { Err(Interrupted::Lost(LocalRank(0), LossCause::LeftGroup)) };
            assert_eq!(found, expected);
        });
    }
}

fn reasons() -> [AbortReason; 2] {
    let call = Call::new(Kind::AllReduce, DataType::F32, 5);
    [
        AbortReason::Timeout {
            call,
            sequence: 3,
            timeout: Duration::from_secs(2),
            missing: vec![Rank(1)],
            by: Rank(1),
        },
        AbortReason::Lost { rank: Rank(1), call, sequence: 8, noticed: LossCause::ProcessEnded, by: Rank(2) },
    ]
}

#[test]
fn an_abort_wakes_who_waits_and_its_reason_is_whole() {
    explore(None, || {
        let arena = Arena::model(2);
        let waiting = thread::spawn({
            let arena = arena.clone();
            move || {
                assert_eq!(arena.wait_for_first(LocalRank(1), Counter::Done), Err(Interrupted::Aborted));
                assert_eq!(arena.abort_reason().as_ref(), Some(&reasons()[0]));
            }
        });
        arena.abort(&reasons()[0]);
        waiting.join().expect("the waiting rank is content");
    });
}

#[test]
fn the_first_reason_stays_and_readers_see_all_of_it_or_nothing() {
    explore(Some(3), || {
        let arena = Arena::model(3);
        let writing = [0, 1].map(|writer: usize| {
            let arena = arena.clone();
            thread::spawn(move || arena.abort(&reasons()[writer]))
        });
        let seen = arena.abort_reason();
        assert!(seen.as_ref().is_none_or(|seen| reasons().contains(seen)), "torn: {seen:?}");
        for writer in writing {
            writer.join().expect("writers do not panic");
        }
        let last = arena.abort_reason().expect("the group is aborted");
        assert!(reasons().contains(&last), "torn: {last:?}");
        assert!(seen.is_none_or(|seen| seen == last), "another one came after the first");
    });
}
