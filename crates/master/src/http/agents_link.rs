//! The websocket over which an agent hears what to run and says what became of it.

use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use instep_api::link::{Hello, Order, Report};
use tokio::sync::mpsc;

use super::call::Call;
use super::failure::Failure;
use super::reply::Reply;
use crate::cluster::{Cluster, PING_SECONDS, Refusal};

/// Orders that may wait for a slow agent. One that does not take them is cut off, and hears them again.
const ORDERS_AHEAD: usize = 4096;
/// Bytes of a message: a hello of an agent that runs a thousand things.
const LONGEST_MESSAGE: usize = 4 << 20;
/// How long an agent may take to say who it is.
const HELLO: Duration = Duration::from_secs(10);
/// Silence after which a connection is dead.
const SILENCE: Duration = Duration::from_secs(3 * PING_SECONDS as u64);

pub(crate) async fn connect(mut call: Call) -> Result<Reply, Failure> {
    let Some(upgrade) = call.upgrade.take() else {
        return Err(Failure::invalid("agents connect here with a websocket\nhint: run `instep agent --master …`"));
    };
    let cluster = call.application.cluster.clone();
    let upgrade = upgrade.max_message_size(LONGEST_MESSAGE).max_frame_size(LONGEST_MESSAGE);
    // The task ends with its connection.
    Ok(Reply::Upgrade(upgrade.on_upgrade(move |socket| talk(socket, cluster))))
}

async fn talk(mut socket: WebSocket, cluster: Cluster) {
    let Ok(Some(hello)) = tokio::time::timeout(HELLO, first_word(&mut socket)).await else { return };
    let agent = hello.agent.clone();
    let (sender, mut orders) = mpsc::channel(ORDERS_AHEAD);
    let connection = match cluster.hello(hello, sender).await {
        Ok(connection) => connection,
        Err(refusal) => {
            let why = match refusal {
                Refusal::Missing(why) | Refusal::Precondition(why) | Refusal::Invalid(why) => why,
                // It may come back to the next master.
                Refusal::Closed => return,
            };
            let _ = send(&mut socket, &Order::Refused { why }).await;
            return;
        }
    };
    converse(&mut socket, &cluster, &agent, connection, &mut orders).await;
    let _ = cluster.disconnected(agent, connection).await;
}

async fn first_word(socket: &mut WebSocket) -> Option<Hello> {
    loop {
        match socket.recv().await?.ok()? {
            Message::Text(text) => {
                return match serde_json::from_str(text.as_str()) {
                    Ok(Report::Hello(hello)) => Some(hello),
                    Ok(_) | Err(_) => None,
                };
            }
            Message::Ping(_) | Message::Pong(_) => {}
            Message::Binary(_) | Message::Close(_) => return None,
        }
    }
}

/// Passes on what either side says, until one of them goes silent.
async fn converse(
    socket: &mut WebSocket,
    cluster: &Cluster,
    agent: &str,
    connection: u64,
    orders: &mut mpsc::Receiver<Order>,
) {
    let mut deadline = tokio::time::Instant::now() + SILENCE;
    loop {
        tokio::select! {
            order = orders.recv() => {
                // The sender is gone when another connection has taken this one's place.
                let Some(order) = order else { return };
                if tokio::time::timeout(SILENCE, send(socket, &order)).await.is_err() {
                    return;
                }
            }
            heard = socket.recv() => {
                let Some(Ok(message)) = heard else { return };
                deadline = tokio::time::Instant::now() + SILENCE;
                match message {
                    Message::Text(text) => {
                        let Ok(report) = serde_json::from_str::<Report>(text.as_str()) else {
                            tracing::warn!(agent, "an agent says what cannot be read");
                            return;
                        };
                        if cluster.report(agent.to_owned(), connection, report).await.is_err() {
                            return;
                        }
                    }
                    Message::Ping(_) | Message::Pong(_) => {}
                    Message::Binary(_) | Message::Close(_) => return,
                }
            }
            () = tokio::time::sleep_until(deadline) => return,
        }
    }
}

async fn send(socket: &mut WebSocket, order: &Order) -> Result<(), axum::Error> {
    let text = serde_json::to_string(order).map_err(axum::Error::new)?;
    socket.send(Message::Text(text.into())).await
}
