//! The messages: what launchers say to the coordinator and it to them, and what these messages hold.

use std::collections::BTreeMap;

use instep_diagnosis::remote::NodeEvidence;
use instep_policy::election::{Claim, Epoch, HostPort};
use instep_policy::membership::{LauncherId, MembershipTerms, Quorum, Resumption, Vote};
use serde::{Deserialize, Serialize};

use super::secret::JobSecret;
use crate::failure::Failure;

/// Raised when the messages change in a way older launchers cannot follow.
pub const PROTOCOL: u32 = 6;

/// A node introducing itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// See [`PROTOCOL`].
    pub protocol: u32,
    /// The launcher's version, for messages to people.
    pub version: String,
    /// Which job it wants to join.
    pub run_id: String,
    /// Proves that this is the launcher in the same process as the coordinator.
    pub host_token: Option<u64>,
    /// Who it is, over all of its connections.
    pub launcher: LauncherId,
    /// The newest committed round it took part in.
    pub last_round: Option<u64>,
    /// Later rounds that it was told to start, and of which it has not heard that they are committed.
    #[serde(rename = "pledges")]
    pub votes: Vec<Vote>,
    /// It still ends workers of that round, and will say [`ToCoordinator::Stopped`].
    pub busy: bool,
    /// It comes from a coordinator that had fallen silent.
    pub after_silence: bool,
    /// Where it would lead the job, in an elastic one.
    pub standby_port: Option<u16>,
    /// Address shown to people.
    pub address: String,
    /// The launcher's process id.
    pub process: u32,
    /// How many workers it will start.
    pub workers: usize,
    /// Their role.
    pub role: String,
    /// `--node-rank`.
    pub node_rank: usize,
    /// How many ranks of lost nodes it would take over.
    pub spares: usize,
    /// It knows [`FromCoordinator::StandBy`].
    #[serde(default)]
    pub stands_by: bool,
    /// What the job was started with there.
    pub terms: WireTerms,
}

/// [`MembershipTerms`] as sent: all nodes of a job must agree on them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireTerms {
    /// `--nnodes` minimum.
    pub min_nodes: usize,
    /// `--nnodes` maximum.
    pub max_nodes: usize,
    /// `static` rendezvous.
    pub fixed_ranks: bool,
    /// `--max-restarts`.
    pub max_restarts: u32,
    /// `--rdzv-conf quorum=min`.
    pub minimum_decides: bool,
    /// `--recover step`.
    pub step_recovery: bool,
}

impl From<&MembershipTerms> for WireTerms {
    fn from(terms: &MembershipTerms) -> WireTerms {
        WireTerms {
            min_nodes: terms.min_nodes,
            max_nodes: terms.max_nodes,
            fixed_ranks: terms.fixed_ranks,
            max_restarts: terms.max_restarts,
            minimum_decides: terms.quorum == Quorum::Minimum,
            step_recovery: terms.step_recovery,
        }
    }
}

impl WireTerms {
    /// The first option on which two nodes disagree, with the value here and the value there.
    pub fn disagreement(&self, other: &WireTerms) -> Option<String> {
        let nodes: fn(&WireTerms) -> String = |terms| match terms.min_nodes == terms.max_nodes {
            true => format!("--nnodes {}", terms.max_nodes),
            false => format!("--nnodes {}:{}", terms.min_nodes, terms.max_nodes),
        };
        let backend: fn(&WireTerms) -> String =
            |terms| format!("--rdzv-backend {}", if terms.fixed_ranks { "static" } else { "c10d" });
        let restarts: fn(&WireTerms) -> String = |terms| format!("--max-restarts {}", terms.max_restarts);
        let quorum: fn(&WireTerms) -> String =
            |terms| format!("--rdzv-conf quorum={}", if terms.minimum_decides { "min" } else { "majority" });
        let recovery: fn(&WireTerms) -> String =
            |terms| format!("--recover {}", if terms.step_recovery { "step" } else { "round" });
        [nodes, backend, restarts, quorum, recovery]
            .into_iter()
            .map(|option| (option(self), option(other)))
            .find(|(here, there)| here != there)
            .map(|(here, there)| format!("the job was started with {here}, that node with {there}"))
    }
}

/// What a node needs to start its workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Counts from 0.
    pub round: u64,
    /// Restarts spent so far.
    pub restarts: u32,
    /// Rank of this node.
    pub group_rank: usize,
    /// Number of nodes.
    pub group_world_size: usize,
    /// Rank of this node's first worker.
    pub first_rank: usize,
    /// Number of workers.
    pub world_size: usize,
    /// Rank of this node's first worker within its role.
    pub first_role_rank: usize,
    /// Number of workers of this role.
    pub role_world_size: usize,
    /// Where the workers find the store.
    pub master_address: String,
    /// And on which port.
    pub master_port: u16,
    /// The launcher serves the store; false means that rank 0 will.
    pub launcher_serves_store: bool,
    /// Why there is another round, for people.
    pub reason: Option<String>,
    /// Membership changes so far.
    pub changes: u32,
    /// What [`FromCoordinator::Epoch`] will say of this round once it is committed, in an elastic job.
    #[serde(rename = "lineage")]
    pub epoch: Option<Epoch>,
    /// What the round's workers show each other; none where a node could not give it to them.
    pub secret: Option<JobSecret>,
    /// Where this node's workers find the store instead: in a job with a token, at their own launcher.
    #[serde(skip)]
    pub relay: Option<HostPort>,
}

/// A worker that ended under `--recover step`, and whose peers run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LostWorker {
    /// Which of the rank's processes it was, counted from 0.
    pub incarnation: u32,
    /// It was killed because it hung, by its own doing.
    #[serde(default)]
    pub hung: bool,
    /// How it ended.
    pub failure: Failure,
}

/// Ranks were lost: those who have them start their next incarnations, the others keep their workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Replace {
    /// The generation that begins.
    pub generation: u64,
    /// The ranks that were lost, and which of their processes comes next.
    pub incarnations: BTreeMap<usize, u32>,
    /// Those of them whose node is lost, and who starts them instead.
    pub moved: Vec<MovedRank>,
    /// Why, for people.
    pub reason: String,
    /// How they ended, without what they wrote.
    pub lost: Vec<Failure>,
}

/// A rank of a lost node, and the node that has it from now on. What the rank's script is told of its place among the others
/// stays as it was: groups that it makes from that must be those that its peers made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedRank {
    /// Which.
    pub rank: usize,
    /// The launcher that starts it.
    pub launcher: LauncherId,
    /// Where that is, for people.
    pub address: String,
    /// Its place on the node that it was started on first.
    pub local_rank: usize,
    /// How many workers that node had.
    pub local_world_size: usize,
    /// That node's rank.
    pub group_rank: usize,
    /// Its rank within its role.
    pub role_rank: usize,
}

/// A question to all nodes of a job whose ranks wait for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiagnoseRequest {
    /// Which one: the answer has the same.
    pub number: u64,
    /// How long the answer may be, in bytes.
    pub limit: usize,
    /// For the launcher that gets the answers, and concludes from those of so many nodes.
    pub concludes_from: Option<usize>,
}

/// From the launcher in the coordinator's own process: lead the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lead {
    /// Proves where it comes from.
    pub host_token: u64,
    /// What workers are told to connect to.
    pub master_address: String,
    /// What is known of the job.
    pub resumption: Resumption,
    /// Where nodes of its last rounds answer, to look for those that are missing.
    #[serde(rename = "places")]
    pub addresses: Vec<(LauncherId, HostPort)>,
}

/// A question to a launcher of the same job: do you lead it, follow a coordinator, or search for one?
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct LeaderQuery {
    /// See [`PROTOCOL`].
    pub protocol: u32,
    pub run_id: String,
    /// What the one who asks has to show, if it leads; it is then at this port of the address it asks from.
    pub claim: Option<(Claim, u16)>,
}

/// The answer to [`LeaderQuery`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaderReply {
    /// It leads.
    Leading(Claim),
    /// It follows the coordinator at this address.
    Following(HostPort),
    /// It has no coordinator.
    Searching {
        /// The newest committed round of which it knows.
        round: Option<u64>,
    },
}

/// What became of the search for nodes that are missing, told by the coordinator's own process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// Proves where it comes from.
    pub host_token: u64,
    /// Launchers that have ended.
    pub dead: Vec<LauncherId>,
    /// Others that lead this job, and where.
    pub leading: Vec<(HostPort, Claim)>,
}

/// From a launcher.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToCoordinator {
    /// First message of a connection.
    Hello(Hello),
    /// After [`FromCoordinator::Start`].
    Started {},
    /// After [`FromCoordinator::Stop`]: no worker is alive.
    Stopped {},
    /// All workers of the round ended with 0.
    Finished {},
    /// A worker failed.
    Failed(Box<Failure>),
    /// Workers ended that should not have, and their peers run: with `--recover step` alone.
    Lost {
        /// Those that ended at the same moment.
        workers: Vec<LostWorker>,
    },
    /// Workers ended with 0 while others of this node run: with `--recover step` alone.
    RanksFinished {
        /// Their ends, without what they wrote.
        ends: Vec<Failure>,
    },
    /// A worker keeps all others waiting: whether it is to be killed and replaced. With `--recover step` alone.
    Hung {
        /// Its rank.
        rank: usize,
        /// Which of the rank's processes it is.
        incarnation: u32,
    },
    /// Ranks of this node wait in an operation for too long: what do those of the others do?
    Overdue {},
    /// The answer to [`FromCoordinator::Diagnose`].
    Evidence {
        /// Of the question.
        number: u64,
        /// What is known of the ranks here.
        evidence: Box<NodeEvidence>,
    },
    /// This node will end, and has told its workers to.
    Draining {
        /// Why, for people.
        cause: String,
    },
    /// This node ends.
    Leaving {
        /// Why, for people.
        cause: String,
        /// Its own part failed.
        failed: bool,
    },
    /// This node has heard nothing for too long, ends its workers and looks for another coordinator.
    #[serde(rename = "parting")]
    Disconnecting {
        /// For people.
        cause: String,
    },
    /// Still there.
    Ping {
        /// When, by the launcher's own clock, in milliseconds.
        at: u64,
    },
    /// From the coordinator's own process: lead.
    Lead(Box<Lead>),
    /// From anybody of the job, instead of a hello.
    #[serde(rename = "contact")]
    LeaderQuery(LeaderQuery),
    /// From the coordinator's own process: what was found.
    #[serde(rename = "scouted")]
    ProbeReport(ProbeReport),
}

/// To a launcher.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromCoordinator {
    /// The node is in.
    Welcome {},
    /// The node cannot take part.
    Refused {
        /// Why, for people.
        reason: String,
    },
    /// What the job waits for.
    Waiting {
        /// For people.
        reason: String,
    },
    /// Start the workers.
    Start(Start),
    /// A round runs without this node: what it needs to know if it is to take over ranks of lost nodes. It has none yet, and
    /// begins with a [`FromCoordinator::Replace`] that moves some to it.
    StandBy(Box<Start>),
    /// End the workers, then say [`ToCoordinator::Stopped`].
    Stop {
        /// Why, for people.
        reason: String,
        /// By force: others may take their ranks any moment.
        #[serde(default)]
        at_once: bool,
    },
    /// Ranks are replaced while the others run.
    Replace(Box<Replace>),
    /// Kill this worker, which hangs: its peers wait for a replacement.
    Kill {
        /// Its rank.
        rank: usize,
        /// Which of the rank's processes it is.
        incarnation: u32,
    },
    /// The ranks have met in a generation, and train again.
    Recovered {
        /// Which.
        generation: u64,
        /// The step that is next.
        step: u64,
        /// Since the newest loss.
        milliseconds: u64,
    },
    /// Say what the ranks of this node do.
    #[serde(rename = "examine")]
    Diagnose(DiagnoseRequest),
    /// To the launcher that concludes: what a node has answered.
    Evidence {
        /// Of the question.
        number: u64,
        /// What is known of the ranks there.
        evidence: Box<NodeEvidence>,
    },
    /// The job failed.
    Fail {
        /// Why, for people.
        reason: String,
        /// What is known of the workers that failed, on whichever node.
        failures: Vec<Failure>,
    },
    /// The job succeeded.
    Complete {},
    /// Still there.
    Ping {
        /// When that was said, by the launcher's clock.
        at: u64,
    },
    /// What to know in case the coordinator is lost: once a round is committed, and for nodes that come later.
    #[serde(rename = "lineage")]
    Epoch(Epoch),
    /// The node was given up: it ends its workers and may join again.
    Dropped {
        /// Why, for people.
        reason: String,
    },
    /// The job is led elsewhere.
    Moved(HostPort),
    /// The job is not led from here, and it is not known where.
    NotLeading {},
    /// The answer to [`ToCoordinator::LeaderQuery`].
    #[serde(rename = "stand")]
    LeaderReply(LeaderReply),
}

#[cfg(test)]
mod tests {
    use super::{FromCoordinator, LeaderQuery, LeaderReply, PROTOCOL, ProbeReport, ToCoordinator};
    use instep_policy::election::{Epoch, HostPort, Successor};
    use instep_policy::membership::LauncherId;
    use serde_json::json;

    #[test]
    fn names_on_the_wire_stay_when_rust_names_change() {
        let leader = HostPort { host: "10.0.0.1".to_owned(), port: 29603 };
        let successor = Successor { launcher: LauncherId(7), address: leader.clone() };
        let epoch =
            Epoch { round: 2, size: 1, host: Some(LauncherId(7)), successors: vec![successor], ..Epoch::default() };
        let expected = json!({"lineage": {"round": 2, "restarts": 0, "changes": 0, "size": 1, "host": 7,
            "successors": [{"launcher": 7, "place": {"address": "10.0.0.1", "port": 29603}}]}});
        assert_eq!(json!(FromCoordinator::Epoch(epoch)), expected);
        let searching = FromCoordinator::LeaderReply(LeaderReply::Searching { round: None });
        assert_eq!(json!(searching), json!({"stand": {"searching": {"round": null}}}));
        assert_eq!(json!(FromCoordinator::Moved(leader)), json!({"moved": {"address": "10.0.0.1", "port": 29603}}),);
        let query = LeaderQuery { protocol: PROTOCOL, run_id: "456".to_owned(), claim: None };
        let expected = json!({"contact": {"protocol": PROTOCOL, "run_id": "456", "claim": null}});
        assert_eq!(json!(ToCoordinator::LeaderQuery(query)), expected);
        let report = ProbeReport { host_token: 1, dead: Vec::new(), leading: Vec::new() };
        let expected = json!({"scouted": {"host_token": 1, "dead": [], "leading": []}});
        assert_eq!(json!(ToCoordinator::ProbeReport(report)), expected);
        let leaving = ToCoordinator::Disconnecting { cause: "it was stopped".to_owned() };
        assert_eq!(json!(leaving), json!({"parting": {"cause": "it was stopped"}}));
    }
}
