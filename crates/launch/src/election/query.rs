//! Asking other launchers of the job where they stand.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use instep_policy::membership::LauncherId;
use instep_policy::succession::{Answer, Claim, Place};

use crate::control::{self, Contact, FromCoordinator, Stand, ToCoordinator};
use crate::rendezvous::endpoint::{self, Obstacle};

/// Long enough for a slow network, short enough that the silent do not hold up the others.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// One who was asked, who was expected there, and what came of it.
pub(crate) type Asked = (Place, Option<LauncherId>, Answer);

/// Asks all at once, so that the silent cost [`PATIENCE`] together.
pub(crate) fn ask_all(
    targets: Vec<(Place, Option<LauncherId>)>,
    run_id: &str,
    claim: Option<(Claim, u16)>,
) -> Vec<Asked> {
    let contact = Contact { protocol: control::PROTOCOL, run_id: run_id.to_owned(), claim };
    let question = control::encode(&ToCoordinator::Contact(contact));
    std::thread::scope(|scope| {
        let asked: Vec<_> = targets
            .into_iter()
            .map(|(place, expected)| {
                let question = &question;
                let asking = {
                    let place = place.clone();
                    std::thread::Builder::new()
                        .name("instep-ask".to_owned())
                        .spawn_scoped(scope, move || ask(&place, expected, question))
                };
                (place, expected, asking)
            })
            .collect();
        let answer = |asking: std::io::Result<std::thread::ScopedJoinHandle<'_, Answer>>| {
            // Without a thread nobody was asked, which is no answer.
            asking.ok().and_then(|thread| thread.join().ok()).unwrap_or(Answer::Silent)
        };
        asked.into_iter().map(|(place, expected, asking)| (place, expected, answer(asking))).collect()
    })
}

fn ask(place: &Place, expected: Option<LauncherId>, question: &[u8]) -> Answer {
    let mut stream = match endpoint::try_connect(&place.address, place.port, PATIENCE) {
        Ok(stream) => stream,
        Err(Obstacle::Refused { .. }) => return Answer::Ended,
        Err(_) => return Answer::Silent,
    };
    match exchange(&mut stream, question) {
        Some(Stand::Leading(claim)) if expected.is_some_and(|expected| expected != claim.launcher) => {
            // Another launcher has taken the port since: whoever had it is gone. It is asked again under its own name.
            if claim.round.is_some() { Answer::Leading(claim) } else { Answer::Ended }
        }
        Some(Stand::Leading(claim)) => Answer::Leading(claim),
        Some(Stand::Following(place)) => Answer::Following(place),
        Some(Stand::Searching { round }) => Answer::Searching(round),
        None => Answer::Silent,
    }
}

fn exchange(stream: &mut TcpStream, question: &[u8]) -> Option<Stand> {
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(question).ok()?;
    let mut received = Vec::new();
    let mut buffer = [0u8; 1024];
    loop {
        match control::decode::<FromCoordinator>(&received) {
            Ok(Some((FromCoordinator::Stand(stand), _))) => return Some(stand),
            Ok(None) => {}
            _ => return None,
        }
        match stream.read(&mut buffer) {
            Ok(count) if count > 0 => received.extend_from_slice(&buffer[..count]),
            _ => return None,
        }
    }
}
