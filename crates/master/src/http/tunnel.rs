//! Carries bytes between a caller's websocket and a port of a task, as Determined's clients want it: what comes in binary
//! messages goes to the port, and what comes from the port goes back in binary messages.
//!
//! The connection ends when either side ends it, and when the session or the task does. Where nobody is asked who they are
//! (a shell, which asks for its key; a port that is for everybody) only so many connections of one target are open at a
//! time, so that strangers hold up nobody but each other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::Request;
use futures_util::{SinkExt, StreamExt};
use instep_api::error::Code;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::call::Call;
use super::failure::Failure;
use super::proxy::{Passage, asks_for_websocket};
use super::reply::Reply;
use crate::application::Application;
use crate::cluster::Target;
use crate::sync::lock;

/// Bytes of a message from the caller.
const LONGEST_MESSAGE: usize = 1 << 20;
/// Bytes that are read from the port at a time.
const CHUNK: usize = 64 << 10;
/// Connections of one target at a time whose callers have not said who they are, and of all targets: a process has few
/// hundred files to spare.
const STRANGERS: usize = 128;
const ALL_STRANGERS: usize = 384;
/// How often a silent caller is asked whether it is there.
const ASK: Duration = Duration::from_secs(30);

/// How many callers are connected without a name, by target.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    connected: Mutex<HashMap<Target, usize>>,
}

impl Strangers {
    /// Lets somebody without a session in; nothing is needed with one.
    pub(crate) fn enter_without(
        self: &Arc<Strangers>,
        session: Option<&str>,
        target: &Target,
    ) -> Result<Option<Stranger>, Failure> {
        if session.is_some() {
            return Ok(None);
        }
        let full = || {
            let what = format!("too many connections to {target}, or to all that is open without a login");
            Failure::new(Code::ResourceExhausted, what)
        };
        self.enter(target).ok_or_else(full).map(Some)
    }

    /// Lets one more in; `None` if there are too many.
    fn enter(self: &Arc<Strangers>, target: &Target) -> Option<Stranger> {
        let mut connected = lock(&self.connected);
        if connected.values().sum::<usize>() >= ALL_STRANGERS || connected.get(target).copied() >= Some(STRANGERS) {
            return None;
        }
        let count = connected.entry(target.clone()).or_default();
        *count += 1;
        Some(Stranger { all: Arc::clone(self), target: target.clone() })
    }
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Stranger {
    all: Arc<Strangers>,
    target: Target,
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut connected = lock(&self.all.connected);
        if let Some(count) = connected.get_mut(&self.target) {
            *count -= 1;
            if *count == 0 {
                connected.remove(&self.target);
            }
        }
    }
}

/// What a browser, or a program that asks for a page, is told.
pub(crate) fn no_pages(target: &Target) -> Failure {
    let what = format!("{target} has no pages: bytes are passed on in a websocket");
    let hint = match target.port {
        Some(port) => format!("python -m determined.cli.tunnel --auth --listener {port} MASTER {target}"),
        None => format!("open a shell with `instep shell open {target}`"),
    };
    Failure::invalid(format!("{what}\nhint: {hint}"))
}

/// Makes a tunnel of a request.
pub(crate) async fn open(mut call: Call, passage: Passage) -> Result<Reply, Failure> {
    let upgrade = call.on_upgrade.take().filter(|_| asks_for_websocket(&call.headers));
    let Some(upgrade) = upgrade else { return Err(no_pages(&passage.target)) };
    let stranger = call.application.strangers.enter_without(passage.session.as_deref(), &passage.target)?;
    let (mut head, _) = Request::new(Body::empty()).into_parts();
    head.headers = call.headers.clone();
    head.extensions.insert(upgrade);
    let upgrade = WebSocketUpgrade::from_request_parts(&mut head, &()).await;
    let upgrade = upgrade.map_err(|error| Failure::invalid(format!("this is no websocket: {error}")))?;
    // Whoever asks learns from the answer whether the task is there.
    let stream = passage.connect(&call.application).await?;
    // What is typed is to arrive at once.
    let _ = stream.set_nodelay(true);
    let application = Arc::clone(&call.application);
    let upgrade = upgrade.max_message_size(LONGEST_MESSAGE).max_frame_size(LONGEST_MESSAGE);
    Ok(Reply::Upgrade(upgrade.on_upgrade(async move |socket| {
        carry(socket, stream, &passage, &application).await;
        drop(stranger);
    })))
}

async fn carry(socket: WebSocket, stream: TcpStream, passage: &Passage, application: &Application) {
    let (mut to_caller, mut from_caller) = socket.split();
    let (mut from_port, mut to_port) = stream.into_split();
    let inward = async {
        while let Some(Ok(message)) = from_caller.next().await {
            match message {
                Message::Binary(bytes) if to_port.write_all(&bytes).await.is_err() => return,
                Message::Close(_) => return,
                _ => {}
            }
        }
    };
    let outward = async {
        let mut buffer = vec![0; CHUNK];
        loop {
            let message = tokio::select! {
                read = from_port.read(&mut buffer) => match read {
                    Ok(count @ 1..) => Message::Binary(buffer[..count].to_vec().into()),
                    _ => break,
                },
                () = tokio::time::sleep(ASK) => Message::Ping(Vec::new().into()),
            };
            if to_caller.send(message).await.is_err() {
                return;
            }
        }
        // What was sent before arrives before the end.
        let _ = to_caller.close().await;
    };
    tokio::select! {
        () = inward => {}
        () = outward => {}
        () = passage.closed(application) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_of_one_target_hold_up_nobody_else() {
        let all = Arc::new(Strangers::default());
        let target = |task: &str| Target { task: task.to_owned(), port: None };
        let mut inside: Vec<Stranger> = (0..STRANGERS).map(|_| all.enter(&target("a")).unwrap()).collect();
        assert!(all.enter(&target("a")).is_none() && all.enter(&target("b")).is_some());
        inside.pop();
        inside.push(all.enter(&target("a")).unwrap());
        inside.extend((0..ALL_STRANGERS - STRANGERS).map(|number| all.enter(&target(&number.to_string())).unwrap()));
        assert!(all.enter(&target("b")).is_none(), "all of them together are bounded too");
        drop(inside);
        assert!(lock(&all.connected).is_empty());
    }
}
