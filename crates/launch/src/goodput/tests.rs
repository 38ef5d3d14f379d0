//! Lines of processes, and what they add up to.

use instep_recorder::{Account, Activity};
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

use super::*;

/// A process that starts at a moment, has its ledger 10 later and trains from 20 later on, in steps of 10.
fn training(started: u64, first: u64, steps: u64) -> Account {
    let mut account = Account::new(started + 10);
    account.begin_training(first, started + 20);
    for step in 0..steps {
        account.begin_attempt(started + 20 + step * 10);
        account.begin_wait(started + 26 + step * 10);
        account.end_wait(started + 30 + step * 10);
        account.commit(first + step + 1);
    }
    account
}

fn span(local_rank: usize, round: u64, (started, ended): (u64, u64), account: Option<Account>) -> Span {
    Span { local_rank, rank: local_rank, round, moved: false, started, ended, failed: false, account }
}

fn times(goodput: &Goodput, local_rank: usize) -> Vec<(&'static str, u64)> {
    let times = &goodput.ranks[local_rank].times;
    Class::ALL.iter().map(|class| (class.name(), times.of(*class))).filter(|(_, spent)| *spent > 0).collect()
}

#[test]
fn a_run_without_faults_starts_and_trains() {
    let goodput = tally(0, 160, &[span(0, 0, (5, 155), Some(training(5, 0, 12)))]);
    assert_eq!(times(&goodput, 0), [("start", 25), ("compute", 82), ("communication", 48), ("idle", 5)]);
    assert_eq!(goodput.total().ettr(), Some(130.0 / 160.0));
    assert_eq!(goodput.steps, Some(StepCount { first: 0, done: 12, redone: 0, taken_back: 0 }));
}

#[test]
fn a_rank_that_dies_in_a_step_loses_that_step_and_its_successor_restarts() {
    // It dies 7 into the fourth step, in communication; the survivor waits, then does it again.
    let mut victim = training(0, 0, 3);
    victim.begin_attempt(50);
    victim.begin_wait(56);
    let died = Span { failed: true, ..span(1, 0, (0, 57), Some(victim)) };
    let successor = span(1, 0, (60, 120), Some(training(60, 3, 3)));
    let mut survivor = training(0, 0, 3);
    survivor.begin_attempt(50);
    survivor.begin_wait(56);
    survivor.switch(Activity::Restart, 58);
    survivor.abort_attempt(80);
    survivor.switch(Activity::Compute, 80);
    let goodput = tally(0, 120, &[span(0, 0, (0, 120), Some(survivor)), died, successor]);
    assert_eq!(
        times(&goodput, 0),
        [("start", 20), ("compute", 58), ("communication", 12), ("restart", 22), ("lost", 8)]
    );
    assert_eq!(
        times(&goodput, 1),
        [("start", 20), ("compute", 18 + 28), ("communication", 12 + 12), ("restart", 3 + 20), ("lost", 7)]
    );
    assert_eq!(goodput.steps, Some(StepCount { first: 0, done: 6, redone: 1, taken_back: 0 }));
}

#[test]
fn a_rank_that_moved_here_counts_from_then_on() {
    let moved = Span { moved: true, ..span(1, 0, (60, 120), Some(training(60, 3, 3))) };
    let goodput = tally(0, 120, &[span(0, 0, (0, 120), Some(training(0, 0, 6))), moved]);
    assert_eq!(times(&goodput, 1), [("compute", 28), ("communication", 12), ("restart", 20)]);
    let mut book = Book::new(0);
    book.started(0, 0, 0, 10);
    book.replaced(0, 0, 0, 40);
    book.replaced(1, 3, 0, 60);
    book.replaced(1, 3, 0, 80);
    (0..2).for_each(|local_rank| book.end(local_rank, false, 100, None));
    let sums = book.goodput(100).unwrap().ranks.iter().map(|rank| rank.times.sum()).collect::<Vec<_>>();
    assert_eq!(sums, [100, 40]);
}

#[test]
fn a_step_that_the_peers_finish_is_not_lost() {
    let mut victim = training(0, 0, 3);
    victim.begin_attempt(50);
    let died = Span { failed: true, ..span(0, 0, (0, 57), Some(victim)) };
    let goodput = tally(0, 100, &[died, span(0, 0, (60, 100), Some(training(60, 4, 2)))]);
    assert_eq!(goodput.total().of(Class::Lost), 0);
    assert_eq!(goodput.steps.map(|steps| steps.redone), Some(0));
}

#[test]
fn a_restart_of_all_ranks_loses_the_steps_since_the_checkpoint() {
    let first = Span { failed: true, ..span(0, 0, (0, 120), Some(training(0, 0, 10))) };
    let goodput = tally(0, 220, &[first, span(0, 1, (130, 220), Some(training(130, 6, 7)))]);
    assert_eq!(goodput.steps, Some(StepCount { first: 0, done: 13, redone: 0, taken_back: 4 }));
    let total = goodput.total();
    assert_eq!(total.of(Class::Lost), 40, "4 of 10 steps");
    assert_eq!((total.of(Class::Start), total.of(Class::Restart)), (20, 30));
}

#[test]
fn a_process_without_a_ledger_is_not_called_training() {
    let goodput = tally(0, 100, &[span(0, 0, (10, 90), None), span(1, 0, (10, 90), Some(training(10, 0, 2)))]);
    assert_eq!(times(&goodput, 0), [("start", 10), ("idle", 10), ("unobserved", 80)]);
    assert_eq!((goodput.ranks[0].times.ettr(), goodput.total().ettr()), (None, None));
    assert!(goodput.ranks[1].times.ettr().is_some());
    // One that is killed before it has a ledger was starting.
    let killed = Span { failed: true, ..span(0, 0, (10, 30), None) };
    let goodput = tally(0, 100, &[killed, span(0, 0, (40, 100), Some(training(40, 0, 4)))]);
    let restarted = [("start", 10 + 20), ("compute", 24), ("communication", 16), ("restart", 10 + 20)];
    assert_eq!(times(&goodput, 0), restarted);
    // One that tells of another time is not believed.
    let goodput = tally(0, 100, &[span(0, 0, (10, 90), Some(training(80, 0, 2)))]);
    assert_eq!(goodput.total().of(Class::Unobserved), 80);
}

proptest! {
    /// Whatever processes ran and whatever they say, the classes of each rank add up to the wall time.
    #[test]
    fn classes_add_up_to_the_wall_time(
        lines in proptest::collection::vec(proptest::collection::vec(
            (0u64..50, 0u64..400, 0u64..30, 0u64..40, any::<(bool, bool, bool)>()), 1..6), 1..4),
    ) {
        let mut spans = Vec::new();
        let mut latest = 100;
        for (local_rank, line) in lines.iter().enumerate() {
            let (mut now, mut round) = (100, 0);
            for (gap, length, first, steps, (failed, account, next_round)) in line {
                let started = now + gap;
                now = started + length;
                round += u64::from(*next_round);
                let account = account.then(|| {
                    let mut account = training(started, *first, *steps);
                    account.begin_attempt(account.since + 1);
                    account
                });
                spans.push(Span { failed: *failed, ..span(local_rank, round, (started, now), account) });
            }
            latest = latest.max(now);
        }
        let goodput = tally(100, latest + 7, &spans);
        prop_assert_eq!(goodput.ranks.len(), lines.len());
        for rank in &goodput.ranks {
            prop_assert_eq!(rank.times.sum(), goodput.wall);
            prop_assert!(rank.times.ettr().is_none_or(|ettr| (0.0..=1.0).contains(&ettr)));
        }
    }
}
