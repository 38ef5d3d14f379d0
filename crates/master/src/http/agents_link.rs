//! The websocket over which an agent hears what to run and says what became of it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use instep_api::audit::TokenKind;
use instep_api::link::{AgentToken, AgentTokenRequest, AgentTokenResponse, AgentTokensResponse, Hello, Order, Report};
use instep_database::AgentTokenRow;
use tokio::sync::{mpsc, watch};

use super::call::Call;
use super::failure::Failure;
use super::reply::{Json, Nothing, Reply};
use crate::application::Application;
use crate::audit::Noted;
use crate::clock::now;
use crate::cluster::{Cluster, DEFAULT_POOL, Refusal, can_name_an_agent, fault_of};
use crate::names;
use crate::passwords::token_hash;
use crate::peer::Peer;
use crate::random;
use crate::sites::host_of_origin;

/// Orders that may wait for a slow agent. One that does not take them is cut off, and hears them again.
const ORDERS_AHEAD: usize = 4096;
/// Bytes of a message: a hello of an agent that runs a thousand things.
const LONGEST_MESSAGE: usize = 4 << 20;
/// Bytes of a token's name.
const LONGEST_NAME: usize = 100;
/// How long an agent may take to say who it is.
const HELLO: Duration = Duration::from_secs(10);
/// How long an agent that was told to leave may take; it ends what it runs before.
const LEAVING: Duration = Duration::from_secs(120);
/// How the audit log shows an agent that was sent away.
const FORBIDDEN: u16 = 403;

pub(crate) async fn connect(mut call: Call) -> Result<Reply, Failure> {
    let Some(upgrade) = call.upgrade.take() else {
        return Err(Failure::invalid("agents connect here with a websocket\nhint: run `instep agent --master …`"));
    };
    let permit = Permit::of(&call).await?;
    let cluster = call.application.cluster.clone();
    let upgrade = upgrade.max_message_size(LONGEST_MESSAGE).max_frame_size(LONGEST_MESSAGE);
    // The task ends with its connection.
    Ok(Reply::Upgrade(upgrade.on_upgrade(move |socket| talk(socket, cluster, permit))))
}

/// The tokens that let agents in, without themselves.
pub(crate) async fn tokens(call: Call) -> Result<Json<AgentTokensResponse>, Failure> {
    let found = call.application.database.agent_tokens().await?;
    let token = |row: AgentTokenRow| {
        let AgentTokenRow { name, user, created_at, agent, pool } = row;
        AgentToken { name, user_id: user, created_at, agent, pool }
    };
    Ok(Json(AgentTokensResponse { tokens: found.into_iter().map(token).collect() }))
}

/// Makes a token; nobody learns it later.
pub(crate) async fn create_token(call: Call) -> Result<Json<AgentTokenResponse>, Failure> {
    let request: AgentTokenRequest = call.json()?;
    let AgentTokenRequest { name, agent, pool } = request;
    let name = name.unwrap_or_default();
    if name.is_empty() || name.len() > LONGEST_NAME || name.contains('/') {
        return Err(Failure::invalid("`name` must be a text of 1 to 100 bytes without slashes"));
    }
    if let Some(why) = names::objection(&name) {
        return Err(Failure::invalid(format!("`name` {why}")));
    }
    if let Some(agent) = agent.as_ref().filter(|agent| !can_name_an_agent(agent)) {
        return Err(Failure::invalid(format!("`agent`: {agent:?} cannot be the name of an agent")));
    }
    if let Some(why) = pool.as_deref().and_then(names::objection) {
        return Err(Failure::invalid(format!("`pool` {why}")));
    }
    let token = random::token();
    let row = AgentTokenRow { name: name.clone(), user: call.user()?.id, created_at: now(), agent, pool };
    call.noted.subject(format!("token {name}"));
    call.application.database.create_agent_token(token_hash(&token), row).await?;
    Ok(Json(AgentTokenResponse { name, token }))
}

pub(crate) async fn delete_token(call: Call) -> Result<Json<Nothing>, Failure> {
    call.application.database.delete_agent_token(call.part("name").to_owned()).await?;
    call.application.notices.agent_token_revoked();
    Ok(Json(Nothing {}))
}

/// What a connection may be used for, and for how long: what the token allows, as long as there is the token.
struct Permit {
    application: Arc<Application>,
    /// Where the agent is.
    address: String,
    peer: Peer,
    /// `None` for administrators, who have logged in.
    token: Option<(String, AgentTokenRow)>,
    /// The only allocation that it may be used for: an engine has started the agent.
    allocation: Option<String>,
    revocations: watch::Receiver<()>,
}

impl Permit {
    async fn of(call: &Call) -> Result<Permit, Failure> {
        let application = Arc::clone(&call.application);
        // Before the token is looked up, so that no revocation falls between.
        let revocations = application.notices.follow_agent_tokens();
        let token = match (&call.user, &call.token) {
            (None, Some(token)) => {
                let hash = token_hash(token);
                let row = application.database.agent_token(hash.clone()).await?;
                Some((hash, row.ok_or_else(Failure::unauthenticated)?))
            }
            _ => None,
        };
        if let Some((_, row)) = &token {
            call.noted.subject(format!("token {}", row.name));
        }
        let address = call.peer.remote.ip().to_canonical().to_string();
        let allocation = call.task.as_ref().map(|task| task.allocation.clone());
        Ok(Permit { application, address, peer: call.peer, token, allocation, revocations })
    }

    /// Why an agent is not one that may use the token, or not one that can be found.
    fn objection(&self, hello: &Hello) -> Option<String> {
        let of_allocation = allocation_objection(self.allocation.as_deref(), hello);
        let of_token = || objection(&self.token.as_ref()?.1, hello);
        of_allocation
            .or_else(of_token)
            .or_else(|| found_elsewhere(self.peer, hello, self.advertised()))
            .or_else(|| misplaced(self.peer, hello))
    }

    /// Where the other masters reach this one, if there are several.
    fn advertised(&self) -> Option<&str> {
        self.application.term.as_ref().map(|term| term.endpoint.address.as_str())
    }

    /// Records that an agent was sent away, after its connection was let in.
    async fn record_refusal(&self, agent: &str) {
        let noted = Noted::default();
        noted.token(if self.token.is_some() { TokenKind::Agent } else { TokenKind::Login });
        let token = self.token.as_ref().map_or_else(String::new, |(_, row)| format!(", token {}", row.name));
        noted.subject(format!("agent {agent}{token}"));
        let record = noted.record("agent.connect", self.address.clone(), String::new(), FORBIDDEN);
        self.application.audit.record(record).await;
    }

    /// Waits until the token is revoked, and gives its name.
    async fn revoked(&mut self) -> String {
        while self.revocations.changed().await.is_ok() {
            let Some((hash, row)) = &self.token else { continue };
            if let Ok(None) = self.application.database.agent_token(hash.clone()).await {
                return row.name.clone();
            }
        }
        // The sender lives as long as the master.
        std::future::pending().await
    }
}

/// An allocation's token lets in its own agents, which no other token does.
fn allocation_objection(allocation: Option<&str>, hello: &Hello) -> Option<String> {
    let bound = hello.bound.as_ref().map(|bound| bound.allocation.as_str());
    if bound == allocation {
        return None;
    }
    let why = match bound {
        Some(bound) => format!("the token is not one for agents of allocation {bound}"),
        None => "the token of a task lets no agent in that lends its slots".to_owned(),
    };
    Some(format!("{why}\nhint: create a token with `instep agent token create NAME`"))
}

fn objection(token: &AgentTokenRow, hello: &Hello) -> Option<String> {
    let pool = if hello.pool.is_empty() { DEFAULT_POOL } else { &hello.pool };
    let (name, hint) = (&token.name, "create another with `instep agent token create NAME`");
    match token {
        AgentTokenRow { agent: Some(only), .. } if *only != hello.agent => {
            Some(format!("the token {name} is for agent {only}, not {}\nhint: {hint}", hello.agent))
        }
        AgentTokenRow { pool: Some(only), .. } if only != pool => {
            Some(format!("the token {name} is for pool {only}, not {pool}\nhint: {hint}"))
        }
        _ => None,
    }
}

/// Why an agent cannot be found under the address it gives: it has reached another master by loopback, and there this
/// master would find its own machine. A master that passes requests on by loopback is on this machine, and so is the agent.
/// One that has reached the leader by loopback would be refused by the next leader, and its tasks would end: it hears so now.
fn found_elsewhere(peer: Peer, hello: &Hello, advertised: Option<&str>) -> Option<String> {
    let who = match advertised {
        _ if peer.forwarded && peer.local.ip().to_canonical().is_loopback() => return None,
        _ if peer.forwarded => "the master that leads, on another machine, does not find it",
        Some(own) if !is_loopback(host_of_origin(own)) => {
            "the next master to lead, on another machine, does not find it"
        }
        Some(_) | None => return None,
    };
    let address = hello.addresses.iter().find(|address| is_loopback(address))?;
    let agent = &hello.agent;
    Some(format!(
        "agent {agent} gives {address} as its address, under which {who}\n\
         hint: start it with `--address` and one that other machines reach, or with such addresses of masters in `--master`"
    ))
}

/// Whether an address leads to the machine that uses it.
fn is_loopback(address: &str) -> bool {
    let parsed = address.parse::<IpAddr>().map(|address| address.to_canonical());
    address == "localhost" || parsed.is_ok_and(|address| address.is_loopback())
}

/// Why an address is not one of an agent that an engine has started, whose program may be a user's: the master connects there
/// for the pages of its task. Its own machine and the link's neighbours are no place for them.
fn misplaced(peer: Peer, hello: &Hello) -> Option<String> {
    hello.bound.as_ref()?;
    let hint = "hint: give an IP address at which other machines reach its node, with `--address`";
    if hello.addresses.is_empty() {
        return Some(format!("agent {} of an engine's job gives no address\n{hint}", hello.agent));
    }
    let is_local = peer.is_here();
    let is_proper = |address: &IpAddr| match address.to_canonical() {
        address if address.is_unspecified() || address.is_multicast() => false,
        address if address.is_loopback() => is_local,
        IpAddr::V4(address) => !address.is_link_local() && !address.is_broadcast(),
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    };
    let improper = |address: &&String| !address.parse().as_ref().is_ok_and(is_proper);
    let address = hello.addresses.iter().find(improper)?;
    Some(format!(
        "agent {} of an engine's job gives {address} as its address, where the master connects to nobody\n{hint}",
        hello.agent
    ))
}

async fn talk(mut socket: WebSocket, cluster: Cluster, mut permit: Permit) {
    let Ok(Some(hello)) = tokio::time::timeout(HELLO, first_word(&mut socket)).await else { return };
    // Before anything of it is logged or said again: it may have megabytes.
    if let Some(why) = fault_of(&hello) {
        tracing::warn!(why, "refused an agent");
        let _ = send(&mut socket, &Order::Refused { why }).await;
        return;
    }
    let agent = hello.agent.clone();
    if let Some(why) = permit.objection(&hello) {
        tracing::warn!(agent, why, "refused an agent");
        permit.record_refusal(&agent).await;
        let _ = send(&mut socket, &Order::Refused { why }).await;
        return;
    }
    let (sender, mut orders) = mpsc::channel(ORDERS_AHEAD);
    let connection = match cluster.hello(hello, sender, permit.peer.is_here()).await {
        Ok(connection) => connection,
        Err(refusal) => {
            let why = match refusal {
                Refusal::Missing(why) | Refusal::Precondition(why) | Refusal::Invalid(why) => why,
                // It may come back to the next master.
                Refusal::Closed => return,
            };
            permit.record_refusal(&agent).await;
            let _ = send(&mut socket, &Order::Refused { why }).await;
            return;
        }
    };
    tokio::select! {
        () = converse(&mut socket, &cluster, &agent, connection, &mut orders) => {}
        token = permit.revoked() => {
            let why = format!(
                "the token {token} was revoked\nhint: create another with `instep agent token create NAME`, and start the \
                 agent with it"
            );
            tracing::warn!(agent, token, "disconnected an agent whose token was revoked");
            let _ = send(&mut socket, &Order::Refused { why }).await;
        }
    }
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
    // When one that was told to leave is not waited for any more: nothing that an engine has started outlives its work.
    let mut leave: Option<tokio::time::Instant> = None;
    loop {
        tokio::select! {
            order = orders.recv() => {
                // The sender is gone when another connection has taken this one's place.
                let Some(order) = order else { return };
                if matches!(order, Order::Leave { .. }) {
                    leave = leave.or(Some(tokio::time::Instant::now() + LEAVING));
                }
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
            () = tokio::time::sleep_until(leave.map_or(deadline, |leave| leave.min(deadline))) => return,
        }
    }
}

async fn send(socket: &mut WebSocket, order: &Order) -> Result<(), axum::Error> {
    let text = serde_json::to_string(order).map_err(axum::Error::new)?;
    socket.send(Message::Text(text.into())).await
}

#[cfg(test)]
mod tests {
    use instep_api::identifiers::UserId;
    use instep_api::link::{Bound, Serves, VERSION};

    use super::*;

    fn hello(agent: &str, pool: &str) -> Hello {
        Hello {
            protocol: VERSION,
            version: String::new(),
            agent: agent.to_owned(),
            pool: pool.to_owned(),
            addresses: Vec::new(),
            devices: Vec::new(),
            shares: Vec::new(),
            serves: Serves::Everybody,
            bound: None,
            identity: String::new(),
        }
    }

    #[test]
    fn an_agent_that_another_machine_s_master_knows_by_loopback_is_refused() {
        let peer = |forwarded, local: &str| Peer {
            remote: "127.0.0.1:9".parse().unwrap(),
            local: local.parse().unwrap(),
            forwarded,
        };
        let known_as = |address: &str| Hello { addresses: vec![address.to_owned()], ..hello("a", "") };
        let (elsewhere, here) = (peer(true, "10.0.0.1:8080"), peer(true, "127.0.0.1:8080"));
        let (of_several, of_one_machine) = (Some("http://host1:8080"), Some("http://127.0.0.1:8080"));
        let direct = peer(false, "127.0.0.1:8080");
        for address in ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "localhost"] {
            let refused = |peer, advertised| found_elsewhere(peer, &known_as(address), advertised);
            for (peer, who) in [(elsewhere, "the master that leads"), (direct, "the next master to lead")] {
                let why = refused(peer, of_several).unwrap();
                assert!(why.contains(&format!("agent a gives {address} as its address, under which {who}")), "{why}");
                assert!(why.contains("\nhint: "), "{why}");
            }
            assert_eq!(refused(here, of_several), None, "both masters are on one machine");
            assert_eq!(refused(direct, of_one_machine), None, "all masters are on one machine");
            assert_eq!(refused(direct, None), None, "there is one master, on the agent's machine");
        }
        for address in ["10.0.0.2", "fd00::1", "host2"] {
            assert_eq!(found_elsewhere(elsewhere, &known_as(address), of_several), None, "{address}");
            assert_eq!(found_elsewhere(direct, &known_as(address), of_several), None, "{address}");
        }
        assert_eq!(found_elsewhere(elsewhere, &hello("a", ""), of_several), None);
    }

    #[test]
    fn an_agent_of_an_engine_s_job_sends_the_master_nowhere_but_to_a_node() {
        let peer = |remote: &str| Peer {
            remote: remote.parse().unwrap(),
            local: "10.0.0.1:8080".parse().unwrap(),
            forwarded: false,
        };
        let at = |address: &str| Hello {
            addresses: vec!["10.0.0.2".to_owned(), address.to_owned()],
            bound: Some(Bound { allocation: "5.t.1".to_owned(), job: "1".to_owned(), node: 0, nodes: 1 }),
            ..hello("a-1", "")
        };
        let node = peer("10.0.0.2:9");
        for address in ["10.0.0.3", "fd00::1", "192.0.2.1"] {
            assert_eq!(misplaced(node, &at(address)), None, "{address}");
        }
        for address in [
            "127.0.0.1",
            "::1",
            "::ffff:127.0.0.1",
            "localhost",
            "db.internal",
            "169.254.169.254",
            "fe80::1",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "255.255.255.255",
            "",
        ] {
            let why = misplaced(node, &at(address)).unwrap_or_default();
            assert!(why.contains("\nhint: "), "{address}: {why}");
            let unbound = Hello { bound: None, ..at(address) };
            assert_eq!(misplaced(node, &unbound), None, "agents that lend slots have a token of their own: {address}");
        }
        assert_eq!(misplaced(peer("127.0.0.5:9"), &at("127.0.0.5")), None, "all is one machine");
        let nowhere = misplaced(node, &Hello { addresses: Vec::new(), ..at("10.0.0.3") }).unwrap();
        assert!(nowhere.contains("gives no address\nhint: "), "{nowhere}");
    }

    #[test]
    fn a_token_lets_in_its_agent_and_its_pool_or_its_allocation() {
        let token = |agent: Option<&str>, pool: Option<&str>| AgentTokenRow {
            name: "machines".to_owned(),
            user: UserId(1),
            created_at: now(),
            agent: agent.map(str::to_owned),
            pool: pool.map(str::to_owned),
        };
        let bound = |allocation: &str| Hello {
            bound: Some(Bound { allocation: allocation.to_owned(), job: "1".to_owned(), node: 0, nodes: 1 }),
            ..hello("a-1", "")
        };
        assert_eq!(allocation_objection(None, &hello("a", "")), None);
        assert_eq!(allocation_objection(Some("5.t.1"), &bound("5.t.1")), None);
        for (allocation, hello, said) in [
            (Some("5.t.1"), hello("a", ""), "lets no agent in that lends its slots"),
            (Some("5.t.1"), bound("5.t.2"), "not one for agents of allocation 5.t.2"),
            (None, bound("5.t.1"), "not one for agents of allocation 5.t.1"),
        ] {
            let why = allocation_objection(allocation, &hello).unwrap();
            assert!(why.contains(said) && why.contains("\nhint: "), "{why}");
        }
        assert_eq!(objection(&token(None, None), &hello("a", "gpu")), None);
        assert_eq!(objection(&token(Some("a"), None), &hello("a", "gpu")), None);
        assert_eq!(objection(&token(Some("a"), Some(DEFAULT_POOL)), &hello("a", "")), None);
        let why = objection(&token(Some("a"), None), &hello("b", "")).unwrap();
        assert!(why.starts_with("the token machines is for agent a, not b\nhint: "), "{why}");
        let why = objection(&token(None, Some("gpu")), &hello("b", "")).unwrap();
        assert!(why.starts_with("the token machines is for pool gpu, not default\nhint: "), "{why}");
    }
}
