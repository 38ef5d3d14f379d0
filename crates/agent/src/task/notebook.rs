//! Whether somebody works in a notebook. JupyterLab is asked for its kernels and terminals; which of them count says the
//! configuration (`notebook_idle_type`). The master ends a notebook that is not used for its `idle_timeout`.
//!
//! A kernel that computes always counts: nobody loses a long cell because they went home.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use instep_api::link::Service;
use serde::Deserialize;

use super::listener::{self, Unusable};

/// How long one question may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of an answer, head and all.
const LONGEST_ANSWER: u64 = 1 << 20;

/// What is looked at, and how often.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    counts: Counts,
    token: String,
    /// Between two looks: several of them fit into the time after which the notebook is ended.
    pub pause: Duration,
}

/// What counts as use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counts {
    /// That there is a kernel or a terminal.
    KernelsOrTerminals,
    /// That somebody is connected to a kernel.
    KernelConnections,
    /// That something has happened in one since the last look.
    Activity,
}

/// A kernel or a terminal, as JupyterLab describes it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Running {
    execution_state: String,
    connections: u64,
    last_activity: String,
}

impl Rule {
    /// The one of a task's variables, if it is a notebook that can be idle.
    pub fn of(variables: &BTreeMap<String, String>) -> Option<Rule> {
        let counts = match variables.get("NOTEBOOK_IDLE_TYPE")?.as_str() {
            "kernel_connections" => Counts::KernelConnections,
            "activity" => Counts::Activity,
            _ => Counts::KernelsOrTerminals,
        };
        let limit: u64 = variables.get("NOTEBOOK_IDLE_SECONDS")?.parse().ok()?;
        let pause = Duration::from_secs(limit.div_ceil(4).clamp(1, 15));
        Some(Rule { counts, token: variables.get("JUPYTER_TOKEN")?.clone(), pause })
    }

    /// Whether it is used; `latest` is the last thing that had happened in it at the look before.
    pub fn is_used(&self, service: &Service, latest: &mut Option<String>) -> Result<bool, Unusable> {
        let kernels = self.running(service, "api/kernels")?;
        let terminals = self.running(service, "api/terminals").unwrap_or_default();
        Ok(is_used(self.counts, &kernels, &terminals, latest))
    }

    fn running(&self, service: &Service, what: &str) -> Result<Vec<Running>, Unusable> {
        let path = format!("{}{what}", service.path);
        let answer = ask(service, &path, Some(&self.token))?;
        let body = body(&answer).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        Ok(serde_json::from_slice(body).map_err(io::Error::from)?)
    }
}

fn is_used(counts: Counts, kernels: &[Running], terminals: &[Running], latest: &mut Option<String>) -> bool {
    // They are times in one format, so that the later one is the greater text.
    let last = kernels.iter().chain(terminals).map(|one| one.last_activity.clone()).max();
    let before = std::mem::replace(latest, last.clone());
    let computes = kernels.iter().any(|kernel| kernel.execution_state == "busy");
    computes
        || match counts {
            Counts::KernelsOrTerminals => !kernels.is_empty() || !terminals.is_empty(),
            Counts::KernelConnections => kernels.iter().any(|kernel| kernel.connections > 0),
            Counts::Activity => last.is_some() && last != before,
        }
}

/// Connects to a task, if it is the task's own program that listens.
pub fn connect(service: &Service) -> Result<TcpStream, Unusable> {
    let address = listener::address(service)?;
    listener::check(address)?;
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    // Nobody has taken the place of the program that was seen.
    listener::check(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Asks a task for a page. The answer ends with the connection.
pub fn ask(service: &Service, path: &str, token: Option<&str>) -> Result<Vec<u8>, Unusable> {
    let mut stream = connect(service)?;
    let address = stream.peer_addr()?;
    let shown = token.map(|token| format!("Authorization: token {token}\r\n")).unwrap_or_default();
    // The older version knows no answers in chunks.
    let question = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n{shown}Connection: close\r\n\r\n");
    stream.write_all(question.as_bytes())?;
    let mut answer = Vec::new();
    match stream.take(LONGEST_ANSWER).read_to_end(&mut answer) {
        // Whoever keeps the connection open has said enough.
        Err(error) if answer.is_empty() => Err(error.into()),
        _ => Ok(answer),
    }
}

/// Whether an answer begins as one does that is no failure.
pub fn is_fine(answer: &[u8]) -> bool {
    status(answer).is_some_and(|status| (200..500).contains(&status))
}

fn status(answer: &[u8]) -> Option<u16> {
    let digits = answer.strip_prefix(b"HTTP/1.")?.get(2..5)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// What an answer says, if it is one to the question.
fn body(answer: &[u8]) -> Option<&[u8]> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    (status(answer) == Some(200)).then_some(&answer[end + 4..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(state: &str, connections: u64, last: &str) -> Running {
        Running { execution_state: state.to_owned(), connections, last_activity: last.to_owned() }
    }

    #[test]
    fn what_counts_as_use_is_configured() {
        use Counts::{Activity, KernelConnections, KernelsOrTerminals};
        let idle = [one("idle", 0, "1")];
        for (counts, kernels, terminals, used) in [
            (KernelsOrTerminals, &[][..], &[][..], false),
            (KernelsOrTerminals, &idle, &[], true),
            (KernelsOrTerminals, &[], &idle, true),
            (KernelConnections, &idle, &idle, false),
            (KernelConnections, &[one("idle", 1, "1")], &[], true),
            (KernelConnections, &[one("busy", 0, "1")], &[], true),
            (Activity, &idle, &[], false),
            (Activity, &[one("idle", 0, "2")], &[], true),
            (Activity, &idle, &[one("", 0, "2")], true),
            (Activity, &[one("busy", 0, "1")], &[], true),
            (Activity, &[], &[], false),
        ] {
            let mut latest = Some("1".to_owned());
            assert_eq!(is_used(counts, kernels, terminals, &mut latest), used, "{counts:?} {kernels:?} {terminals:?}");
        }
    }

    #[test]
    fn several_looks_fit_into_the_time_that_a_notebook_has() {
        let rule = |seconds: &str| {
            let all = [("NOTEBOOK_IDLE_TYPE", "activity"), ("JUPYTER_TOKEN", "t"), ("NOTEBOOK_IDLE_SECONDS", seconds)];
            Rule::of(&all.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
        };
        assert_eq!(rule("3").map(|rule| (rule.counts, rule.pause.as_secs())), Some((Counts::Activity, 1)));
        assert_eq!(rule("3600").map(|rule| rule.pause.as_secs()), Some(15));
        assert_eq!((rule("never"), Rule::of(&BTreeMap::new())), (None, None));
    }

    proptest! {
        #[test]
        fn any_answer_is_judged(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut answer = b"HTTP/1.0 200 OK\r\n\r\n".to_vec();
            for answer in [bytes.clone(), { answer.extend(&bytes); answer }] {
                let _ = is_fine(&answer);
                let _ = body(&answer).map(serde_json::from_slice::<Vec<Running>>);
            }
        }
    }
}
