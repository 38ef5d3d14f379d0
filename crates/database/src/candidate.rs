//! A master that stands by: it looks who leads, and takes over. The decisions are [`Standby::next`]'s.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::leadership::{AdvertisedEndpoint, Leader, Standby, Step};
use crate::lock::Lock;
use crate::renewal::Renewal;
use crate::sql::{Address, Connection, Place};
use crate::{Database, Opening, migrations, transfer};

/// What a look at the server has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leadership {
    /// The lock is this process's: it is to [`Candidate::lead`], or to look again.
    Won,
    /// Another master leads.
    Leads(Box<Leader>),
    /// Nobody leads, and why this one does not either.
    Nobody(String),
}

/// One of several masters of a schema, as long as it does not lead. Its calls block.
pub struct Candidate {
    path: PathBuf,
    address: Arc<Address>,
    /// On this machine: two masters cannot share files.
    lock: Arc<Lock>,
    /// The session that tries to take the lock, and that keeps it then.
    session: Option<Connection>,
    standby: Standby,
    /// The last term that was seen.
    epoch: i64,
    /// Whether it was said that the server lets nobody end a leader's session.
    said: bool,
}

impl Candidate {
    /// Reserves the files on this machine; asks nothing of the server yet. `holder` names the process to others here.
    pub fn new(path: &Path, address: Address, holder: &str) -> Result<Candidate> {
        let lock = Arc::new(Lock::take(path, holder).map_err(|error| error.beside(address.place()))?);
        Ok(Candidate {
            path: path.to_owned(),
            address: Arc::new(address.of_several()),
            lock,
            session: None,
            standby: Standby::default(),
            epoch: 0,
            said: false,
        })
    }

    /// Says to whoever finds the files in use where this process can be reached.
    pub fn announce(&self, words: &str) -> Result<()> {
        self.lock.announce(words).map_err(|source| Error::File { path: self.path.clone(), source })
    }

    /// Looks who leads, and does what follows. `ineligible` says why this machine must not lead, if it must not. After an error
    /// the next look connects anew.
    pub fn look(&mut self, ineligible: Option<&str>) -> Result<Leadership> {
        let session = match self.session.take() {
            Some(session) => session,
            None => Connection::open_candidate(&self.address)?,
        };
        let observed = session.observe()?;
        self.epoch = observed.leader.as_ref().map_or(self.epoch, |leader| leader.epoch);
        let leads = |otherwise: &str| {
            observed
                .leader()
                .map_or_else(|| Leadership::Nobody(otherwise.to_owned()), |leader| Leadership::Leads(Box::new(leader)))
        };
        let look = match self.standby.next(&observed, migrations::KNOWN, ineligible) {
            Step::AcquireLock if session.try_lock()? => Leadership::Won,
            Step::AcquireLock => Leadership::Nobody("another master is taking over".to_owned()),
            Step::Follow => leads(
                "the master that has the lock takes no requests from others yet: it starts, or it was started without \
                 --advertise, or its lease is expiring",
            ),
            Step::Ineligible(why) => leads(&why),
            Step::TerminateSession(leader) => {
                let process = leader.process;
                tracing::warn!(process, "the leader's lease has expired: ending its session");
                if !session.end_session(leader)? && !std::mem::replace(&mut self.said, true) {
                    tracing::error!(
                        process,
                        "the server does not let this user end the leader's session, which keeps the lock: let all \
                         masters connect as the same user, or say `GRANT pg_signal_backend` to this one; until then \
                         somebody else has to call pg_terminate_backend"
                    );
                }
                Leadership::Nobody("the leader's lease has expired, and its session is being ended".to_owned())
            }
        };
        self.session = Some(session);
        Ok(look)
    }

    /// Leads, after [`Leadership::Won`]. If it fails, the lock is free again.
    pub fn lead(&mut self, opening: &Opening, endpoint: &AdvertisedEndpoint) -> Result<Database> {
        let mut writer = self.session.take().ok_or(Error::Closed)?;
        let place = Place::Postgres(Arc::clone(&self.address));
        let renewal = Renewal::start(&self.address, self.epoch)?;
        let outcome = writer.make_schema().map_err(Error::from).and_then(|()| {
            let shown = place.shown();
            transfer::refuse_incomplete(&writer, &shown.display().to_string())?;
            migrations::upgrade(&mut writer, &shown, opening)?;
            let epoch = migrations::take_lease(&mut writer, opening, Some(endpoint))?;
            renewal.lead(epoch);
            Database::serve(&self.path, &place, writer, Arc::clone(&self.lock), epoch)
        });
        let database = outcome.map_err(|error| error.on_opening(&place))?;
        Ok(Database { renewal: Some(Arc::new(renewal)), ..database })
    }
}
