//! Several masters on one PostgreSQL: which of them leads.
//!
//! The server is the arbiter. Who has its advisory lock may lead; the lock ends with its session, so a leader that dies
//! is followed at once. One that is stopped or cut off keeps its session: it has a lease, which it renews every second by
//! the server's clock, and whoever finds it expired ends that session and takes the lock. Taking the lease raises the
//! epoch, which every deciding transaction compares: who was replaced writes nothing any more, whatever it believes.
//!
//! [`Standby::next`] is the whole decision of a master that stands by; it knows no clock but the server's.

use std::time::Duration;

use instep_api::wire::Timestamp;

/// How long a leader that does not renew its lease is waited for.
pub const LEASE: Duration = Duration::from_secs(10);
/// The same in the unit of stored times.
const LEASE_MICROSECONDS: i64 = 10_000_000;

/// Where a leader is reached by the other masters, and how they know each other.
#[derive(Clone, PartialEq, Eq)]
pub struct AdvertisedEndpoint {
    /// Of the API and the pages: `https://name:8080`.
    pub address: String,
    /// Of the pages of tasks.
    pub tasks_address: String,
    /// The certificate that it shows, if connections are encrypted.
    pub certificate: Option<Vec<u8>>,
    /// Made for this term.
    pub peer_secret: String,
    /// The settings that decide who may do what, in words: all masters have the same.
    pub settings: String,
}

impl std::fmt::Debug for AdvertisedEndpoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("AdvertisedEndpoint").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The master that leads.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Leader {
    /// The number of its term.
    pub epoch: i64,
    pub since: Timestamp,
    pub endpoint: AdvertisedEndpoint,
    /// Since its lease was renewed.
    pub lease_age: Duration,
}

/// A session of the server: its process, and when that began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Session {
    pub process: i32,
    pub start: i64,
}

/// Who has the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub session: Session,
    /// One of several masters, which renews its lease as long as it can.
    pub renews: bool,
}

/// What a leader has written down of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaderRow {
    pub epoch: i64,
    pub endpoint: AdvertisedEndpoint,
    pub renewed_at: i64,
    pub taken_at: i64,
}

/// What one look at the server shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Observation {
    /// By the server's clock.
    pub now: i64,
    /// The schema's last step; 0 if there is none.
    pub schema: i64,
    pub holder: Option<Holder>,
    pub leader: Option<LeaderRow>,
}

impl Observation {
    /// The leader, if there is one that has renewed its lease.
    pub(crate) fn leader(&self) -> Option<Leader> {
        let row = self.leader.as_ref().filter(|_| self.holder.is_some_and(|holder| holder.renews))?;
        let age = Duration::from_micros(u64::try_from(self.now - row.renewed_at).unwrap_or(0));
        (age < LEASE).then(|| Leader {
            epoch: row.epoch,
            since: Timestamp(row.taken_at),
            endpoint: row.endpoint.clone(),
            lease_age: age,
        })
    }
}

/// What a master that stands by does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Try to take the lock.
    AcquireLock,
    /// Let the one that leads lead.
    Follow,
    /// End the leader's session, which keeps the lock.
    TerminateSession(Session),
    /// Stand by although nobody leads, because this one may not.
    Ineligible(String),
}

/// What a master that stands by remembers from one look to the next.
#[derive(Debug, Default)]
pub(crate) struct Standby {
    /// Who has had the lock since when, as far as this one has seen it.
    held: Option<(Session, i64)>,
    /// The schema that was seen last.
    schema: Option<i64>,
    /// Whether it may change the schema. Not after it has followed a leader of an earlier version: that one's standbys
    /// could not lead any more.
    may_upgrade: Option<bool>,
}

impl Standby {
    /// Decides what to do about an observation. `known` is the schema that this version works with; `ineligible` says why this
    /// machine must not lead, if it must not.
    pub(crate) fn next(&mut self, observed: &Observation, known: i64, ineligible: Option<&str>) -> Step {
        if self.schema.is_some_and(|before| observed.schema > before) {
            // Somebody of this version, or a later one, has begun to.
            self.may_upgrade = Some(true);
        }
        self.schema = Some(observed.schema);
        if observed.schema > known {
            return Step::Ineligible(format!(
                "the database has schema {}, and this version knows up to {known}: it cannot lead. Replace it with the \
                 version of the others",
                observed.schema
            ));
        }
        let Some(holder) = observed.holder else {
            self.held = None;
            return match ineligible {
                Some(why) => Step::Ineligible(why.to_owned()),
                None if observed.schema == 0 || observed.schema == known || self.may_upgrade != Some(false) => {
                    Step::AcquireLock
                }
                None => Step::Ineligible(format!(
                    "the database has schema {}, of an earlier version that has led so far, and this version needs \
                     {known}: it does not take over by itself, since the others could not lead any more. Replace them \
                     all, and start this one again: it brings the schema up to date",
                    observed.schema
                )),
            };
        };
        self.may_upgrade.get_or_insert(false);
        let since = match self.held {
            Some((session, since)) if session == holder.session => since,
            _ => observed.now,
        };
        self.held = Some((holder.session, since));
        // The lease may be an earlier leader's, while a new one brings the schema up to date.
        let last = observed.leader.as_ref().filter(|_| holder.renews).map(|leader| leader.renewed_at.max(since));
        match last {
            Some(last) if observed.now - last >= LEASE_MICROSECONDS && ineligible.is_none() => {
                Step::TerminateSession(holder.session)
            }
            Some(_) | None => Step::Follow,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;
    const OLD: Session = Session { process: 7, start: 1 };
    const KNOWN: i64 = 21;

    fn observed(now: i64, holder: Option<Session>, renewed_at: Option<i64>) -> Observation {
        let endpoint = AdvertisedEndpoint {
            address: "http://a:1".into(),
            tasks_address: "http://a:2".into(),
            certificate: None,
            peer_secret: "s".into(),
            settings: String::new(),
        };
        Observation {
            now: now * SECOND,
            schema: KNOWN,
            holder: holder.map(|session| Holder { session, renews: true }),
            leader: renewed_at.map(|at| LeaderRow { epoch: 3, endpoint, renewed_at: at * SECOND, taken_at: 0 }),
        }
    }

    fn next(standby: &mut Standby, observed: &Observation) -> Step {
        standby.next(observed, KNOWN, None)
    }

    #[test]
    fn a_free_lock_is_taken_and_a_held_one_followed() {
        let mut standby = Standby::default();
        assert_eq!(next(&mut standby, &observed(0, None, None)), Step::AcquireLock);
        assert_eq!(next(&mut standby, &observed(1, Some(OLD), Some(1))), Step::Follow);
        assert_eq!(next(&mut standby, &observed(1000, Some(OLD), Some(995))), Step::Follow);
        assert_eq!(
            next(&mut standby, &observed(1001, None, Some(1000))),
            Step::AcquireLock,
            "a leader that died leaves no lock"
        );
    }

    #[test]
    fn a_session_is_ended_when_its_lease_has_expired_while_it_was_watched() {
        let mut standby = Standby::default();
        assert_eq!(
            next(&mut standby, &observed(100, Some(OLD), Some(1))),
            Step::Follow,
            "it may just have taken the lock"
        );
        assert_eq!(next(&mut standby, &observed(109, Some(OLD), Some(1))), Step::Follow);
        assert_eq!(next(&mut standby, &observed(110, Some(OLD), Some(1))), Step::TerminateSession(OLD));
        assert_eq!(next(&mut standby, &observed(111, Some(OLD), Some(110))), Step::Follow, "it has renewed it");
        let other = Session { process: 8, start: 2 };
        assert_eq!(
            next(&mut standby, &observed(130, Some(other), Some(110))),
            Step::Follow,
            "another one has the lock"
        );
        assert_eq!(next(&mut standby, &observed(140, Some(other), Some(110))), Step::TerminateSession(other));
    }

    #[test]
    fn who_renews_no_lease_is_never_ended() {
        let mut standby = Standby::default();
        for now in [0, 100, 10_000] {
            assert_eq!(next(&mut standby, &observed(now, Some(OLD), None)), Step::Follow, "it makes the schema");
            let mut copying = observed(now, Some(OLD), Some(0));
            copying.holder = Some(Holder { session: OLD, renews: false });
            assert_eq!(next(&mut standby, &copying), Step::Follow);
            assert_eq!(copying.leader(), None);
        }
    }

    #[test]
    fn a_leader_counts_as_one_while_its_lease_lasts() {
        assert_eq!(observed(9, Some(OLD), Some(0)).leader().unwrap().lease_age, Duration::from_secs(9));
        for none in [observed(10, Some(OLD), Some(0)), observed(1, None, Some(0)), observed(1, Some(OLD), None)] {
            assert_eq!(none.leader(), None);
        }
        // Clocks of a server may be set back.
        assert_eq!(observed(0, Some(OLD), Some(5)).leader().unwrap().lease_age, Duration::ZERO);
    }

    #[test]
    fn a_schema_is_changed_at_the_start_and_not_by_a_takeover() {
        let of = |schema: i64, holder| Observation { schema, ..observed(0, holder, Some(0)) };
        assert_eq!(next(&mut Standby::default(), &of(20, None)), Step::AcquireLock, "nobody leads, and nobody did");
        let mut standby = Standby::default();
        assert_eq!(next(&mut standby, &of(20, Some(OLD))), Step::Follow);
        assert!(
            matches!(next(&mut standby, &of(20, None)), Step::Ineligible(why) if why.contains("start this one again"))
        );
        assert_eq!(next(&mut standby, &of(KNOWN, None)), Step::AcquireLock);
        let mut standby = Standby::default();
        assert_eq!(next(&mut standby, &of(0, Some(OLD))), Step::Follow);
        assert_eq!(next(&mut standby, &of(12, None)), Step::AcquireLock, "whoever began to make it has died");
        assert!(matches!(next(&mut standby, &of(22, None)), Step::Ineligible(why) if why.contains("cannot lead")));
        assert!(matches!(next(&mut standby, &of(22, Some(OLD))), Step::Ineligible(_)), "nor end anybody's session");
    }

    #[test]
    fn who_is_unfit_takes_nothing_and_ends_nobody() {
        let mut standby = Standby::default();
        let ineligible = Some("no folder");
        assert_eq!(standby.next(&observed(0, None, None), KNOWN, ineligible), Step::Ineligible("no folder".into()));
        assert_eq!(standby.next(&observed(0, Some(OLD), Some(0)), KNOWN, ineligible), Step::Follow);
        assert_eq!(standby.next(&observed(20, Some(OLD), Some(0)), KNOWN, ineligible), Step::Follow);
    }
}
