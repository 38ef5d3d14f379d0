//! Tells the master when what a task serves can be used: it is asked until it answers.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use instep_api::link::Service;

use super::master;
use crate::order::TaskOrder;

/// Between two questions.
const ASK_AGAIN: Duration = Duration::from_millis(300);
/// How long one question may take.
const PATIENCE: Duration = Duration::from_secs(5);

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
                    return;
                }
                thread::sleep(ASK_AGAIN);
            }
        })?;
        Ok(Some(Watch { over }))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Whether a question is answered, with anything but an error of the server's own.
fn answers(service: &Service) -> io::Result<bool> {
    let mut addresses = (service.address.as_str(), service.port).to_socket_addrs()?;
    let address = addresses.next().ok_or_else(|| io::Error::other("the address does not resolve"))?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let path = &service.path;
    let question = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(question.as_bytes())?;
    let mut head = [0; 16];
    let mut length = 0;
    while length < 12 {
        match stream.read(&mut head[length..])? {
            0 => break,
            read => length += read,
        }
    }
    Ok(is_fine(&head[..length]))
}

/// Whether an answer begins as one does that is no failure.
fn is_fine(head: &[u8]) -> bool {
    let status = head.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5));
    let status = status.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u16>().ok());
    status.is_some_and(|status| (200..500).contains(&status))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_service_is_ready_when_it_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let service = Service { address: "127.0.0.1".to_owned(), port, path: "/proxy/t/".to_owned() };
        for (answer, fine) in
            [("HTTP/1.1 200 OK\r\n\r\n", true), ("HTTP/1.0 503 Later\r\n\r\n", false), ("what", false)]
        {
            let asked = thread::scope(|scope| {
                let asking = scope.spawn(|| answers(&service));
                let (mut stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                assert_eq!(line, "GET /proxy/t/ HTTP/1.1\r\n");
                stream.write_all(answer.as_bytes()).unwrap();
                drop(stream);
                asking.join().unwrap()
            });
            assert_eq!(asked.unwrap_or(false), fine, "{answer}");
        }
        drop(listener);
        assert!(answers(&service).is_err());
    }

    proptest! {
        #[test]
        fn any_answer_is_judged(bytes in proptest::collection::vec(any::<u8>(), 0..16)) {
            let _ = is_fine(&bytes);
        }
    }
}
