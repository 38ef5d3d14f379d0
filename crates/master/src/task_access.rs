//! Who may open the pages of a task in a browser: tickets, which lead there once, and keys, which last.
//!
//! The pages of tasks have an origin of their own, where the session's cookie means nothing. A ticket is what the
//! master gives a browser on its way there: random, for one use, for half a minute. It is exchanged for a key, which the
//! browser keeps for the pages of this one task. Both stand for a session, and are worth nothing without it: whoever
//! looks one up asks whether the session still lasts.
//!
//! All of it is in memory: after a restart a browser gets a new ticket without noticing. Tickets and keys are kept as
//! hashes, like tokens.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::passwords::token_hash;

/// How long a ticket may be on its way.
pub(crate) const TICKET_LIFETIME: Duration = Duration::from_secs(30);
/// Tickets and keys that are remembered at most; beyond it the oldest half is forgotten, and browsers fetch new ones.
const REMEMBERED: usize = 10_000;

/// What a ticket or a key lets its bearer do: see one task, for as long as a session lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The task, or a port of it as `TASK:PORT`.
    pub task: String,
    /// The hash of the session's token.
    pub session: String,
}

/// What the page of a task is to whoever opens it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Page {
    /// Runs what is typed into it.
    Notebook,
    /// Of a task of theirs.
    Own,
    /// Of somebody else's, whose program may be after the others that are open.
    Foreign,
}

/// The tickets and keys that were given out.
#[derive(Debug, Default)]
pub(crate) struct TaskAccess {
    tickets: HashMap<String, (Grant, Instant)>,
    keys: HashMap<String, (Grant, Instant)>,
    /// The pages that sessions have opened whose origin must not hold others; with the task of each.
    opened: HashMap<String, Vec<(Page, String)>>,
}

impl TaskAccess {
    /// Gives out a ticket.
    pub(crate) fn issue(&mut self, ticket: &str, grant: Grant, now: Instant) {
        self.tickets.retain(|_, (_, issued)| now.saturating_duration_since(*issued) < TICKET_LIFETIME);
        make_room(&mut self.tickets);
        self.tickets.insert(token_hash(ticket), (grant, now));
    }

    /// Takes a ticket back, and says what it was for. One that is shown for another task is used up by that.
    pub(crate) fn redeem(&mut self, ticket: &str, task: &str, now: Instant) -> Option<Grant> {
        let (grant, issued) = self.tickets.remove(&token_hash(ticket))?;
        (grant.task == task && now.saturating_duration_since(issued) < TICKET_LIFETIME).then_some(grant)
    }

    /// Gives out a key.
    pub(crate) fn admit(&mut self, key: &str, grant: Grant, page: Page, now: Instant) {
        make_room(&mut self.keys);
        if page != Page::Own {
            let opened = self.opened.entry(grant.session.clone()).or_default();
            if !opened.iter().any(|(_, task)| *task == grant.task) {
                opened.push((page, grant.task.clone()));
            }
        }
        self.keys.insert(token_hash(key), (grant, now));
    }

    /// What a key is for, if it is for this task.
    pub(crate) fn grant(&self, key: &str, task: &str) -> Option<&Grant> {
        self.keys.get(&token_hash(key)).map(|(grant, _)| grant).filter(|grant| grant.task == task)
    }

    /// Whether a page must not be opened beside those that a session has opened. What a foreign page has started may go on
    /// after its task; a notebook that has ended runs nothing any more.
    pub(crate) fn mixes(&self, session: &str, page: Page) -> bool {
        let other = match page {
            Page::Notebook => Page::Foreign,
            Page::Foreign => Page::Notebook,
            Page::Own => return false,
        };
        self.opened.get(session).is_some_and(|opened| opened.iter().any(|(page, _)| *page == other))
    }

    /// A session may not see a task any more. What it has opened may still be in its browser.
    pub(crate) fn revoke(&mut self, revoked: &Grant) {
        self.keep(|grant| grant != revoked);
    }

    /// A session has ended.
    pub(crate) fn end_session(&mut self, session: &str) {
        self.opened.remove(session);
        self.keep(|grant| grant.session != session);
    }

    /// A task has ended, with all its ports.
    pub(crate) fn end_task(&mut self, task: &str) {
        let is_of = |name: &str| name.split(':').next() == Some(task);
        self.opened.retain(|_, opened| {
            opened.retain(|(page, of)| *page == Page::Foreign || !is_of(of));
            !opened.is_empty()
        });
        self.keep(|grant| !is_of(&grant.task));
    }

    fn keep(&mut self, wanted: impl Fn(&Grant) -> bool) {
        self.tickets.retain(|_, (grant, _)| wanted(grant));
        self.keys.retain(|_, (grant, _)| wanted(grant));
    }
}

/// Forgets the older half of a table that is full.
fn make_room(table: &mut HashMap<String, (Grant, Instant)>) {
    if table.len() < REMEMBERED {
        return;
    }
    let mut times: Vec<Instant> = table.values().map(|(_, time)| *time).collect();
    times.sort_unstable();
    let middle = times[times.len() / 2];
    table.retain(|_, (_, time)| *time > middle);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(task: &str, session: &str) -> Grant {
        Grant { task: task.to_owned(), session: session.to_owned() }
    }

    #[test]
    fn a_ticket_is_good_once_and_for_its_own_task() {
        let (mut access, now) = (TaskAccess::default(), Instant::now());
        access.issue("ticket", grant("a", "s"), now);
        assert_eq!(access.redeem("other", "a", now), None);
        assert_eq!(access.redeem("ticket", "a", now), Some(grant("a", "s")));
        assert_eq!(access.redeem("ticket", "a", now), None);
        access.issue("ticket", grant("a", "s"), now);
        assert_eq!(access.redeem("ticket", "b", now), None);
        assert_eq!(access.redeem("ticket", "a", now), None);
    }

    #[test]
    fn a_ticket_ends_after_half_a_minute() {
        let (mut access, now) = (TaskAccess::default(), Instant::now());
        for (waited, good) in [(Duration::ZERO, true), (TICKET_LIFETIME / 2, true), (TICKET_LIFETIME, false)] {
            access.issue("ticket", grant("a", "s"), now);
            assert_eq!(access.redeem("ticket", "a", now + waited).is_some(), good, "{waited:?}");
        }
        access.issue("old", grant("a", "s"), now);
        access.issue("new", grant("a", "s"), now + TICKET_LIFETIME);
        assert_eq!(access.tickets.len(), 1, "old tickets stay in memory");
    }

    #[test]
    fn a_key_is_for_one_task_and_is_no_ticket() {
        let (mut access, now) = (TaskAccess::default(), Instant::now());
        access.admit("key", grant("a", "s"), Page::Own, now);
        assert_eq!(access.grant("key", "a"), Some(&grant("a", "s")));
        assert_eq!([access.grant("key", "b"), access.grant("other", "a")], [None, None]);
        assert_eq!(access.redeem("key", "a", now), None);
        access.issue("ticket", grant("a", "s"), now);
        assert_eq!(access.grant("ticket", "a"), None);
    }

    #[test]
    fn a_session_has_notebooks_or_pages_of_others() {
        let (mut access, now) = (TaskAccess::default(), Instant::now());
        access.admit("1", grant("own", "s"), Page::Own, now);
        assert!(!access.mixes("s", Page::Notebook) && !access.mixes("s", Page::Foreign));
        access.admit("2", grant("notebook", "s"), Page::Notebook, now);
        assert!(access.mixes("s", Page::Foreign) && !access.mixes("t", Page::Foreign));
        assert!(!access.mixes("s", Page::Notebook) && !access.mixes("s", Page::Own));
        access.end_task("notebook");
        assert!(!access.mixes("s", Page::Foreign));
        access.admit("3", grant("foreign", "s"), Page::Foreign, now);
        access.end_task("foreign");
        assert!(access.mixes("s", Page::Notebook), "its page may still be open");
        access.admit("4", grant("denied", "s"), Page::Foreign, now);
        access.revoke(&grant("denied", "s"));
        assert_eq!(access.grant("4", "denied"), None);
        assert!(access.grant("1", "own").is_some() && access.mixes("s", Page::Notebook));
        access.end_session("s");
        assert!(!access.mixes("s", Page::Notebook));
    }

    #[test]
    fn keys_and_tickets_end_with_the_session_and_with_the_task() {
        let now = Instant::now();
        let filled = || {
            let mut access = TaskAccess::default();
            for (task, session) in [("a:80", "s"), ("a", "t"), ("b", "s")] {
                access.admit(&format!("{task}{session}"), grant(task, session), Page::Own, now);
                access.issue(&format!("{task}{session}"), grant(task, session), now);
            }
            access
        };
        let left = |mut access: TaskAccess| {
            let known = [("a:80s", "a:80"), ("at", "a"), ("bs", "b")];
            known.map(|(name, task)| {
                let key = access.grant(name, task).is_some();
                assert_eq!(access.redeem(name, task, now).is_some(), key, "{name}");
                key
            })
        };
        assert_eq!(left(filled()), [true, true, true]);
        let mut access = filled();
        access.end_session("s");
        assert_eq!(left(access), [false, true, false]);
        let mut access = filled();
        access.end_task("a");
        assert_eq!(left(access), [false, false, true]);
    }

    #[test]
    fn memory_is_bounded_and_the_newest_stay() {
        let (mut access, start) = (TaskAccess::default(), Instant::now());
        for number in 0..=u32::try_from(REMEMBERED).unwrap() {
            let now = start + Duration::from_micros(number.into());
            access.admit(&number.to_string(), grant("a", "s"), Page::Own, now);
            access.issue(&number.to_string(), grant("a", "s"), now);
        }
        assert!(access.keys.len() <= REMEMBERED && access.tickets.len() <= REMEMBERED);
        assert!(access.grant(&REMEMBERED.to_string(), "a").is_some() && access.grant("0", "a").is_none());
    }
}
