//! Tells the master when what a task serves can be used, for which it is asked until it answers; and of a notebook,
//! whether it is used. Where somebody else's program has its port, nothing is asked, and the task is to end.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use instep_api::link::{Protocol, Service};

use super::listener::{self, Unusable};
use super::master;
use super::notebook::{Rule, ask, connect, is_fine};
use crate::order::TaskOrder;

/// Between two questions.
const ASK_AGAIN: Duration = Duration::from_millis(300);

/// Asks in the background. Dropping it ends that, at the latest after the question that is under way.
pub struct Watch {
    service: Service,
    over: Arc<AtomicBool>,
    /// Whether it could be used, or why it never can.
    found: Arc<OnceLock<Result<(), String>>>,
}

impl Watch {
    /// Begins, if the task serves something.
    pub fn start(order: &TaskOrder) -> io::Result<Option<Watch>> {
        let Some(service) = order.start.service.clone() else { return Ok(None) };
        let (over, found) = (Arc::new(AtomicBool::new(false)), Arc::new(OnceLock::new()));
        let watch = Watch { service: service.clone(), over: Arc::clone(&over), found: Arc::clone(&found) };
        let order = order.clone();
        thread::Builder::new().name("instep-task-service".to_owned()).spawn(move || {
            while !over.load(Ordering::Relaxed) {
                match answers(&service) {
                    // Either fails for as long as the other end is not there; the task ends if that takes too long.
                    Ok(true) if master::report_ready(&order).is_ok() => {
                        let _ = found.set(Ok(()));
                        return watch_use(&order, &service, &over);
                    }
                    Ok(_) | Err(Unusable::Unanswered(_)) => thread::sleep(ASK_AGAIN),
                    Err(taken @ Unusable::Taken { .. }) => {
                        let _ = found.set(Err(taken.to_string()));
                        return;
                    }
                }
            }
        })?;
        Ok(Some(watch))
    }

    /// Why it can never be used: somebody else's program was found at its port.
    pub fn failure(&self) -> Option<&str> {
        self.found.get().and_then(|found| found.as_ref().err()).map(String::as_str)
    }

    /// The same once its program has failed, which may have been before the port was looked at.
    pub fn failure_at_the_end(&self) -> Option<String> {
        match self.found.get() {
            Some(found) => found.clone().err(),
            None => {
                let taken = listener::address(&self.service).ok().map(listener::check)?.err()?;
                matches!(taken, Unusable::Taken { .. }).then(|| taken.to_string())
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Tells the master of a notebook whenever it is used. What cannot be found out or told is so at the next look.
fn watch_use(order: &TaskOrder, service: &Service, ended: &AtomicBool) {
    let Some(rule) = Rule::of(&order.start.environment) else { return };
    let mut latest = None;
    while !ended.load(Ordering::Relaxed) {
        if rule.is_used(service, &mut latest).unwrap_or(false) {
            let _ = master::report_used(order);
        }
        thread::sleep(rule.pause);
    }
}

/// Whether a question is answered, with anything but an error of the server's own; or a connection, where there are no
/// questions.
fn answers(service: &Service) -> Result<bool, Unusable> {
    match service.protocol {
        Protocol::Http => Ok(is_fine(&ask(service, &service.path, None)?)),
        Protocol::Tcp => connect(service).map(|_| true),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_service_is_ready_when_it_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let service =
            Service { address: "127.0.0.1".to_owned(), port, path: "/proxy/t/".to_owned(), protocol: Protocol::Http };
        for (answer, fine) in
            [("HTTP/1.1 200 OK\r\n\r\n", true), ("HTTP/1.0 503 Later\r\n\r\n", false), ("what", false)]
        {
            let asked = thread::scope(|scope| {
                let asking = scope.spawn(|| answers(&service));
                let (mut stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                assert_eq!(line, "GET /proxy/t/ HTTP/1.0\r\n");
                stream.write_all(answer.as_bytes()).unwrap();
                drop(stream);
                asking.join().unwrap()
            });
            assert_eq!(asked.unwrap_or(false), fine, "{answer}");
        }
        let bytes = Service { protocol: Protocol::Tcp, ..service.clone() };
        assert!(answers(&bytes).unwrap());
        drop(listener);
        assert!(answers(&service).is_err() && answers(&bytes).is_err());
    }
}
