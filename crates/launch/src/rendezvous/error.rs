//! Why a node cannot join its job.

use std::io;
use std::time::Duration;

use super::endpoint::{ConnectError, Endpoint};

/// Why this node cannot take part.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are what the messages say")]
pub enum RendezvousError {
    /// The port this node has to serve is taken.
    #[error("port {port} is already in use on this machine")]
    PortInUse {
        port: u16,
        /// It was given as part of an endpoint.
        endpoint: bool,
    },
    /// The port this node has to serve cannot be opened.
    #[error("cannot listen on port {port}")]
    Listen { port: u16, source: io::Error },
    /// Nobody answers at the endpoint.
    #[error("cannot reach the first node within {} s: {connect_error}", timeout.as_secs_f64())]
    Unreachable { timeout: Duration, connect_error: ConnectError },
    /// The coordinator refuses this node.
    #[error("the first node at {endpoint} refuses this node: {reason}")]
    Refused { endpoint: Endpoint, reason: String },
    /// The endpoint is not this job's, or the job has another token.
    #[error("the node at {endpoint} did not prove that it has this job's token, and refuses this node")]
    NotProved { endpoint: Endpoint },
    /// The endpoint belongs to Python's torchrun.
    #[error("the endpoint {endpoint} is served by Python's torchrun, whose c10d rendezvous cannot be shared")]
    Torchrun { endpoint: Endpoint },
    /// The endpoint belongs to Python's torchrun, which replaces no ranks.
    #[error(
        "the endpoint {endpoint} is served by Python's torchrun, which cannot replace single ranks (--recover step)"
    )]
    TorchrunRecovery { endpoint: Endpoint },
    /// Neither a coordinator nor a torchrun listens there.
    #[error("the server at {endpoint} is not the rendezvous of a job ({what})")]
    NotACoordinator { endpoint: Endpoint, what: String },
    /// Whatever listens there has not opened a channel with the job's token.
    #[error("the server at {endpoint} is not a node of this job that has its token ({what})")]
    NoChannel { endpoint: Endpoint, what: String },
    /// Launchers of the job answer, and none of them leads it.
    #[error("no node leads the job at {endpoint} after {} s", timeout.as_secs_f64())]
    NoLeader {
        /// Where was asked last.
        endpoint: Endpoint,
        timeout: Duration,
    },
    /// A signal arrived meanwhile.
    #[error("interrupted while waiting for the first node")]
    Interrupted,
    /// Something local went wrong.
    #[error("cannot set up the rendezvous")]
    System(#[from] io::Error),
}

impl RendezvousError {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            RendezvousError::PortInUse { endpoint: false, .. } => {
                "another job may use it: choose another --master-port, or leave it out on a single node"
            }
            RendezvousError::PortInUse { endpoint: true, .. } => {
                "another job may use it: give all nodes another port in --rdzv-endpoint"
            }
            RendezvousError::Listen { .. } => "choose a port above 1023 that is free",
            RendezvousError::Unreachable { connect_error, .. } => connect_error.hint(),
            RendezvousError::Refused { .. } => {
                "the output of the first node says what differs; start all nodes with the same options, apart from --node-rank"
            }
            RendezvousError::NotProved { .. } => {
                "give all nodes the same --job-token-file, or none, and the same version of instep; torchrun's nodes cannot have \
                 a token"
            }
            RendezvousError::Torchrun { .. } => {
                "run instep on all nodes, or use --rdzv-backend static, which can be shared with torchrun"
            }
            RendezvousError::TorchrunRecovery { .. } => "run instep on all nodes, or leave out --recover step",
            RendezvousError::NotACoordinator { .. } => "choose another port for the rendezvous, the same on all nodes",
            RendezvousError::NoChannel { .. } => {
                "check the endpoint; give all nodes the same --job-token-file and the same version of instep; torchrun's nodes \
                 cannot have a token"
            }
            RendezvousError::NoLeader { .. } => {
                "the job has lost its nodes: stop what is left of it and start it again"
            }
            RendezvousError::Interrupted => "start it again",
            RendezvousError::System(_) => "run `instep doctor` to check this machine",
        }
    }
}
