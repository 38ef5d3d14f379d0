//! Asks other launchers of the job whether they lead it, follow a coordinator, or search for one.

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use instep_policy::election::{Answer, Claim, HostPort};
use instep_policy::membership::LauncherId;

use crate::control::channel::Channel;
use crate::control::token::JobToken;
use crate::control::{self, FromCoordinator, LeaderQuery, LeaderReply, ToCoordinator};
use crate::rendezvous::endpoint::{self, ConnectError};

/// Long enough for a slow network, short enough that the silent do not hold up the others.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Where was asked, which launcher was expected there, and the answer.
pub(crate) type QueryResult = (HostPort, Option<LauncherId>, Answer);

/// Who asks: a launcher of this job.
#[derive(Debug, Clone)]
pub(crate) struct Asker {
    pub(crate) run_id: String,
    pub(crate) token: Option<JobToken>,
}

/// Asks all at once, so that the silent cost [`TIMEOUT`] together.
pub(crate) fn query_all(
    targets: Vec<(HostPort, Option<LauncherId>)>,
    asker: &Asker,
    claim: Option<(Claim, u16)>,
) -> Vec<QueryResult> {
    let query = LeaderQuery { protocol: control::PROTOCOL, run_id: asker.run_id.clone(), claim };
    let question = control::encode(&ToCoordinator::LeaderQuery(query));
    std::thread::scope(|scope| {
        let asked: Vec<_> = targets
            .into_iter()
            .map(|(address, expected)| {
                let question = &question;
                let thread = {
                    let address = address.clone();
                    std::thread::Builder::new()
                        .name("instep-query".to_owned())
                        .spawn_scoped(scope, move || query_one(&address, expected, asker, question))
                };
                (address, expected, thread)
            })
            .collect();
        let answer = |thread: std::io::Result<std::thread::ScopedJoinHandle<'_, Answer>>| {
            // Without a thread nobody was asked, which is no answer.
            thread.ok().and_then(|thread| thread.join().ok()).unwrap_or(Answer::Silent)
        };
        asked.into_iter().map(|(address, expected, thread)| (address, expected, answer(thread))).collect()
    })
}

fn query_one(address: &HostPort, expected: Option<LauncherId>, asker: &Asker, question: &[u8]) -> Answer {
    let mut stream = match endpoint::try_connect(&address.host, address.port, TIMEOUT) {
        Ok(stream) => stream,
        Err(ConnectError::Refused { .. }) => return Answer::Ended,
        Err(_) => return Answer::Silent,
    };
    match exchange(&mut stream, asker, question) {
        Some(LeaderReply::Leading(claim)) if expected.is_some_and(|expected| expected != claim.launcher) => {
            // Another launcher has taken the port since: whoever had it is gone. It is asked again under its own name.
            if claim.round.is_some() { Answer::Leading(claim) } else { Answer::Ended }
        }
        Some(LeaderReply::Leading(claim)) => Answer::Leading(claim),
        Some(LeaderReply::Following(address)) => Answer::Following(address),
        Some(LeaderReply::Searching { round }) => Answer::Searching(round),
        None => Answer::Silent,
    }
}

fn exchange(stream: &mut TcpStream, asker: &Asker, question: &[u8]) -> Option<LeaderReply> {
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    stream.set_write_timeout(Some(TIMEOUT)).ok()?;
    let mut channel = Channel::open(stream, asker.token.as_ref()).ok()?;
    channel.write(stream, question).ok()?;
    let (mut arrived, mut received) = (Vec::new(), Vec::new());
    let mut buffer = [0u8; 1024];
    loop {
        match control::decode::<FromCoordinator>(&received) {
            Ok(Some((FromCoordinator::LeaderReply(reply), _))) => return Some(reply),
            Ok(None) => {}
            _ => return None,
        }
        match stream.read(&mut buffer) {
            Ok(count) if count > 0 => {
                arrived.extend_from_slice(&buffer[..count]);
                channel.inbound.unwrap(&mut arrived, &mut received).ok()?;
            }
            _ => return None,
        }
    }
}
