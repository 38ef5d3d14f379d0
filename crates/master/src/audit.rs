//! The audit log: who did what to what, when, from where, and how it ended. Never what was sent.
//!
//! The router records requests, in one place; the table of actions beside the routes says which and under which names. A
//! record is on disk before its request is answered. [`Repeats`] keeps refusals from filling the disk: those that repeat
//! within a minute become one record for the first and one for the rest, and only so many kinds are told apart. What users
//! do is recorded one by one, up to [`RECORDS_OF_A_USER`] in a minute; the rest of it is counted for each action.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use instep_api::audit::{AuditRecord, TokenKind};
use instep_api::identifiers::UserId;
use instep_api::wire::Timestamp;
use instep_database::{Database, Session};

use crate::application::Application;
use crate::clock::now;
use crate::sync::lock;

/// How often the rest of a minute's refusals is written down, and old records are looked for.
const PERIOD: Duration = Duration::from_secs(60);
const MINUTE: i64 = 60_000_000;
const DAY: i64 = 24 * 60 * MINUTE;
/// Kinds of refusals in one minute that are told apart: of those that are nobody's, and of all users' together.
const KINDS_OF_STRANGERS: usize = 100;
const KINDS_OF_USERS: usize = 1000;
/// Records of nobody's requests that are kept at most.
const RECORDS_OF_STRANGERS: usize = 100_000;
/// Records of what one user did in one minute, of which each says what it was about.
const RECORDS_OF_A_USER: usize = 300;
/// Letters of a subject that are kept, and subjects of one request that are named.
const LONGEST_SUBJECT: usize = 200;
const SUBJECTS: usize = 8;

/// What becomes known of a request while it is dealt with.
#[derive(Debug, Default)]
pub(crate) struct Noted(Mutex<Notes>);

#[derive(Debug, Clone, Default)]
struct Notes {
    user: Option<(UserId, String)>,
    token: Option<TokenKind>,
    task: Option<String>,
    subjects: Vec<String>,
    /// Subjects beside those that are named.
    more: usize,
    /// Those of several for which it was not done, and how many beside those that are named.
    undone: Vec<String>,
    undone_more: usize,
}

impl Noted {
    /// What its token turned out to be.
    pub(crate) fn token(&self, kind: TokenKind) {
        lock(&self.0).token = Some(kind);
    }

    /// Whose token it carries.
    pub(crate) fn session(&self, session: &Session) {
        let mut notes = lock(&self.0);
        notes.user = Some((session.user.id, session.user.username.clone()));
        notes.task = session.task.as_ref().map(|task| task.task.clone());
        notes.token = Some(if session.task.is_some() { TokenKind::Task } else { TokenKind::Login });
    }

    /// Who it turned out to be, without a token.
    pub(crate) fn user(&self, user: &instep_api::users::User) {
        lock(&self.0).user = Some((user.id, user.username.clone()));
    }

    /// What it is about.
    pub(crate) fn subject(&self, subject: impl ToString) {
        let mut notes = lock(&self.0);
        if notes.subjects.len() == SUBJECTS {
            notes.more += 1;
            return;
        }
        let text: String = subject.to_string().chars().take(LONGEST_SUBJECT).collect();
        if !notes.subjects.contains(&text) {
            notes.subjects.push(text);
        }
    }

    /// Takes one of several subjects back: the request is done, but not for this one.
    pub(crate) fn not_done(&self, subject: impl ToString) {
        let text: String = subject.to_string().chars().take(LONGEST_SUBJECT).collect();
        let mut notes = lock(&self.0);
        match notes.subjects.iter().position(|known| *known == text) {
            Some(position) => drop(notes.subjects.remove(position)),
            None => notes.more = notes.more.saturating_sub(1),
        }
        if notes.undone.len() == SUBJECTS {
            notes.undone_more += 1;
        } else {
            notes.undone.push(text);
        }
    }

    /// Whether it is known what it is about.
    pub(crate) fn has_subject(&self) -> bool {
        let notes = lock(&self.0);
        !notes.subjects.is_empty() || !notes.undone.is_empty()
    }

    /// The record of it.
    pub(crate) fn record(&self, action: &str, address: String, request_id: String, status: u16) -> AuditRecord {
        let notes = lock(&self.0).clone();
        let mut subject = notes.subjects.join(", ");
        if notes.more > 0 {
            subject.push_str(&format!(" and {} more", notes.more));
        }
        if !notes.undone.is_empty() {
            let more = if notes.undone_more == 0 { String::new() } else { format!(" and {} more", notes.undone_more) };
            let done = if subject.is_empty() { "nothing" } else { &subject };
            subject = format!("{done}; not done: {}{more}", notes.undone.join(", "));
        }
        let (user_id, username) = notes.user.unzip();
        AuditRecord {
            id: 0,
            time: now(),
            user_id,
            username,
            token: notes.token.unwrap_or(TokenKind::None),
            task_id: notes.task,
            address,
            request_id,
            action: action.to_owned(),
            subject,
            status: status.into(),
            count: 1,
        }
    }
}

/// What makes two refusals the same.
type Kind = (Option<String>, Option<String>, String, String, String, i64);

/// The refusals of this minute.
#[derive(Debug, Default)]
struct Repeats {
    minute: i64,
    seen: HashMap<Kind, AuditRecord>,
    of_strangers: usize,
    /// Records of each user.
    of_users: HashMap<UserId, usize>,
}

impl Repeats {
    /// What is to be written for a request: itself, unless it repeats; and what an earlier minute has left.
    fn on(&mut self, record: AuditRecord) -> Vec<AuditRecord> {
        let mut written = self.due(record.time);
        let (record, is_one_of_many) = match record.user_id {
            Some(user) if !matches!(record.status, 401 | 403 | 429) => {
                let count = self.of_users.entry(user).or_default();
                *count += 1;
                if *count <= RECORDS_OF_A_USER {
                    written.push(record);
                    return written;
                }
                (
                    AuditRecord {
                        subject: "several".to_owned(),
                        address: "several".to_owned(),
                        task_id: None,
                        ..record
                    },
                    true,
                )
            }
            _ => (record, false),
        };
        let record = if !is_one_of_many && self.is_full_for(&record) && !self.seen.contains_key(&kind(&record)) {
            // Whoever varies what can be varied is not told apart any more.
            AuditRecord {
                address: "several".to_owned(),
                action: "several".to_owned(),
                subject: String::new(),
                username: None,
                task_id: None,
                ..record
            }
        } else {
            record
        };
        match self.seen.get_mut(&kind(&record)) {
            Some(known) => {
                known.count += 1;
                known.time = record.time;
                known.request_id = record.request_id;
            }
            None => {
                self.of_strangers += usize::from(record.user_id.is_none());
                self.seen.insert(kind(&record), AuditRecord { count: 0, ..record.clone() });
                written.push(record);
            }
        }
        written
    }

    fn is_full_for(&self, record: &AuditRecord) -> bool {
        match record.user_id {
            None => self.of_strangers >= KINDS_OF_STRANGERS,
            Some(_) => self.seen.len() - self.of_strangers.min(self.seen.len()) >= KINDS_OF_USERS,
        }
    }

    /// What an earlier minute has left.
    fn due(&mut self, time: Timestamp) -> Vec<AuditRecord> {
        let minute = time.0.div_euclid(MINUTE);
        if minute == self.minute {
            return Vec::new();
        }
        (self.minute, self.of_strangers) = (minute, 0);
        self.of_users.clear();
        let mut rest: Vec<AuditRecord> = self.seen.drain().map(|(_, record)| record).collect();
        rest.retain(|record| record.count > 0);
        rest.sort_by_key(|record| record.time);
        rest
    }
}

fn kind(record: &AuditRecord) -> Kind {
    // What strangers want to read is not told apart: there are too many addresses.
    let subject = if record.action == "read" { String::new() } else { record.subject.clone() };
    let (user, task) = (record.username.clone(), record.task_id.clone());
    (user, task, record.address.clone(), record.action.clone(), subject, record.status)
}

/// Writes records.
pub(crate) struct Audit {
    database: Database,
    repeats: Mutex<Repeats>,
    retention_days: u32,
}

impl Audit {
    pub(crate) fn new(database: Database, retention_days: u32) -> Audit {
        Audit { database, repeats: Mutex::default(), retention_days }
    }

    /// Writes down what happened. What is done is done: if that fails, the log says so.
    pub(crate) async fn record(&self, record: AuditRecord) {
        let records = lock(&self.repeats).on(record);
        self.write(records).await;
    }

    async fn write(&self, records: Vec<AuditRecord>) {
        if records.is_empty() {
            return;
        }
        let count = records.len();
        if let Err(error) = self.database.add_audit(records).await {
            tracing::error!(%error, count, "cannot write the audit log");
        }
    }

    async fn look(&self, time: Timestamp) {
        let rest = lock(&self.repeats).due(time);
        self.write(rest).await;
        let before = Timestamp(time.0.saturating_sub(i64::from(self.retention_days) * DAY));
        if let Err(error) = self.database.prune_audit(before, RECORDS_OF_STRANGERS).await {
            tracing::error!(%error, "cannot delete old records of the audit log");
        }
    }

    /// Writes down what has been held back, because the master ends.
    pub(crate) async fn finish(&self) {
        let rest = lock(&self.repeats).due(Timestamp(i64::MAX));
        self.write(rest).await;
    }
}

/// Looks again and again, until it is dropped.
pub(crate) async fn watch(application: Arc<Application>) {
    loop {
        application.audit.look(now()).await;
        tokio::time::sleep(PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(address: &str, second: i64) -> AuditRecord {
        let record = Noted::default().record("auth.login", address.to_owned(), String::new(), 401);
        AuditRecord { time: Timestamp(second * 1_000_000), ..record }
    }

    fn done(second: i64) -> AuditRecord {
        AuditRecord { user_id: Some(UserId(1)), username: Some("a".to_owned()), status: 200, ..refused("x", second) }
    }

    #[test]
    fn repeated_refusals_are_two_records() {
        let mut repeats = Repeats::default();
        let counts = |records: Vec<AuditRecord>| records.into_iter().map(|record| record.count).collect::<Vec<_>>();
        assert_eq!(counts(repeats.on(refused("a", 60))), [1]);
        for second in 61..100 {
            assert_eq!(counts(repeats.on(refused("a", second))), Vec::<i64>::new());
        }
        assert_eq!(counts(repeats.on(refused("b", 101))), [1]);
        assert_eq!(counts(repeats.on(done(102))), [1]);
        assert_eq!(counts(repeats.on(done(103))), [1], "what was done is always written");
        let rest = repeats.on(refused("a", 120));
        assert_eq!(rest.iter().map(|record| record.time.0 / 1_000_000).collect::<Vec<_>>(), [99, 120]);
        assert_eq!(counts(rest), [39, 1]);
        assert_eq!(counts(repeats.due(Timestamp(i64::MAX))), Vec::<i64>::new());
    }

    #[test]
    fn what_a_user_does_is_written_one_by_one_up_to_a_bound_and_counted_beyond() {
        let mut repeats = Repeats::default();
        let mut written = Vec::new();
        for number in 0..10_000 {
            let subject = format!("experiment {number}");
            let action = if number % 2 == 0 { "experiment.label" } else { "experiment.unlabel" };
            written.extend(repeats.on(AuditRecord { subject, action: action.to_owned(), ..done(60) }));
        }
        // Whoever does little beside them is recorded as ever.
        let other = AuditRecord { user_id: Some(UserId(2)), username: Some("b".to_owned()), ..done(61) };
        assert_eq!(repeats.on(other.clone()), [other]);
        assert_eq!(written.len(), RECORDS_OF_A_USER + 2);
        assert_eq!(written[RECORDS_OF_A_USER].subject, "several");
        written.extend(repeats.on(done(120)));
        assert_eq!(written.iter().map(|record| record.count).sum::<i64>(), 10_001);
        assert_eq!(written.last().unwrap().subject, "", "the next minute begins anew");
    }

    #[test]
    fn what_was_not_done_is_not_named_as_done() {
        let subjects = |done: usize, undone: usize| {
            let noted = Noted::default();
            (0..done + undone).for_each(|number| noted.subject(number));
            (done..done + undone).for_each(|number| noted.not_done(number));
            noted.record("a", String::new(), String::new(), 200).subject
        };
        assert_eq!(subjects(2, 0), "0, 1");
        assert_eq!(subjects(2, 2), "0, 1; not done: 2, 3");
        assert_eq!(subjects(0, 1), "nothing; not done: 0");
        assert_eq!(
            subjects(9, 10),
            "0, 1, 2, 3, 4, 5, 6, 7 and 1 more; not done: 9, 10, 11, 12, 13, 14, 15, 16 and 2 more"
        );
    }

    #[test]
    fn subjects_are_bounded() {
        let noted = Noted::default();
        for number in 0..20 {
            noted.subject(format!("{number}{}", "x".repeat(1000)));
        }
        let record = noted.record("a", String::new(), String::new(), 200);
        assert!(record.subject.len() < (SUBJECTS + 1) * (LONGEST_SUBJECT + 10), "{}", record.subject.len());
        assert!(record.subject.ends_with("and 12 more"));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_strangers_fill_no_disk(
            requests in prop::collection::vec((0..3000_u32, 0..3_i64, any::<bool>()), 0..2000)
        ) {
            let mut repeats = Repeats::default();
            let mut requests = requests;
            requests.sort_by_key(|request| request.1);
            let mut written = Vec::new();
            for (number, minute, known) in &requests {
                let record = refused(&number.to_string(), minute * 60);
                let user = known.then_some((UserId(1), "a".to_owned()));
                let (user_id, username) = user.unzip();
                written.extend(repeats.on(AuditRecord { user_id, username, ..record }));
            }
            written.extend(repeats.due(Timestamp(i64::MAX)));
            prop_assert_eq!(written.iter().map(|record| record.count).sum::<i64>(), requests.len() as i64);
            let of_strangers = written.iter().filter(|record| record.user_id.is_none()).count();
            prop_assert!(of_strangers <= 3 * 2 * (KINDS_OF_STRANGERS + 1), "{}", of_strangers);
        }
    }
}
