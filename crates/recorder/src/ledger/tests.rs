//! Whatever happens, the activities add up to the age; and whatever a file holds, it is an account or none.

use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};

use super::*;
use crate::Identity;

/// What can happen to an account.
#[derive(Clone, Copy, Debug)]
enum Event {
    Switch(Activity),
    BeginWait,
    EndWait,
    BeginTraining(u64),
    BeginAttempt,
    Commit(u64),
    AbortAttempt,
}

fn apply(account: &mut Account, event: Event, now: u64) {
    match event {
        Event::Switch(activity) => drop(account.switch(activity, now)),
        Event::BeginWait => drop(account.begin_wait(now)),
        Event::EndWait => account.end_wait(now),
        Event::BeginTraining(steps) => account.begin_training(steps, now),
        Event::BeginAttempt => account.begin_attempt(now),
        Event::Commit(steps) => account.commit(steps),
        Event::AbortAttempt => account.abort_attempt(now),
    }
}

fn events() -> impl Strategy<Value = Vec<(Event, u32)>> {
    let event = (0..12usize, 0..MOST_STEPS).prop_map(|(kind, steps)| match kind {
        0..6 => Event::Switch(Activity::ALL[kind]),
        6 => Event::BeginWait,
        7 => Event::EndWait,
        8 => Event::BeginTraining(steps),
        9 => Event::BeginAttempt,
        10 => Event::Commit(steps),
        _ => Event::AbortAttempt,
    });
    proptest::collection::vec((event, any::<u32>()), 0..60)
}

fn after(born: u64, events: &[(Event, u32)]) -> (Account, u64) {
    let (mut account, mut now) = (Account::new(born), born);
    for (event, later) in events {
        now += u64::from(*later);
        apply(&mut account, *event, now);
    }
    (account, now)
}

fn sum(account: &Account) -> u64 {
    Activity::ALL.iter().map(|activity| account.spent(*activity)).sum()
}

proptest! {
    #[test]
    fn activities_add_up_to_the_age_whatever_happens(born in 0..u64::MAX / 2, events in events()) {
        let (account, now) = after(born, &events);
        prop_assert!(account.since <= now);
        prop_assert_eq!(sum(&account), account.since - born);
        let lost: u64 = account.attempt().into_iter().flatten().sum();
        prop_assert!(lost <= sum(&account));
        prop_assert_eq!(Account::from_words(&account.to_words()), Some(account));
    }

    #[test]
    fn any_words_are_an_account_that_adds_up_or_none(
        mut words in proptest::collection::vec(any::<u64>(), ACCOUNT_WORDS),
        small in any::<bool>(),
    ) {
        if small {
            words.iter_mut().for_each(|word| *word %= 4);
        }
        if let Some(account) = Account::from_words(&words) {
            prop_assert_eq!(sum(&account), account.since - account.born);
            let _ = account.attempt();
        }
    }

    #[test]
    fn any_header_is_an_account_or_none(
        bytes in proptest::collection::vec(any::<u8>(), 0..WORDS * 9),
        known in any::<bool>(),
    ) {
        let mut bytes = bytes;
        if known && bytes.len() >= (header::LEDGER_VERSION + 1) * 8 {
            bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
            bytes[header::LEDGER_VERSION * 8..][..8].copy_from_slice(&VERSION.to_ne_bytes());
        }
        let _ = Account::from_readings(&bytes, &bytes, &bytes);
    }
}

#[test]
fn an_attempt_that_is_given_up_is_lost_and_nothing_else() {
    let mut account = Account::new(100);
    assert!(account.begin_wait(150), "constructing DDP");
    account.end_wait(170);
    account.begin_training(7, 200);
    assert_eq!((account.spent(Activity::Start), account.spent(Activity::Compute)), (100, 0));
    account.switch(Activity::Data, 210);
    account.switch(Activity::Compute, 230);
    account.begin_attempt(235);
    assert!(account.begin_wait(250));
    account.switch(Activity::Restart, 260);
    assert!(!account.begin_wait(270), "recovery is no communication");
    account.abort_attempt(280);
    account.abort_attempt(290);
    account.switch(Activity::Compute, 300);
    let spent = Activity::ALL.map(|activity| account.spent(activity));
    assert_eq!(spent, [100, 15, 0, 20, 0, 40, 25, 0]);
    assert_eq!(account.steps, Some(Steps { first: 7, done: 7, redone: 1 }));
    account.begin_attempt(300);
    account.commit(8);
    account.abort_attempt(310);
    assert_eq!(account.steps, Some(Steps { first: 7, done: 8, redone: 1 }), "what counts is not given up");
}

#[test]
fn a_file_is_read_while_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(folder.path(), &Identity::default()).unwrap();
    assert_eq!(Account::read(recorder.path()).unwrap(), None, "no ledger was begun");
    let ledger = Ledger::new(&recorder);
    let path = recorder.path().to_owned();
    let reader = std::thread::spawn(move || {
        let mut seen = 0;
        while seen < 200 {
            if let Some(account) = Account::read(&path).unwrap() {
                assert_eq!(sum(&account), account.since - account.born);
                seen += 1;
            }
        }
    });
    while !reader.is_finished() {
        ledger.change(|account, now| account.switch(Activity::Communication, now));
        ledger.change(|account, now| account.switch(Activity::Compute, now));
        // What a reader finds between two changes that follow each other at once is no account.
        std::thread::yield_now();
    }
    reader.join().unwrap();
    ledger.change(|account, now| account.switch(Activity::Compute, now));
    let before = Account::read(recorder.path()).unwrap().unwrap();
    assert_eq!(before.activity, Activity::Compute);
    // A rank that is killed in the middle of a change has not raised the counter.
    let words = recorder.words();
    let changes = words[header::LEDGER_CHANGES].load(Ordering::Relaxed);
    let other = header::LEDGER_ACCOUNTS + ((changes + 1) % 2) as usize * ACCOUNT_WORDS;
    words[other].store(u64::MAX, Ordering::Relaxed);
    assert_eq!(Account::read(recorder.path()).unwrap(), Some(before));
}
