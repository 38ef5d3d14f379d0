//! The websocket to the master: messages of `instep_api::link`, one thread, every wait with a deadline.

use std::io;
use std::path::Path;
use std::time::Duration;

use instep_api::link::{Order, PATH, Report};
use instep_client::Address;
use instep_client::websocket::{Destination, SocketError, Stream};
use tungstenite::{Message, WebSocket};

/// Bytes of a message of the master's: an order with an experiment's configuration.
const LONGEST_MESSAGE: usize = 16 << 20;

/// Why there is no connection.
#[derive(Debug)]
pub enum LinkError {
    /// The master does not want us, and will not.
    Refused(String),
    /// It cannot be reached, or the connection broke.
    Broken(String),
}

/// What came from the master.
pub enum Received {
    /// Something to do.
    Order(Box<Order>),
    /// That it is there.
    SignOfLife,
    /// Nothing, for as long as was asked.
    Nothing,
}

/// A connection to the master.
pub struct Link {
    socket: WebSocket<Stream>,
}

impl Link {
    /// Connects, and shows the token.
    pub fn open(
        master: &Address,
        certificates: Option<&Path>,
        token: &str,
        timeout: Duration,
    ) -> Result<Link, LinkError> {
        let (token, longest_message) = (Some(token), LONGEST_MESSAGE);
        let destination = Destination { master, certificates, path: PATH, token, longest_message, timeout };
        match destination.open() {
            Ok(socket) => Ok(Link { socket }),
            Err(SocketError::Answered { status: 401 | 403, said, .. }) => {
                Err(LinkError::Refused(format!("the master at {master} refuses the token: {said}")))
            }
            Err(SocketError::Answered { status: 404, .. }) => {
                let what = format!("{master} does not accept agents: it is not a master, or is too old");
                Err(LinkError::Refused(what))
            }
            Err(SocketError::Answered { status, said, .. }) => {
                let why = format!("it answered with status {status}: {said}");
                Err(LinkError::Broken(format!("cannot reach the master at {master}: {why}")))
            }
            Err(error @ SocketError::Token) => Err(LinkError::Refused(error.to_string())),
            Err(error @ SocketError::Broken { .. }) => Err(LinkError::Broken(error.to_string())),
        }
    }

    /// The address of this machine that the master sees.
    pub fn own_address(&self) -> Option<String> {
        self.socket.get_ref().socket().local_addr().ok().map(|address| address.ip().to_canonical().to_string())
    }

    /// Says something.
    pub fn send(&mut self, report: &Report) -> Result<(), LinkError> {
        let text = serde_json::to_string(report).map_err(|error| LinkError::Broken(error.to_string()))?;
        self.socket.send(Message::text(text)).map_err(broken)
    }

    /// Asks for a sign of life.
    pub fn ping(&mut self) -> Result<(), LinkError> {
        self.socket.send(Message::Ping(Vec::new().into())).map_err(broken)
    }

    /// Waits for what comes next, for at most so long.
    pub fn receive(&mut self, patience: Duration) -> Result<Received, LinkError> {
        let wait = self.socket.get_ref().socket().set_read_timeout(Some(patience));
        wait.map_err(|error| LinkError::Broken(error.to_string()))?;
        match self.socket.read() {
            Ok(Message::Text(text)) => match serde_json::from_str(text.as_str()) {
                Ok(order) => Ok(Received::Order(Box::new(order))),
                Err(error) => Err(LinkError::Broken(format!("the master sent an invalid message: {error}"))),
            },
            Ok(Message::Close(_)) => Err(LinkError::Broken("the master closed the connection".to_owned())),
            Ok(_) => Ok(Received::SignOfLife),
            Err(tungstenite::Error::Io(error)) if is_timeout(&error) => Ok(Received::Nothing),
            Err(error) => Err(broken(error)),
        }
    }

    /// Says good-bye.
    pub fn close(&mut self) {
        // Whether it is heard does not matter.
        let _ = self.socket.close(None);
        let _ = self.socket.flush();
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn broken(error: tungstenite::Error) -> LinkError {
    LinkError::Broken(format!("the connection to the master broke: {error}"))
}
