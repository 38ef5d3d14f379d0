//! A launcher of the simulation: what `launch` does with the decisions of `policy`, without sockets and processes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use instep_policy::election::{Claim, Election, Epoch, HostPort, Loss, Votes};
use instep_policy::failure_detector::FailureDetector;
use instep_policy::membership::{LauncherId, Membership, NodeId};

/// `keep_alive_interval`, and the windows of both sides.
pub const INTERVAL: Duration = Duration::from_millis(500);
pub const WINDOW: Duration = Duration::from_millis(2500);
pub const COORDINATOR_WINDOW: Duration = Duration::from_millis(3500);

/// What is on its way to a launcher.
#[derive(Debug, Clone)]
pub enum CoordinatorMessage {
    Start {
        epoch: Epoch,
        rank: usize,
    },
    /// It stood by, and has ranks of lost nodes from now on.
    CallUp {
        round: u64,
    },
    Stop {
        at_once: bool,
    },
    Epoch(Epoch),
    Dropped,
    Moved(HostPort),
}

/// What is on its way to a coordinator.
#[derive(Debug, Clone)]
pub enum LauncherMessage {
    Started,
    Stopped,
    Failed,
    Draining,
    Left,
    Parting,
}

/// One connection between a launcher and a coordinator; messages arrive in order, and late where the link is cut.
#[derive(Debug, Default)]
pub struct Wire {
    pub instructions: VecDeque<(Duration, CoordinatorMessage)>,
    pub messages: VecDeque<(Duration, LauncherMessage)>,
    /// Nothing more is said by the launcher, or by the coordinator.
    pub left: bool,
    pub closed: bool,
}

/// The workers of one node, in one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workers {
    pub round: u64,
    pub rank: usize,
    pub leader: LauncherId,
}

#[derive(Debug)]
pub struct Leading {
    pub membership: Membership,
    pub joined: BTreeMap<NodeId, JoinedNode>,
    pub failure_detector: FailureDetector,
    pub next_probe: Duration,
    pub pending: Option<Epoch>,
    pub epoch: Option<Epoch>,
    pub addresses: BTreeMap<LauncherId, HostPort>,
    pub resumed: bool,
}

#[derive(Debug)]
pub struct JoinedNode {
    pub launcher: LauncherId,
    pub heard: Duration,
}

/// A launcher process; gone from the world when it is killed.
#[derive(Debug)]
pub struct Launcher {
    pub id: LauncherId,
    pub machine: usize,
    pub paused_until: Duration,
    pub workers: Option<Workers>,
    /// When the workers that were told to end have ended.
    pub ending: Option<Duration>,
    pub draining: bool,
    /// The end of the workers was ordered, and is to be reported.
    pub told: bool,
    /// The end of the newest workers was not reported yet.
    pub owes: bool,
    /// The launcher that leads, and the connection to it.
    pub link: Option<(LauncherId, NodeId)>,
    pub failure_detector: FailureDetector,
    /// When the leader was last heard, by the clock that stands still in a pause.
    pub heard: Duration,
    /// What was said last of which the leader has told that it was heard, by the clock that does not.
    pub confirmed: Duration,
    pub next_ping: Duration,
    pub votes: Votes,
    pub last_round: Option<u64>,
    pub epoch: Option<Epoch>,
    /// The one who leads, once this launcher has had a part in a round of it: what it ordered before is not known.
    pub led_by: Option<LauncherId>,
    /// How the leader of that round was lost.
    pub loss: Loss,
    pub election: Option<Election>,
    pub next_sweep: Duration,
    pub leading: Option<Leading>,
}

impl Launcher {
    pub fn new(id: LauncherId, machine: usize, now: Duration) -> Launcher {
        Launcher {
            id,
            machine,
            paused_until: Duration::ZERO,
            workers: None,
            ending: None,
            draining: false,
            told: false,
            owes: false,
            link: None,
            failure_detector: FailureDetector::new(INTERVAL, WINDOW, now),
            heard: now,
            confirmed: now,
            next_ping: now,
            votes: Votes::default(),
            last_round: None,
            epoch: None,
            led_by: None,
            loss: Loss::Broken,
            election: None,
            next_sweep: now,
            leading: None,
        }
    }

    pub fn address(&self) -> HostPort {
        HostPort { host: self.machine.to_string(), port: u16::try_from(self.id.0).expect("few launchers") }
    }

    /// The one who leads tells of its newest committed round.
    pub fn learn(&mut self, epoch: Epoch) {
        if self.votes.committed(&epoch) {
            self.last_round = Some(epoch.round);
            self.led_by = epoch.host;
        }
        self.epoch = Some(epoch);
    }

    pub fn claim(&self) -> Option<Claim> {
        let leading = self.leading.as_ref()?;
        Some(Claim {
            launcher: self.id,
            round: leading.membership.round(),
            running: leading.membership.is_running(),
            precedence: leading.membership.precedence(self.id),
        })
    }

    pub fn lead(&mut self, membership: Membership, resumed: bool, now: Duration) {
        let addresses = self.epoch.iter().flat_map(|epoch| &epoch.successors);
        self.leading = Some(Leading {
            membership,
            joined: BTreeMap::new(),
            failure_detector: FailureDetector::new(INTERVAL, COORDINATOR_WINDOW, now).counting_sleep(),
            next_probe: now,
            pending: None,
            epoch: None,
            addresses: addresses.map(|one| (one.launcher, one.address.clone())).collect(),
            resumed,
        });
    }
}
