//! The websocket over which an agent hears what to run and says what became of it.

use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use instep_api::link::{AgentToken, AgentTokenRequest, AgentTokenResponse, AgentTokensResponse, Hello, Order, Report};
use tokio::sync::mpsc;

use super::call::Call;
use super::failure::Failure;
use super::reply::{Json, Nothing, Reply};
use crate::clock::now;
use crate::cluster::{Cluster, Refusal};
use crate::passwords::token_hash;
use crate::random;

/// Orders that may wait for a slow agent. One that does not take them is cut off, and hears them again.
const ORDERS_AHEAD: usize = 4096;
/// Bytes of a message: a hello of an agent that runs a thousand things.
const LONGEST_MESSAGE: usize = 4 << 20;
/// Bytes of a token's name.
const LONGEST_NAME: usize = 100;
/// How long an agent may take to say who it is.
const HELLO: Duration = Duration::from_secs(10);

pub(crate) async fn connect(mut call: Call) -> Result<Reply, Failure> {
    let Some(upgrade) = call.upgrade.take() else {
        return Err(Failure::invalid("agents connect here with a websocket\nhint: run `instep agent --master …`"));
    };
    let cluster = call.application.cluster.clone();
    let upgrade = upgrade.max_message_size(LONGEST_MESSAGE).max_frame_size(LONGEST_MESSAGE);
    // The task ends with its connection.
    Ok(Reply::Upgrade(upgrade.on_upgrade(move |socket| talk(socket, cluster))))
}

/// The tokens that let agents in, without themselves.
pub(crate) async fn tokens(call: Call) -> Result<Json<AgentTokensResponse>, Failure> {
    let found = call.application.database.agent_tokens().await?;
    let token = |(name, user_id, created_at)| AgentToken { name, user_id, created_at };
    Ok(Json(AgentTokensResponse { tokens: found.into_iter().map(token).collect() }))
}

/// Makes a token; nobody learns it later.
pub(crate) async fn create_token(call: Call) -> Result<Json<AgentTokenResponse>, Failure> {
    let request: AgentTokenRequest = call.json()?;
    let name = request.name.unwrap_or_default();
    if name.is_empty() || name.len() > LONGEST_NAME || name.contains(['/', '\0']) {
        return Err(Failure::invalid("`name` must be a text of 1 to 100 bytes without slashes"));
    }
    let token = random::token();
    let database = &call.application.database;
    database.create_agent_token(token_hash(&token), name.clone(), call.user()?.id, now()).await?;
    Ok(Json(AgentTokenResponse { name, token }))
}

pub(crate) async fn delete_token(call: Call) -> Result<Json<Nothing>, Failure> {
    call.application.database.delete_agent_token(call.part("name").to_owned()).await?;
    Ok(Json(Nothing {}))
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
    let silence = cluster.silence();
    let mut deadline = tokio::time::Instant::now() + silence;
    loop {
        tokio::select! {
            order = orders.recv() => {
                // The sender is gone when another connection has taken this one's place.
                let Some(order) = order else { return };
                if tokio::time::timeout(silence, send(socket, &order)).await.is_err() {
                    return;
                }
            }
            heard = socket.recv() => {
                let Some(Ok(message)) = heard else { return };
                deadline = tokio::time::Instant::now() + silence;
                match message {
                    Message::Text(text) => {
                        let Ok(report) = serde_json::from_str::<Report>(text.as_str()) else {
                            tracing::warn!(agent, "an agent sent an invalid message");
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
