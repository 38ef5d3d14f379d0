//! Breaks connections to a master that was left: who waits for its answer would wait for as long as an answer may take.
//!
//! A process that is stopped, or a host that is gone, breaks no connection. So of several masters one that says nothing for a
//! few seconds is asked for its health; if it does not say that either, and another one does, its answer is not waited for
//! any longer.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ureq::Error;
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport};

use crate::address::Address;
use crate::masters::Masters;

/// After so much silence a master is asked for its health.
const QUIET: Duration = Duration::from_secs(5);

/// Watches the connections that others make.
#[derive(Debug)]
pub(crate) struct Watch(pub(crate) Arc<Masters>);

impl<In: Transport> Connector<In> for Watch {
    type Out = Watched<In>;

    fn connect(&self, details: &ConnectionDetails, chained: Option<In>) -> Result<Option<Watched<In>>, Error> {
        let authority = details.uri.authority().map(ToString::to_string).unwrap_or_default();
        // Below a proxy's connections to masters lie those to the proxy.
        let master = self.0.addresses().all().find(|master| master.authority() == authority);
        let watched = master.filter(|_| self.0.addresses().count() > 1).map(|to| (Arc::clone(&self.0), to.clone()));
        Ok(chained.map(|inner| Watched { inner, watched }))
    }
}

/// A connection, to one of several masters if they are there.
#[derive(Debug)]
pub(crate) struct Watched<Inner> {
    inner: Inner,
    watched: Option<(Arc<Masters>, Address)>,
}

impl<Inner: Transport> Transport for Watched<Inner> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.inner.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let Some((masters, master)) = &self.watched else { return self.inner.await_input(timeout) };
        let most = timeout.for_read();
        let begin = Instant::now();
        loop {
            let left = most.after.saturating_sub(begin.elapsed());
            if left <= QUIET {
                return self.inner.await_input(NextTimeout { after: left.into(), ..most });
            }
            match self.inner.await_input(NextTimeout { after: QUIET.into(), ..most }) {
                Err(Error::Timeout(_)) if masters.has_lost(master) => {
                    let why = "it says nothing, and another master answers";
                    return Err(Error::Io(io::Error::new(io::ErrorKind::TimedOut, why)));
                }
                Err(Error::Timeout(_)) => {}
                outcome => return outcome,
            }
        }
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use serde_json::{Value, json};

    use crate::{Client, Settings};

    use super::*;

    /// The first line of a request.
    fn asked(connection: &TcpStream) -> String {
        let lines = BufReader::new(connection.try_clone().unwrap()).lines().map_while(io::Result::ok);
        lines.take_while(|line| !line.is_empty()).reduce(|first, _| first).unwrap_or_default()
    }

    fn answer(mut connection: &TcpStream, name: &str) {
        let body = json!({"name": name}).to_string();
        let head = "HTTP/1.1 200 x\r\nConnection: close\r\nContent-Length:";
        write!(connection, "{head} {}\r\n\r\n{body}", body.len()).unwrap();
    }

    /// A master that is well for ever, and takes so long for everything else.
    fn slow(name: &'static str, pause: Duration) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for connection in listener.incoming().map_while(io::Result::ok) {
                thread::spawn(move || {
                    if !asked(&connection).starts_with("GET /health ") {
                        thread::sleep(pause);
                    }
                    answer(&connection, name);
                });
            }
        });
        address
    }

    /// A master that is well once, and says nothing any more.
    fn lost() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            let mut kept = Vec::new();
            for connection in listener.incoming().map_while(io::Result::ok) {
                if kept.is_empty() && asked(&connection).starts_with("GET /health ") {
                    answer(&connection, "lost");
                }
                kept.push(connection);
            }
        });
        address
    }

    fn who(masters: &[String]) -> Value {
        let client = Client::new(Settings::of(masters.join(",").parse().unwrap())).unwrap();
        client.get::<Value>("/x").unwrap()["name"].clone()
    }

    #[test]
    fn the_answer_of_a_master_that_was_left_is_not_waited_for() {
        let begin = Instant::now();
        assert_eq!(who(&[lost(), slow("other", Duration::ZERO)]), "other");
        assert!(begin.elapsed() < Duration::from_secs(60), "as long as an answer may take");
    }

    #[test]
    fn a_slow_answer_is_waited_for_while_its_master_is_well() {
        let slowly = slow("slow", QUIET + Duration::from_secs(1));
        assert_eq!(who(&[slowly, slow("other", Duration::ZERO)]), "slow");
    }
}
