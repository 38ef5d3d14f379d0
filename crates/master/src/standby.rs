//! One of several masters on one PostgreSQL: it stands by, and leads when nobody else does.
//!
//! A thread looks at the server every few hundred milliseconds ([`instep_database::Candidate`] decides) and tells all
//! requests what this process is at the moment: its [`Role`]. When it has the lock it opens the database, once: a process
//! that has led and may not any more begins anew.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use instep_api::wire::Timestamp;
use instep_database::{AdvertisedEndpoint, Candidate, Database, Error, LEASE, Leader, Leadership, Opening};
use tokio::sync::{oneshot, watch};

use crate::agreement::{Agreed, Unfit};

/// Between two looks at who leads.
const PAUSE: Duration = Duration::from_millis(300);
/// The same while somebody takes over.
const SHORT_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause while the server is away.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A term of this process as the leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Term {
    pub epoch: i64,
    pub since: Timestamp,
    pub endpoint: AdvertisedEndpoint,
}

/// What this process is to those who ask it for something.
#[derive(Debug, Clone)]
pub(crate) enum Role {
    /// Nobody is known to lead, and why.
    Nobody(String),
    /// This process has the lock, and begins with what the database says.
    Starting,
    /// Another master leads, as was seen at that moment; and why this one would not take over, if it would not.
    Follows(Arc<Leader>, Instant, Option<Arc<Unfit>>),
    /// This one does.
    Leads(Arc<Term>),
}

impl Role {
    /// The number of the term, if somebody leads.
    pub(crate) fn epoch(&self) -> Option<i64> {
        match self {
            Role::Nobody(_) | Role::Starting => None,
            Role::Follows(leader, ..) => Some(leader.epoch),
            Role::Leads(term) => Some(term.epoch),
        }
    }
}

/// What the thread needs.
pub(crate) struct Candidacy {
    pub candidate: Candidate,
    pub endpoint: AdvertisedEndpoint,
    /// What all masters must have set alike.
    pub agreed: Agreed,
    /// Folders that must be there for a master to lead.
    pub folders: Vec<PathBuf>,
    pub opening: Box<dyn Fn() -> Opening + Send>,
    pub role: watch::Sender<Role>,
    pub stop: Arc<AtomicBool>,
}

impl Candidacy {
    /// Stands by until this process leads; gives the database then, and nothing if it is to stop. A server that will not
    /// have it at the start is an error: waiting would not help.
    pub(crate) fn run(mut self) -> Result<Option<Won>, Error> {
        let (mut failures, mut said, mut seen) = (0, String::new(), Instant::now());
        let (mut has_followed, mut has_looked, mut differs, mut warned) = (false, false, None, None);
        while !self.stop.load(Ordering::Relaxed) {
            let unfit = missing(&self.folders).or_else(|| differs.clone()).map(Arc::new);
            if unfit != warned {
                if let Some(unfit) = &unfit {
                    tracing::warn!("this master does not take over: {}", unfit.why);
                }
                warned.clone_from(&unfit);
            }
            let look = self.candidate.look(unfit.as_ref().map(|unfit| unfit.why.as_str()));
            has_looked |= look.is_ok();
            let pause = match look {
                Ok(Leadership::Won) => {
                    self.become_(Role::Starting);
                    tracing::info!("taking over: nobody else leads");
                    match self.candidate.lead(&(self.opening)(), &self.endpoint) {
                        Ok(database) => return Ok(Some(Won { database, has_followed })),
                        Err(error) => {
                            self.say(&mut said, &format!("cannot lead: {}", chain(&error)));
                            LONGEST_PAUSE
                        }
                    }
                }
                Ok(Leadership::Leads(leader)) => {
                    seen = Instant::now();
                    (failures, said, has_followed) = (0, String::new(), true);
                    differs = self.agreed.objection(&leader.endpoint.settings);
                    self.follow(*leader, missing(&self.folders).or_else(|| differs.clone()));
                    PAUSE
                }
                Ok(Leadership::Nobody(why)) => {
                    failures = 0;
                    // At first it may be over in a moment.
                    let pause = if said == why { PAUSE } else { SHORT_PAUSE };
                    self.say(&mut said, &why);
                    pause
                }
                Err(error) if !has_looked && error.is_of_setup() => return Err(error),
                Err(error) => {
                    let why = format!("cannot see who leads: {}", chain(&error));
                    // Whoever led may lead still: the server is away from here, or from everybody.
                    if matches!(*self.role.borrow(), Role::Follows(..)) && seen.elapsed() < LEASE {
                        tracing::debug!("{why}");
                    } else {
                        self.say(&mut said, &why);
                    }
                    failures += 1;
                    LONGEST_PAUSE.min(PAUSE * 2_u32.saturating_pow(failures.min(8)))
                }
            };
            self.wait(pause);
        }
        Ok(None)
    }

    /// Tells that nobody leads; people are told once for each reason.
    fn say(&self, said: &mut String, why: &str) {
        if said != why {
            tracing::warn!("standing by, without a leader: {why}");
            why.clone_into(said);
        }
        self.become_(Role::Nobody(why.to_owned()));
    }

    fn follow(&self, leader: Leader, unfit: Option<Unfit>) {
        if self.role.borrow().epoch() != Some(leader.epoch) {
            let (epoch, address) = (leader.epoch, leader.endpoint.address.as_str());
            tracing::info!(epoch, leader = address, "standing by");
        }
        self.become_(Role::Follows(Arc::new(leader), Instant::now(), unfit.map(Arc::new)));
    }

    /// Changes the role. Only those who wait for another leader are woken, not at every look.
    fn become_(&self, role: Role) {
        self.role.send_if_modified(|current| {
            let same = match (&*current, &role) {
                (Role::Follows(before, ..), Role::Follows(now, ..)) => before.epoch == now.epoch,
                (Role::Nobody(_), Role::Nobody(_)) => true,
                _ => false,
            };
            *current = role;
            !same
        });
    }

    fn wait(&self, pause: Duration) {
        let end = Instant::now() + pause;
        while Instant::now() < end && !self.stop.load(Ordering::Relaxed) {
            std::thread::sleep(SHORT_PAUSE.min(pause));
        }
    }
}

/// What a master that leads from now on has.
pub(crate) struct Won {
    pub database: Database,
    /// Whether another one led before, as far as it knows.
    pub has_followed: bool,
}

/// Starts the thread; the database comes when this process leads. It ends with that, or soon after it is told to stop.
pub(crate) fn start(candidacy: Candidacy) -> std::io::Result<oneshot::Receiver<Result<Won, Error>>> {
    let (won, winning) = oneshot::channel();
    let work = move || {
        if let Some(outcome) = candidacy.run().transpose() {
            // If nobody takes it the process is ending, and it is closed here.
            drop(won.send(outcome));
        }
    };
    std::thread::Builder::new().name("instep-standby".to_owned()).spawn(work)?;
    Ok(winning)
}

/// Why this machine must not lead: the folder that it does not see.
fn missing(folders: &[PathBuf]) -> Option<Unfit> {
    let folder = folders.iter().find(|folder| !folder.is_dir())?;
    Some(Unfit {
        said: "it does not see a folder of checkpoints".to_owned(),
        why: format!(
            "this machine does not see the folder {}, in which checkpoints are: mount it, or say where they are with \
             --checkpoints and --storage-root",
            folder.display()
        ),
    })
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_folders_of_checkpoints_is_unfit() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(missing(&[]), None);
        assert_eq!(missing(&[folder.path().to_owned()]), None);
        let lacking = folder.path().join("lacking");
        let unfit = missing(&[folder.path().to_owned(), lacking.clone()]).unwrap();
        assert!(unfit.why.contains(lacking.to_str().unwrap()), "{}", unfit.why);
        assert!(!unfit.said.contains(lacking.to_str().unwrap()), "strangers learn nothing of it");
    }
}
