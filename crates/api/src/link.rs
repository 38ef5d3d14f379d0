//! What agents and the master say to each other: JSON messages over one websocket that the agent opens.
//!
//! 1. The agent speaks first ([`Hello`]), with everything it still runs or has not yet been thanked for; the master
//!    answers with [`Welcome`] or closes with a reason.
//! 2. Every order and every report names an allocation's share on this machine ([`Share`]). Saying one twice changes
//!    nothing, so either side repeats what it is not sure of.
//! 3. The agent repeats [`Report::Exited`] with every hello until the master has thanked for it ([`Order::Forget`]):
//!    by then the end is in the master's database.
//! 4. An agent without a connection ends its work after [`Welcome::window_seconds`]; the master gives the work to
//!    others only after a longer time. So nothing ever runs twice.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::goodput::NodeGoodput;
use crate::identifiers::UserId;
use crate::secrets::GivenSecrets;
use crate::wire::Timestamp;

/// The version of these messages. A master also understands the one before: `instep_policy::versions`.
pub const VERSION: u32 = 1;

/// Where an agent connects.
pub const PATH: &str = "/api/v1/agents/link";

/// `POST /agents/tokens`: a token that lets agents in.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentTokenRequest {
    /// By which people know it.
    pub name: Option<String>,
    /// The only agent that may connect with it; any without.
    pub agent: Option<String>,
    /// The only pool that agents may lend their slots to with it; any without.
    pub pool: Option<String>,
}

/// The token itself, told once.
#[derive(Debug, Serialize, Deserialize)]
pub struct AgentTokenResponse {
    /// By which people know it.
    pub name: String,
    /// What agents show.
    pub token: String,
}

/// `GET /agents/tokens`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct AgentTokensResponse {
    pub tokens: Vec<AgentToken>,
}

/// A token that lets agents in, as it is listed: without itself.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the names say it")]
pub struct AgentToken {
    /// By which people know it.
    pub name: String,
    /// Who made it.
    pub user_id: UserId,
    pub created_at: Timestamp,
    /// The only agent that may connect with it.
    pub agent: Option<String>,
    /// The only pool that agents may lend their slots to with it.
    pub pool: Option<String>,
}

/// An allocation's share on one machine: what Determined calls resources, or a container.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Share {
    /// `<task>.<run>`.
    pub allocation: String,
    /// A UUID.
    pub resources: String,
}

/// From an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Report {
    /// The first message of a connection.
    Hello(Hello),
    /// The share's own process runs; its addresses are those under which other machines reach it.
    Started { share: Share },
    /// The agent goes and wants no more work: it ends what it runs, or leaves it to the next agent of its name.
    Leaving,
    /// The scheduler that started the agent is about to end it: what it runs should stop in good order.
    Notice {
        /// For people.
        why: String,
    },
    /// The share has ended and nothing of it runs any more.
    Exited { share: Share, exit: Ending },
}

/// Who the agent is, what it lends and what it runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`] of the sender.
    pub protocol: u32,
    /// Of the program.
    pub version: String,
    /// The agent's name, by which it is known for ever.
    pub agent: String,
    /// Which pool its slots belong to; empty for the default one.
    pub pool: String,
    /// Under which other machines reach this one, the best first.
    pub addresses: Vec<String>,
    /// What it lends.
    pub devices: Vec<Device>,
    /// What it runs, and what has ended without thanks.
    pub shares: Vec<ShareState>,
    /// Whose tasks it takes.
    #[serde(default)]
    pub serves: Serves,
    /// The allocation that it was started for by a scheduler such as Slurm: it serves no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bound>,
    /// Its state folder's: two agents of one machine look alike otherwise. Older agents have none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub identity: String,
}

/// What binds an agent to one allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// The allocation.
    pub allocation: String,
    /// The scheduler's job that the agent belongs to.
    pub job: String,
    /// Which of the job's nodes it is on, from 0 on.
    pub node: u32,
    /// How many the job has.
    pub nodes: u32,
}

/// Whose tasks an agent takes. One whose tasks all run as one Unix user takes one user's, since they could read each other's
/// tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "whom", rename_all = "snake_case")]
pub enum Serves {
    /// Everybody's.
    #[default]
    Everybody,
    /// One user's.
    User {
        /// The name of the user's account.
        name: String,
    },
    /// Those of the first user who gets a task there, and nobody else's from then on.
    First,
}

/// One slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Counts from 0 on this machine.
    pub id: u32,
    /// What it is.
    pub kind: DeviceKind,
    /// Its model, for people.
    pub brand: String,
    /// How the driver names it; empty for processors.
    pub uuid: String,
}

/// What a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// A share of the processors.
    Cpu,
    /// A GPU of NVIDIA's.
    Cuda,
}

/// A share that the agent knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ShareState {
    pub share: Share,
    /// The devices it occupies.
    pub devices: Vec<u32>,
    /// How it ended, if it has.
    pub exit: Option<Ending>,
}

/// How a share ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Exit {
    /// The entrypoint ended by itself.
    Code {
        /// What it returned; 128 + n after signal n.
        code: i32,
        /// What went wrong, as far as the agent knows it: "rank 1: ValueError: bad shape".
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// It never ran: the context, the folders or the program could not be prepared. Not the script's fault.
    Failed {
        /// For people.
        why: String,
    },
    /// It was ended on the master's word.
    Killed,
    /// It was ended because agent and master had lost each other, or its supervisor died with it.
    Lost {
        /// For people.
        why: String,
    },
}

impl Exit {
    /// By itself with this code, of which nothing else is known.
    pub fn code(code: i32) -> Exit {
        Exit::Code { code, why: None }
    }
}

/// The end of a share: how, and what became of the time of its ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ending {
    /// How.
    #[serde(flatten)]
    pub exit: Exit,
    /// What its launcher says, which the task may have changed; none if no launcher says anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<NodeGoodput>,
}

impl From<Exit> for Ending {
    /// An end of which nothing else is known. What never ran has spent no time on anything.
    fn from(exit: Exit) -> Ending {
        let never_ran = matches!(exit, Exit::Failed { .. });
        Ending { exit, goodput: never_ran.then(NodeGoodput::default) }
    }
}

/// From the master.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Order {
    /// The answer to [`Hello`].
    Welcome(Welcome),
    /// The agent is not wanted; it gives up and says why.
    Refused {
        /// For people.
        why: String,
    },
    /// Run a share, unless it is known already.
    Start(Box<Start>),
    /// End a share: SIGTERM, then SIGKILL after the grace period. A share that is not known is reported as lost.
    Stop {
        share: Share,
        /// Before SIGKILL; 0 for at once.
        grace_seconds: u32,
        /// For people.
        why: String,
    },
    /// Its exit is recorded: remove what is left of it.
    Forget { share: Share },
    /// The allocation that the agent was started for has ended: it goes, without an error.
    Leave {
        /// For people.
        why: String,
    },
}

/// What an agent needs to know of the master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Changes with every start of the master.
    pub master_id: String,
    /// Never changes.
    pub cluster_id: String,
    /// How long an agent without a connection lets its work run.
    pub window_seconds: u32,
    /// How often the agent sends a ping, and what silence of three times that means: the connection is dead.
    pub ping_seconds: u32,
}

/// Everything `instep task` needs to run one share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Start {
    pub share: Share,
    /// Whose logs these are.
    pub task: String,
    /// Which of the agent's devices.
    pub devices: Vec<u32>,
    /// What the task sees as its identifier of the container.
    pub container: String,
    /// The variables of the task: everything that does not depend on the machine. The agent adds the rest.
    pub environment: BTreeMap<String, String>,
    /// Set after everything else, in this order: what the configuration asks for. `K` alone takes the agent's own.
    pub user_environment: Vec<String>,
    /// Set after that: what the configuration names and does not contain.
    #[serde(default)]
    pub secrets: GivenSecrets,
    /// What to run.
    pub entrypoint: Entrypoint,
    /// The token with which the task asks the master.
    pub token: String,
    /// Whether there is a context directory to fetch (`GET /api/v1/tasks/{task}/context_directory`).
    pub context: bool,
    /// Whether the task waits for the other shares before its entrypoint starts.
    pub rendezvous: bool,
    /// As whom it runs; the agent's own user if there is none, or if the agent is not root.
    pub run_as: Option<RunAs>,
    /// As which group it runs if there is no user: its workspace's. Not if the agent is not root.
    #[serde(default)]
    pub run_group: Option<RunGroup>,
    /// How large the task's own `/dev/shm` is; as large as the machine has it without.
    #[serde(default)]
    pub shared_memory_bytes: Option<NonZeroU64>,
    /// Host folders that the task sees elsewhere.
    pub mounts: Vec<Mount>,
    /// Folders of the machine that the task must be able to see.
    #[serde(default)]
    pub paths: Vec<String>,
    /// What it serves, if it does: the task says when it is ready.
    #[serde(default)]
    pub service: Option<Service>,
    /// What lets the shares of an allocation on several machines start programs on each other.
    #[serde(default)]
    pub ssh_keys: Option<SshKeys>,
    /// By which launchers of an allocation on several machines know each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_token: Option<String>,
    /// What to say in the task's log before it starts.
    pub notes: Vec<String>,
    /// When the master decided it.
    pub decided_at: Timestamp,
}

/// What a task runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Entrypoint {
    /// By `sh -c`.
    Shell(String),
    /// As it is.
    Arguments(Vec<String>),
    /// A part of instep, by the agent's own program: whatever the task's Python has under that name.
    Own {
        /// What follows the program's name.
        instep: Vec<String>,
    },
}

/// A pair of keys, each as the text of a file of OpenSSH's.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SshKeys {
    /// The secret.
    pub private: String,
    /// What opens to it.
    pub public: String,
}

impl fmt::Debug for SshKeys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SshKeys").field("public", &self.public).finish_non_exhaustive()
    }
}

/// How one speaks with what a task serves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// With requests and answers.
    #[default]
    Http,
    /// With bytes.
    Tcp,
}

/// Something that a task serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Where it listens.
    pub address: String,
    /// Where it listens.
    pub port: u16,
    /// What answers as soon as it is ready, over HTTP.
    pub path: String,
    /// How.
    #[serde(default)]
    pub protocol: Protocol,
}

/// A user of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct RunAs {
    pub uid: u32,
    pub gid: u32,
    /// What the two are called where the machine has no names for them; empty if nobody has said.
    #[serde(default)]
    pub user: String,
    #[serde(default)]
    pub group: String,
}

impl RunAs {
    /// By numbers alone.
    pub fn unnamed(uid: u32, gid: u32) -> RunAs {
        RunAs { uid, gid, user: String::new(), group: String::new() }
    }
}

/// A group of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunGroup {
    /// Its number.
    pub gid: u32,
    /// What it is called where the machine has no name for it; empty if nobody has said.
    #[serde(default)]
    pub name: String,
}

/// A folder of the machine, seen elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// On the machine; absolute.
    pub host_path: String,
    /// In the task; relative ones lie in its working directory.
    pub task_path: String,
    /// Whether it cannot be written.
    pub read_only: bool,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn start() -> serde_json::Value {
        json!({
            "share": {"allocation": "7.u.1", "resources": "r"}, "task": "7.u", "devices": [], "container": "c",
            "environment": {}, "user_environment": [], "entrypoint": "true", "token": "t", "context": false,
            "rendezvous": false, "run_as": null, "mounts": [], "notes": [], "decided_at": "2026-01-01T00:00:00Z",
        })
    }

    #[test]
    fn an_order_of_an_older_master_names_no_group_and_no_shared_memory() {
        let order: Start = serde_json::from_value(start()).unwrap();
        assert_eq!((order.run_group, order.shared_memory_bytes), (None, None));
        let mut nothing = start();
        nothing["shared_memory_bytes"] = json!(0);
        serde_json::from_value::<Start>(nothing).expect_err("a tmpfs of 0 bytes would be one without a limit");
    }

    proptest! {
        #[test]
        fn any_group_and_any_size_is_read_as_it_was_written(gid: u32, name: String, bytes in 1_u64..) {
            let mut said = start();
            said["run_group"] = json!({"gid": gid, "name": name});
            said["shared_memory_bytes"] = json!(bytes);
            let order: Start = serde_json::from_value(said).unwrap();
            prop_assert_eq!(&order.run_group, &Some(RunGroup { gid, name }));
            prop_assert_eq!(order.shared_memory_bytes.map(NonZeroU64::get), Some(bytes));
            let order = Order::Start(Box::new(order));
            let text = serde_json::to_string(&order).unwrap();
            prop_assert_eq!(serde_json::from_str::<Order>(&text).unwrap(), order);
        }
    }

    #[test]
    fn messages_say_what_they_are() {
        let share = Share { allocation: "7.u.1".to_owned(), resources: "r".to_owned() };
        let exited = Report::Exited { share: share.clone(), exit: Exit::code(1).into() };
        let text = serde_json::to_string(&exited).unwrap();
        assert_eq!(
            text,
            r#"{"type":"exited","share":{"allocation":"7.u.1","resources":"r"},"exit":{"kind":"code","code":1}}"#
        );
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), exited);
        let goodput = Some(NodeGoodput { ranks: 2, wall_seconds: 1.5, ..NodeGoodput::default() });
        for exit in [Exit::Killed, Exit::Code { code: 1, why: Some("x".to_owned()) }] {
            let ending = Ending { exit, goodput };
            let text = serde_json::to_string(&ending).unwrap();
            assert_eq!(serde_json::from_str::<Ending>(&text).unwrap(), ending, "{text}");
            assert_eq!(serde_json::from_str::<Exit>(&text).unwrap(), ending.exit, "a master that knows no goodput");
        }
        let stop = Order::Stop { share, grace_seconds: 30, why: "paused".to_owned() };
        assert_eq!(serde_json::from_str::<Order>(&serde_json::to_string(&stop).unwrap()).unwrap(), stop);
    }
}
