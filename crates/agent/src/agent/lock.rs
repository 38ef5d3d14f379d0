//! Which agent uses a state folder: the one that holds the lock in it, in which it says what it lends.
//!
//! ```text
//! PID SLOTS gpus|processors [registered]
//! ```

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use instep_api::link::{Device, DeviceKind};
use nix::fcntl::{Flock, FlockArg};

use super::AgentError;
use crate::folder::StateFolder;

/// Somebody who only looks holds the lock for a moment: it is tried so often, with a pause in between.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);
/// The word in the lock of an agent that a master has accepted.
const REGISTERED: &str = "registered";

/// The lock, held until dropped.
pub struct Lock(Flock<File>);

impl Lock {
    /// Takes it, unless another agent has it.
    pub fn take(state: &StateFolder, devices: &[Device]) -> Result<Lock, AgentError> {
        let path = state.lock();
        let open = File::options().create(true).truncate(false).write(true).open(&path);
        let mut unlocked = open.map_err(|source| AgentError::Folder { path, source })?;
        let mut attempts = 0;
        let held = loop {
            match Flock::lock(unlocked, FlockArg::LockExclusiveNonblock) {
                Ok(held) => break held,
                Err(_) if attempts == ATTEMPTS => return Err(AgentError::SecondAgent(state.path().to_owned())),
                Err((file, _)) => unlocked = file,
            }
            attempts += 1;
            std::thread::sleep(PAUSE);
        };
        held.set_len(0)?;
        held.write_all_at(line(devices).as_bytes(), 0)?;
        Ok(Lock(held))
    }

    /// Notes that a master has accepted the agent.
    pub fn note_registered(&self, devices: &[Device]) {
        // Without it `instep up` waits longer than it must.
        let _ = self.0.write_all_at(format!("{} {REGISTERED}", line(devices)).as_bytes(), 0);
    }
}

fn line(devices: &[Device]) -> String {
    let lent = Lent::of(devices);
    format!("{} {} {}", std::process::id(), lent.slots, if lent.gpus { "gpus" } else { "processors" })
}

/// What an agent lends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Lent {
    pub slots: usize,
    /// They are GPUs, not processors.
    pub gpus: bool,
}

impl Lent {
    /// These.
    pub fn of(devices: &[Device]) -> Lent {
        Lent { slots: devices.len(), gpus: devices.iter().any(|device| device.kind == DeviceKind::Cuda) }
    }
}

impl fmt::Display for Lent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, more) = (if self.gpus { "GPU" } else { "slot" }, if self.slots == 1 { "" } else { "s" });
        write!(formatter, "{} {what}{more}", self.slots)
    }
}

/// What an agent says of itself in its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Running {
    pub pid: i32,
    /// Not known of one of an earlier version.
    pub lends: Option<Lent>,
    /// A master has accepted it, so that its slots are listed.
    pub registered: bool,
}

/// The agent that uses a state folder, if one does.
pub fn running(state: &Path) -> Option<Running> {
    let mut file = File::open(StateFolder::at(state).lock()).ok()?;
    let mut words = String::new();
    file.read_to_string(&mut words).ok()?;
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Ok(_) => None,
        Err(_) => {
            let mut words = words.split_whitespace();
            let pid = words.next()?.parse().ok()?;
            let lends =
                words.next().and_then(|slots| Some(Lent { slots: slots.parse().ok()?, gpus: words.next()? == "gpus" }));
            Some(Running { pid, lends, registered: words.next() == Some(REGISTERED) })
        }
    }
}

/// How many tasks of an agent's state folder have not ended.
pub fn tasks_at_work(state: &Path) -> std::io::Result<usize> {
    let state = StateFolder::at(state);
    let names = std::fs::read_dir(state.shares())?.flatten().map(|entry| entry.file_name());
    let shares = names.filter_map(|name| state.share(name.to_str().filter(|name| !name.starts_with('.'))?));
    Ok(shares.filter(|share| share.exit().is_none()).count())
}
