//! Which of several masters is asked: one that answers.
//!
//! A process that is stopped still accepts connections, and says nothing on them. So of several masters one is chosen that
//! has just answered, if only the question for its health, for which a few seconds suffice; what is then asked may take
//! long. The only master is not chosen: there is no other.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ureq::Agent;
use ureq::http::Request;
use ureq::unversioned::transport::DefaultConnector;

use crate::address::{Address, Addresses};
use crate::error::{Error, Result};
use crate::resolver::NameResolver;
use crate::sync::lock;
use crate::tls::trusted;

/// How long the question for a master's health may take, from the connection to the answer.
const HEALTH: Duration = Duration::from_secs(3);
/// For how long an answer shows that a master will answer again.
const KNOWN: Duration = Duration::from_secs(5);
/// Bytes of what a master says of its health.
const LONGEST_HEALTH: u64 = 64 << 10;

/// The masters of a cluster, and which of them is asked.
pub struct Masters {
    agent: Agent,
    addresses: Addresses,
    turn: AtomicUsize,
    /// When the one that is asked has answered, if it has.
    answered: Mutex<Option<Instant>>,
}

impl std::fmt::Debug for Masters {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Masters({}, now {})", self.addresses, self.current())
    }
}

impl Masters {
    /// Masters that are reached without a proxy; `certificates` are trusted instead of the public ones.
    pub fn direct(addresses: Addresses, certificates: Option<&Path>) -> Result<Masters> {
        let config = Agent::config_builder().http_status_as_error(false).max_redirects(0).proxy(None);
        let mut config = config.max_redirects_will_error(false);
        if let Some(tls) = trusted(&addresses, certificates)? {
            config = config.tls_config(tls);
        }
        let agent = Agent::with_parts(config.build(), DefaultConnector::default(), NameResolver::default());
        Ok(Masters::of(addresses, agent))
    }

    /// Masters that are reached as everything else is.
    pub(crate) fn of(addresses: Addresses, agent: Agent) -> Masters {
        Masters { agent, addresses, turn: AtomicUsize::new(0), answered: Mutex::new(None) }
    }

    /// All of them.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// The one that is asked at the moment.
    pub fn current(&self) -> &Address {
        self.addresses.at(self.turn.load(Ordering::Relaxed))
    }

    /// One that answers: the one that did last, else the next. One that is well goes before one that only answers, which
    /// may say why it cannot do more. Whoever comes while one is looked for waits for what is found.
    pub fn choose(&self) -> Result<&Address> {
        let mut answered = lock(&self.answered);
        if self.addresses.count() == 1 || answered.is_some_and(|at| at.elapsed() < KNOWN) {
            return Ok(self.current());
        }
        let begin = self.turn.load(Ordering::Relaxed) % self.addresses.count();
        let (mut unwell, mut broken) = (None, None);
        for turn in (begin..begin + self.addresses.count()).map(|turn| turn % self.addresses.count()) {
            match self.is_well(self.addresses.at(turn)) {
                Ok(true) => {
                    *answered = Some(Instant::now());
                    return Ok(self.turn_to(turn));
                }
                Ok(false) => unwell = unwell.or(Some(turn)),
                Err(source) => broken = Some((turn, source)),
            }
        }
        match (unwell, broken) {
            (None, Some((turn, source))) => {
                Err(Error::Unreachable { address: self.addresses.at(turn).clone(), source: Box::new(source) })
            }
            (unwell, _) => Ok(self.turn_to(unwell.unwrap_or(begin))),
        }
    }

    fn turn_to(&self, turn: usize) -> &Address {
        self.turn.store(turn, Ordering::Relaxed);
        self.addresses.at(turn)
    }

    /// Notes that this one has answered.
    pub(crate) fn note_answer(&self, of: &Address) {
        if self.addresses.count() > 1 {
            let mut answered = lock(&self.answered);
            if self.current() == of {
                *answered = Some(Instant::now());
            }
        }
    }

    /// Turns to the next one, as this one cannot be reached or has no leader; unless another is asked by now.
    pub fn pass_on(&self, from: &Address) {
        let mut answered = lock(&self.answered);
        if self.current() == from {
            *answered = None;
            self.turn.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a master says nothing any more while another one answers: what it is asked it may never answer.
    pub fn has_lost(&self, master: &Address) -> bool {
        let is_other = |now: &Address| now.authority() != master.authority();
        self.addresses.count() > 1 && self.choose().is_ok_and(is_other) && self.is_well(master).is_err()
    }

    /// Whether a master says that it answers; an error if it says nothing.
    fn is_well(&self, master: &Address) -> std::result::Result<bool, ureq::Error> {
        let request = Request::get(format!("{master}/health")).body(())?;
        let request = self.agent.configure_request(request).timeout_global(Some(HEALTH)).build();
        let mut response = match self.agent.run(request) {
            Ok(response) => response,
            // Whoever asks it something else is told in what way it is no master.
            Err(ureq::Error::Protocol(_)) => return Ok(false),
            // Nothing else was sent.
            Err(ureq::Error::Timeout(_)) => return Err(ureq::Error::Timeout(ureq::Timeout::Connect)),
            Err(error) => return Err(error),
        };
        // Read so that the connection can be used again.
        let _ = response.body_mut().with_config().limit(LONGEST_HEALTH).read_to_vec();
        Ok(response.status().as_u16() == 200)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A master that answers every connection so, and its address.
    fn answering(status: u16) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let asked = BufReader::new(connection.try_clone().unwrap()).lines();
                asked.map_while(std::io::Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
                let _ = write!(connection, "HTTP/1.1 {status} x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            }
        });
        address
    }

    fn chosen(masters: &[&str]) -> Option<String> {
        let masters = Masters::direct(masters.join(",").parse().unwrap(), None).unwrap();
        let chosen = masters.choose().ok().map(|address| address.as_str().trim_start_matches("http://").to_owned());
        assert_eq!(chosen, masters.choose().ok().map(|again| again.as_str().trim_start_matches("http://").to_owned()));
        chosen
    }

    #[test]
    fn one_that_is_well_goes_before_one_that_answers_and_that_before_one_that_is_silent() {
        let frozen = TcpListener::bind("127.0.0.1:0").unwrap();
        let (well, unwell, silent) = (answering(200), answering(503), frozen.local_addr().unwrap().to_string());
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        assert_eq!(chosen(&[&gone, &silent, &unwell, &well]), Some(well.clone()));
        assert_eq!(chosen(&[&gone, &unwell]), Some(unwell));
        assert_eq!(chosen(&[&gone, &gone]), None);
        assert_eq!(chosen(&[&silent]), Some(silent), "the only one");
    }

    #[test]
    fn one_that_does_not_answer_is_certain_not_to_have_been_asked() {
        let frozen = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = frozen.local_addr().unwrap();
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let masters = Masters::direct(format!("{gone},{address}").parse().unwrap(), None).unwrap();
        let error = masters.choose().unwrap_err();
        assert!(
            matches!(&error, Error::Unreachable { address: last, .. } if last.as_str() == format!("http://{address}"))
        );
        assert!(error.is_unsent(), "{error:?}");
    }
}
