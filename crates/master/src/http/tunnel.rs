//! Carries bytes between a caller's websocket and a port of a task, as Determined's clients want it: what comes in binary
//! messages goes to the port, and what comes from the port goes back in binary messages.
//!
//! The connection ends when either side ends it, and when the session or the task does. Where nobody is asked who they are
//! (a shell, which asks for its key; a port that is for everybody) only so many connections of one target are open at a
//! time, so that strangers hold up nobody but each other.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::Request;
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::call::Call;
use super::failure::Failure;
use super::proxy::{Passage, asks_for_websocket};
use super::reply::Reply;
use crate::application::Application;
use crate::cluster::Target;

/// Bytes of a message from the caller.
const LONGEST_MESSAGE: usize = 1 << 20;
/// Bytes that are read from the port at a time.
const CHUNK: usize = 64 << 10;
/// How often a silent caller is asked whether it is there.
const ASK: Duration = Duration::from_secs(30);

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
    let stranger = passage.enter(&call.application)?;
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
