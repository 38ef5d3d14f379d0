//! Tells the master when what a task serves can be used, for which it is asked until it answers; and of a notebook,
//! whether it is used.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use instep_api::link::{Protocol, Service};

use super::master;
use super::notebook::{Rule, ask, connect, is_fine};
use crate::order::TaskOrder;

/// Between two questions.
const ASK_AGAIN: Duration = Duration::from_millis(300);

/// Asks in the background. Dropping it ends that, at the latest after the question that is under way.
pub struct Watch {
    over: Arc<AtomicBool>,
}

impl Watch {
    /// Begins, if the task serves something.
    pub fn start(order: &TaskOrder) -> io::Result<Option<Watch>> {
        let Some(service) = order.start.service.clone() else { return Ok(None) };
        let over = Arc::new(AtomicBool::new(false));
        let (order, ended) = (order.clone(), Arc::clone(&over));
        thread::Builder::new().name("instep-task-service".to_owned()).spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                // Either fails for as long as the other end is not there; the task ends if that takes too long.
                if answers(&service).unwrap_or(false) && master::report_ready(&order).is_ok() {
                    break;
                }
                thread::sleep(ASK_AGAIN);
            }
            watch_use(&order, &service, &ended);
        })?;
        Ok(Some(Watch { over }))
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
fn answers(service: &Service) -> io::Result<bool> {
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
