//! `instep agent`: lends a machine's slots to a master.
//!
//! One thread, which waits for the master's word and looks after its shares in between. It holds nothing that is not in
//! the state folder too, so an agent that is killed and started again goes on where it was: its tasks have not noticed.
//!
//! | module | part |
//! |---|---|
//! | [`link`] | the websocket |
//! | [`lock`] | which agent uses a state folder |
//! | [`shares`] | what runs here and what has ended |
//! | [`tenant`] | whose tasks an agent without root takes |

pub mod link;
pub mod lock;
pub mod shares;
pub mod tenant;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use instep_api::link::{Bound, Device, Exit, Hello, Order, Report, RunAs, VERSION, Welcome};
use instep_client::{Address, Addresses, Backoff, websocket};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::cgroup::groups::{self, Groups};
use crate::cgroup::limits::Budget;
use crate::folder::StateFolder;
use crate::inheritance;
use crate::order::{AllowedMount, Machine};
use link::{Link, LinkError};
use lock::{Lent, Lock};
use shares::Shares;
use tenant::Tenant;

/// The signal upon which an agent goes and leaves its tasks to the next one, whatever `stop_tasks` says.
pub const HAND_OVER: Signal = Signal::SIGUSR1;
/// The signal by which Slurm is asked to say that a job's end comes near. Whatever does not wait for it ignores it, so that the
/// ranks of a task may get it, too.
pub const NOTICE: Signal = Signal::SIGURG;
/// How long an agent that a scheduler started waits for the master while it runs nothing: it holds a node.
const LONELY: Duration = Duration::from_secs(600);
/// Between two looks at the shares while the master says nothing.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Until the master must have answered a hello.
const WELCOME: Duration = Duration::from_secs(15);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Between SIGTERM and SIGKILL for tasks that end with their agent.
const GRACE_SECONDS: u32 = 10;
/// The same where a scheduler ends both: it waits 30 s itself, unless its administrator says otherwise.
const BOUND_GRACE_SECONDS: u32 = 3;
/// Why they end then.
const ENDED_BY_SCHEDULER: &str = "the scheduler that started its agents has ended them";
/// How long their end is waited for.
const ENDING: Duration = Duration::from_secs(90);
/// How long thanks for the last end are waited for.
const THANKS: Duration = Duration::from_secs(3);
/// Connections that failed in a row before the agent says so: a master that is restarted needs no words.
const QUIET_FAILURES: u32 = 2;

/// What an agent is told by whoever starts it.
pub struct Options {
    /// Where the master is, or several of which any answers for the cluster.
    pub masters: Addresses,
    /// A file of certificates to trust instead of the public ones.
    pub certificates: Option<PathBuf>,
    /// By which it is known for ever.
    pub name: String,
    /// Which pool its slots belong to; empty for the default one.
    pub pool: String,
    /// What it lends.
    pub devices: Vec<Device>,
    /// Under which other machines reach this one; empty to take what the connection to the master shows.
    pub addresses: Vec<String>,
    /// Where it keeps what must outlive it.
    pub state: PathBuf,
    /// The interpreter of tasks.
    pub python: PathBuf,
    /// This program, which runs tasks as `instep task FOLDER`.
    pub binary: PathBuf,
    /// Whether SIGTERM ends the tasks too.
    pub stop_tasks: bool,
    /// Variables that tasks inherit besides the usual ones; `*` stands for any end of a name.
    pub pass_environment: Vec<String>,
    /// As whom tasks of users without a Unix user run, if we are root.
    pub default_user: RunAs,
    /// What tasks of other users may have mounted, if we are root.
    pub allowed_mounts: Vec<AllowedMount>,
    /// Tasks of all users run as our user, if we are not root: they trust each other.
    pub shared_uid: bool,
    /// The only user served, if we are not root; the first one to get a task if there is none.
    pub serve_user: Option<String>,
    /// How much of the machine tasks may take.
    pub budget: Budget,
    /// The allocation that a scheduler has started it for: it serves no other, and goes when that has ended.
    pub bound: Option<Bound>,
}

/// Why there is no token, in words for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoToken {
    /// The master did not answer.
    Later(String),
    /// Somebody has to log in first.
    NotLoggedIn(String),
}

/// What an agent needs from whoever starts it while it runs.
pub trait Host {
    /// The token to show to the master; asked for before every connection.
    fn token(&mut self) -> Result<String, NoToken>;

    /// Something that people should know.
    fn say(&mut self, what: &str);
}

/// Why an agent gave up.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the names say it")]
pub enum AgentError {
    /// Its folder cannot be used.
    #[error("cannot use the state folder {}: {source}", path.display())]
    Folder { path: PathBuf, source: std::io::Error },
    /// Another agent uses it.
    #[error("another agent uses the state folder {}", .0.display())]
    SecondAgent(PathBuf),
    /// The master does not want it.
    #[error("{0}")]
    Refused(String),
    /// It was started for one allocation, and nobody tells it what to do.
    #[error("no word of the master for {seconds} s: {why}")]
    Lonely { why: String, seconds: u64 },
    /// Something of the system failed.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

impl AgentError {
    /// What to do next, where the error itself does not say it.
    pub fn hint(&self) -> &'static str {
        match self {
            AgentError::Folder { .. } => "choose another with --state-folder",
            AgentError::SecondAgent(_) => "stop the other one, or give this one another --name or --state-folder",
            AgentError::Refused(_) => {
                "administrators and agent tokens may connect: --token, INSTEP_AGENT_TOKEN or `instep login`"
            }
            AgentError::Lonely { .. } => "the nodes must reach the master: see `master_url` of the pool",
            AgentError::System(_) => "see the agent's log",
        }
    }
}

/// Lends the machine's slots until a signal comes, or the master refuses. Gives the exit code of what failed, for a scheduler
/// that has started the agent for it.
pub fn run(options: &Options, host: &mut dyn Host) -> Result<u8, AgentError> {
    let state = StateFolder::at(&options.state);
    let failed = |source| AgentError::Folder { path: options.state.clone(), source };
    state.prepare().map_err(failed)?;
    let lock = Lock::take(&state, &options.devices)?;
    // Our memory and our environment hold a token, and tasks may run as our user.
    prctl::set_dumpable(false).map_err(std::io::Error::from)?;
    let environment = inheritance::inherited(std::env::vars_os(), &options.pass_environment);
    let tenant = Tenant::new(&state, options.shared_uid, options.serve_user.as_deref());
    let machine = groups::Machine::this();
    let (groups, unlimited) = Groups::prepare(machine, &state, &options.name, options.budget, options.devices.len());
    if let Some(said) = unlimited {
        host.say(&said);
    }
    let shares = Shares::find(state.clone(), environment, tenant, groups).map_err(failed)?;
    let signals = block_signals()?;
    let identity = state.identity().map_err(failed)?;
    let mut agent = Agent {
        options,
        identity,
        state,
        lock,
        shares,
        signals,
        machine: None,
        failures: 0,
        turn: 0,
        leaving: None,
        noticed: false,
        ending: false,
        heard: Instant::now(),
    };
    if agent.shares.running() > 0 {
        host.say(&format!("{} from before still running here", tasks(agent.shares.running())));
    }
    let outcome = agent.reconnect_forever(host);
    match outcome {
        Ok(Leave::AndStop) => agent.stop_all(host),
        Ok(Leave::Quietly) => agent.report_what_runs(host),
        Err(_) => agent.report_what_runs(host),
    }
    agent.shares.close();
    outcome.map(|_| agent.shares.failure())
}

/// Whether the next master is asked after so many failures in a row. One that an agent was connected to and that ended the
/// connection is asked again first: where it stands by, it knows the next leader before the last one answers anybody.
fn passes_on(failures: u32, was_welcome: bool) -> bool {
    failures > 0 || !was_welcome
}

/// A reason between two texts, with its hint last.
fn before_hint(before: &str, why: &str, after: &str) -> String {
    match why.split_once("\nhint: ") {
        Some((why, hint)) => format!("{before}{why}{after}\nhint: {hint}"),
        None => format!("{before}{why}{after}"),
    }
}

fn tasks(count: usize) -> String {
    if count == 1 { "1 task".to_owned() } else { format!("{count} tasks") }
}

/// What the end of an agent means for its tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leave {
    /// They go on, and the next agent finds them.
    Quietly,
    /// They end.
    AndStop,
}

fn block_signals() -> Result<SignalFd, AgentError> {
    let set: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, HAND_OVER, NOTICE].into_iter().collect();
    set.thread_block().map_err(std::io::Error::from)?;
    let signals = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC);
    Ok(signals.map_err(std::io::Error::from)?)
}

struct Agent<'a> {
    options: &'a Options,
    state: StateFolder,
    identity: String,
    lock: Lock,
    shares: Shares,
    signals: SignalFd,
    /// What tasks are told of this machine; known after the first welcome.
    machine: Option<Machine>,
    /// Connections that failed since one worked.
    failures: u32,
    /// Which of the masters is asked.
    turn: usize,
    /// It ends what it runs before it goes, and waits for that until then.
    leaving: Option<Instant>,
    /// The scheduler will end it, which the master has not heard yet.
    noticed: bool,
    /// The scheduler has said so: the next SIGTERM is the end.
    ending: bool,
    /// When the master was last heard.
    heard: Instant,
}

/// How a connection ended.
enum Disconnected {
    /// By a signal to us.
    Leaving(Leave),
    /// It broke; another may work.
    Broken(String),
}

impl Agent<'_> {
    fn reconnect_forever(&mut self, host: &mut dyn Host) -> Result<Leave, AgentError> {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let why = match self.connection(host)? {
                Disconnected::Leaving(leave) => return Ok(leave),
                // Nobody can be told any more; what runs is ended all the same.
                Disconnected::Broken(_) if self.leaving.is_some() => return Ok(Leave::AndStop),
                Disconnected::Broken(why) => why,
            };
            if self.failures == 0 {
                backoff.reset();
            }
            self.turn += usize::from(passes_on(self.failures, self.machine.is_some()));
            self.failures += 1;
            if self.failures == self.quiet_failures() {
                let running = self.shares.running();
                let tasks =
                    if running == 0 { String::new() } else { format!("; {} left running for now", tasks(running)) };
                host.say(&before_hint(
                    "no connection to the master: ",
                    &why,
                    &format!("; retrying until it works{tasks}"),
                ));
            }
            if self.options.bound.is_some() && self.shares.running() == 0 && self.heard.elapsed() > LONELY {
                return Err(AgentError::Lonely { why, seconds: LONELY.as_secs() });
            }
            // Another master may be there at once; after a round of all of them there is a pause.
            let round = self.masters() > 1 && !self.failures.is_multiple_of(self.masters());
            let pause = if round { Duration::ZERO } else { backoff.pause() };
            if let Some(leave) = self.wait(pause) {
                return Ok(leave);
            }
        }
    }

    /// How many masters there are to ask.
    fn masters(&self) -> u32 {
        u32::try_from(self.options.masters.count()).unwrap_or(u32::MAX)
    }

    /// How many failures in a row need no words.
    fn quiet_failures(&self) -> u32 {
        QUIET_FAILURES.saturating_mul(self.masters())
    }

    /// The one that is asked at the moment.
    fn master(&self) -> &Address {
        self.options.masters.at(self.turn)
    }

    /// Waits, looks after the shares, and hears signals.
    fn wait(&mut self, pause: Duration) -> Option<Leave> {
        let end = Instant::now() + pause;
        loop {
            // What ended is reported with the next hello.
            self.shares.poll();
            if let Some(leave) = self.signalled() {
                return Some(leave);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            std::thread::sleep(left.min(POLL_INTERVAL));
        }
    }

    fn signalled(&mut self) -> Option<Leave> {
        let information = self.signals.read_signal().ok().flatten()?;
        let is_bound = self.options.bound.is_some();
        match Signal::try_from(information.ssi_signo.cast_signed()) {
            // Somebody at a terminal expects that nothing is left.
            Ok(Signal::SIGINT) => Some(Leave::AndStop),
            Ok(HAND_OVER) => Some(Leave::Quietly),
            Ok(NOTICE) => {
                self.noticed |= is_bound && !self.ending;
                self.ending |= is_bound;
                None
            }
            // It is told once; whoever tells it twice is in a hurry. It may have told the tasks, too.
            Ok(Signal::SIGTERM) if is_bound && self.shares.running() > 0 && !self.ending => {
                self.shares.end_from_outside(ENDED_BY_SCHEDULER);
                (self.noticed, self.ending) = (true, true);
                None
            }
            _ if self.options.stop_tasks => Some(Leave::AndStop),
            _ => Some(Leave::Quietly),
        }
    }

    /// One connection from its beginning to its end.
    fn connection(&mut self, host: &mut dyn Host) -> Result<Disconnected, AgentError> {
        let token = match host.token() {
            Ok(token) => token,
            // At the start somebody is there to hear it; later an agent waits for the next login.
            Err(NoToken::NotLoggedIn(why)) if self.machine.is_none() => return Err(AgentError::Refused(why)),
            Err(NoToken::NotLoggedIn(why) | NoToken::Later(why)) => return Ok(Disconnected::Broken(why)),
        };
        let timeout = websocket::answer_timeout(&self.options.masters);
        let opened = Link::open(self.master(), self.options.certificates.as_deref(), &token, timeout);
        let mut link = match opened {
            Ok(link) => link,
            Err(LinkError::Refused(why)) => return Err(AgentError::Refused(why)),
            Err(LinkError::Broken(why)) => return Ok(Disconnected::Broken(why)),
        };
        match self.converse(&mut link, host) {
            Ok(leave) => Ok(Disconnected::Leaving(leave)),
            Err(LinkError::Refused(why)) => Err(AgentError::Refused(why)),
            Err(LinkError::Broken(why)) => Ok(Disconnected::Broken(why)),
        }
    }

    fn converse(&mut self, link: &mut Link, host: &mut dyn Host) -> Result<Leave, LinkError> {
        self.shares.poll();
        link.send(&Report::Hello(self.hello(link)))?;
        self.shares.all_told();
        let welcome = self.welcomed(link)?;
        self.note_contact();
        if self.machine.replace(self.machine(&welcome)).is_none() {
            self.lock.note_registered(&self.options.devices);
        }
        let again = if self.failures == 0 { "" } else { " again" };
        if self.failures == 0 || self.failures >= self.quiet_failures() {
            let slots = Lent::of(&self.options.devices);
            let (name, master) = (&self.options.name, self.master());
            host.say(&format!("agent {name} offers {slots} to {master}{again}"));
        }
        self.failures = 0;
        let ping = Duration::from_secs(welcome.ping_seconds.max(1).into());
        let (mut pinged, mut heard) = (Instant::now(), Instant::now());
        loop {
            match link.receive(POLL_INTERVAL)? {
                link::Received::Order(order) => {
                    heard = Instant::now();
                    self.note_contact();
                    self.apply(link, *order, host)?;
                }
                link::Received::SignOfLife => {
                    heard = Instant::now();
                    self.note_contact();
                }
                link::Received::Nothing => {}
            }
            // A scheduler signals tasks, too: the agent must know it before it sees what becomes of them.
            if self.options.bound.is_some()
                && self.leaving.is_none()
                && let Some(leave) = self.leave(link, host)?
            {
                link.close();
                return Ok(leave);
            }
            for report in self.shares.poll() {
                link.send(&report)?;
            }
            // What has not begun cannot be asked to stop.
            if self.noticed && self.shares.running() > 0 {
                self.noticed = false;
                let why = "the scheduler that started its agents is about to end them".to_owned();
                link.send(&Report::Notice { why })?;
            }
            if pinged.elapsed() >= ping {
                link.ping()?;
                pinged = Instant::now();
            }
            if heard.elapsed() > 3 * ping {
                // Nor would it answer a hello.
                self.turn += 1;
                return Err(LinkError::Broken(format!("the master was silent for {} s", (3 * ping).as_secs())));
            }
            if let Some(leave) = self.leave(link, host)? {
                link.close();
                return Ok(leave);
            }
        }
    }

    /// Whether it is time to go. What is to end before is ended while the master listens, so that it hears of it at once.
    fn leave(&mut self, link: &mut Link, host: &mut dyn Host) -> Result<Option<Leave>, LinkError> {
        match (self.signalled(), self.leaving) {
            // That a connection breaks now must not lose the signal.
            (Some(Leave::AndStop), None) if self.shares.running() > 0 => {
                let _ = link.send(&Report::Leaving);
                self.begin_to_stop(host);
                self.leaving = Some(Instant::now() + ENDING);
                Ok(None)
            }
            (Some(leave), None) => {
                // So that the next agent of this name is let in, even if the end of this connection is noticed late.
                let _ = link.send(&Report::Leaving);
                Ok(Some(leave))
            }
            // A scheduler repeats it; what is left then is ended by its next signal.
            (Some(_), Some(end)) if self.options.bound.is_some() && Instant::now() < end => Ok(None),
            // The second signal: what still runs is left to itself.
            (Some(_), Some(_)) => Ok(Some(Leave::Quietly)),
            // What has ended is known until the master has thanked for it.
            (None, Some(end)) if self.shares.states().is_empty() || Instant::now() >= end => Ok(Some(Leave::Quietly)),
            (None, Some(end)) if self.shares.running() == 0 => {
                self.leaving = Some(end.min(Instant::now() + THANKS));
                Ok(None)
            }
            (None, _) => Ok(None),
        }
    }

    fn welcomed(&mut self, link: &mut Link) -> Result<Welcome, LinkError> {
        let deadline = Instant::now() + WELCOME;
        while Instant::now() < deadline {
            match link.receive(POLL_INTERVAL)? {
                link::Received::Order(order) => match *order {
                    Order::Welcome(welcome) => return Ok(welcome),
                    Order::Refused { why } => return Err(LinkError::Refused(why)),
                    _ => return Err(LinkError::Broken("the master did not begin with a welcome".to_owned())),
                },
                link::Received::SignOfLife | link::Received::Nothing => {}
            }
        }
        Err(LinkError::Broken(format!("the master did not answer within {} s", WELCOME.as_secs())))
    }

    fn hello(&self, link: &Link) -> Hello {
        let known = &self.options.addresses;
        Hello {
            protocol: VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            agent: self.options.name.clone(),
            pool: self.options.pool.clone(),
            addresses: if known.is_empty() { link.own_address().into_iter().collect() } else { known.clone() },
            devices: self.options.devices.clone(),
            shares: self.shares.states(),
            serves: self.shares.serves(),
            bound: self.options.bound.clone(),
            identity: self.identity.clone(),
        }
    }

    fn machine(&self, welcome: &Welcome) -> Machine {
        Machine {
            agent: self.options.name.clone(),
            master: self.master().to_string(),
            masters: if self.masters() > 1 { self.options.masters.to_string() } else { String::new() },
            certificates: self.options.certificates.clone(),
            master_id: welcome.master_id.clone(),
            cluster_id: welcome.cluster_id.clone(),
            devices: self.options.devices.clone(),
            python: self.options.python.clone(),
            binary: self.options.binary.clone(),
            window_seconds: welcome.window_seconds,
            default_user: self.options.default_user.clone(),
            allowed_mounts: self.options.allowed_mounts.clone(),
        }
    }

    fn apply(&mut self, link: &mut Link, order: Order, host: &mut dyn Host) -> Result<(), LinkError> {
        match (order, &self.machine) {
            (Order::Start(start), _) if self.leaving.is_some() => {
                let why = "the agent is being stopped".to_owned();
                link.send(&Report::Exited { share: start.share, exit: Exit::Failed { why }.into() })?;
            }
            (Order::Start(start), Some(machine)) => {
                if let Some(report) = self.shares.start(*start, machine) {
                    link.send(&report)?;
                }
            }
            (Order::Stop { share, grace_seconds, why }, _) => {
                if let Some(report) = self.shares.stop(&share, grace_seconds, &why) {
                    link.send(&report)?;
                }
            }
            (Order::Forget { share }, _) => self.shares.forget(&share),
            (Order::Refused { why }, _) => return Err(LinkError::Refused(why)),
            (Order::Leave { why }, _) => self.go(&why, host),
            (Order::Welcome(_) | Order::Start(_), _) => {}
        }
        Ok(())
    }

    /// The allocation that it was started for has ended.
    fn go(&mut self, why: &str, host: &mut dyn Host) {
        if self.leaving.is_none() {
            host.say(&format!("leaving: {why}"));
            self.shares.stop_all(0, why);
            self.leaving = Some(Instant::now() + ENDING);
        }
    }

    /// Tasks look at this: while it is fresh, they run on. A disk that is full for a while must not end the agent.
    fn note_contact(&mut self) {
        self.heard = Instant::now();
        let _ = self.state.note_contact();
    }

    fn begin_to_stop(&mut self, host: &mut dyn Host) {
        let running = tasks(self.shares.running());
        let (why, grace_seconds) = match self.options.bound {
            Some(_) => (ENDED_BY_SCHEDULER, BOUND_GRACE_SECONDS),
            None => ("the agent was stopped", GRACE_SECONDS),
        };
        if self.options.bound.is_some() {
            host.say(&format!("stopping {running}: {why}"));
            self.shares.end_from_outside(why);
        } else {
            host.say(&format!("stopping {running}; repeat the signal to leave them running"));
        }
        self.shares.stop_all(grace_seconds, why);
    }

    /// Ends what runs without a connection.
    fn stop_all(&mut self, host: &mut dyn Host) {
        if self.shares.running() == 0 {
            return;
        }
        if self.leaving.is_none() {
            self.begin_to_stop(host);
        }
        let end = self.leaving.unwrap_or_else(|| Instant::now() + ENDING);
        while self.shares.running() > 0 && Instant::now() < end && self.signalled().is_none() {
            std::thread::sleep(POLL_INTERVAL);
            self.shares.poll();
        }
        self.report_what_runs(host);
    }

    fn report_what_runs(&self, host: &mut dyn Host) {
        let window = self.machine.as_ref().map_or(0, |machine| machine.window_seconds);
        if self.shares.running() > 0 {
            host.say(&format!(
                "{} still running; they stop {window} s after the last contact with the master, unless an agent \
                 with the same state folder ({}) returns",
                tasks(self.shares.running()),
                self.state.path().display(),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_comes_last() {
        assert_eq!(before_hint("a: ", "why\nhint: do", "; more"), "a: why; more\nhint: do");
        assert_eq!(before_hint("a: ", "why", "; more"), "a: why; more");
    }

    #[test]
    fn the_master_that_an_agent_was_connected_to_is_asked_again_first() {
        assert!(passes_on(0, false), "one that never worked");
        assert!(!passes_on(0, true), "one that worked until now");
        assert!(passes_on(1, true), "one that worked, and does not any more");
    }
}
