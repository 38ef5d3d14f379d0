//! What every request comes to first where there are several masters: the leader's own routes, or forwarding to the
//! leader.
//!
//! A request waits a moment for a leader while one takes over from another, as long as none of it has been sent: clients
//! rarely notice. `/health` and `/metrics` are about this process, whoever leads.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderValue, Method, Response, StatusCode, header};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use instep_api::error::Code;
use instep_database::{AdvertisedEndpoint, Database, LEASE, Leader};
use serde_json::json;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use super::failure::Failure;
use super::forwarded;
use super::guard::{Vouched, check_framing, check_origin};
use super::leader_client::{ForwardError, LeaderClient};
use super::request_id;
use crate::peer::Peer;
use crate::standby::{Role, Term};
use crate::sync::lock;
use crate::telemetry;

/// How long a request waits for a leader.
const HOLD: Duration = Duration::from_secs(5);
/// The same where the leader is known and cannot be reached: until its lease has expired, and another one leads.
const LONGEST: Duration = Duration::from_secs(LEASE.as_secs() + 2 * HOLD.as_secs());
/// So often a leader may be lost while it has the same request: one that ends whoever is asked is not asked of everybody.
const LOSSES: usize = 3;
/// Before the leader is tried once more.
const PAUSE: Duration = Duration::from_millis(100);

/// Which of the two ports it is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Port {
    /// Of the API and the pages.
    Master,
    /// Of the pages of tasks.
    Tasks,
}

/// What answers at one port: the routes of this master while it leads, else the leader.
pub(crate) struct LeaderProxy {
    port: Port,
    /// Where the other masters reach this one, and by which secret they will know each other when it leads.
    own: AdvertisedEndpoint,
    allowed_hosts: Vec<String>,
    role: watch::Receiver<Role>,
    /// What answers here, once this process leads, with its database.
    routes: OnceLock<(Router, Database)>,
    client: Mutex<Option<Arc<LeaderClient>>>,
    /// The term of the leader of whom it was said that it cannot be reached.
    complained: AtomicI64,
    /// Bytes of requests that may be kept at a time.
    room: Arc<Semaphore>,
}

impl LeaderProxy {
    pub(crate) fn new(
        port: Port,
        own: &AdvertisedEndpoint,
        allowed_hosts: Vec<String>,
        role: watch::Receiver<Role>,
    ) -> Arc<LeaderProxy> {
        let (routes, client, complained) = (OnceLock::new(), Mutex::default(), AtomicI64::default());
        let room = Arc::new(Semaphore::new(KEPT_TOGETHER));
        Arc::new(LeaderProxy { port, own: own.clone(), allowed_hosts, role, routes, client, complained, room })
    }

    /// What serves at this port.
    pub(crate) fn router(self: &Arc<LeaderProxy>) -> Router {
        let proxy = Arc::clone(self);
        Router::new().fallback(move |ConnectInfo(peer): ConnectInfo<Peer>, request: Request| {
            let proxy = Arc::clone(&proxy);
            async move { proxy.answer(peer, request).await }
        })
    }

    /// Whether another master takes this one for the leader. What a client claims is dropped.
    fn is_meant(&self, forwarded: Option<&HeaderValue>) -> bool {
        forwarded.is_some_and(|value| forwarded::caller(value, &self.own.peer_secret).is_some())
    }

    /// Opens the leader's own routes. The role is told afterwards.
    pub(crate) fn open(&self, routes: Router, database: Database) {
        // It leads once in its life.
        let _ = self.routes.set((routes, database));
    }

    async fn answer(&self, peer: Peer, mut request: Request) -> Response<Body> {
        let forwarded = forwarded::take(request.headers_mut());
        let id = request_id::of(request.headers());
        let path = request.uri().path().to_owned();
        let refused = |failure: Failure| {
            let mut response = failure.response(&path, &id);
            if response.status() == StatusCode::SERVICE_UNAVAILABLE {
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            request_id::mark(response, &id)
        };
        let (mut role, begin) = (self.role.clone(), Instant::now());
        let (mut deadline, mut why_not, mut losses) = (begin + HOLD, None, 0);
        loop {
            let current = role.borrow_and_update().clone();
            match current {
                Role::Leads(term) => {
                    return match self.lead(&term, peer, forwarded, request).await {
                        Ok(response) => response,
                        Err(failure) => refused(failure),
                    };
                }
                // Another master, which has passed it on, has been told that this one leads: it will in a moment, or not.
                _ if self.is_meant(forwarded.as_ref()) => {}
                other => {
                    if let Some(failure) = came_back(forwarded.as_ref(), &other) {
                        return refused(failure);
                    }
                    if let Some(own) = self.own_answer(&other, &peer, &request) {
                        return own.unwrap_or_else(refused);
                    }
                    match self.follow(other, peer, request).await {
                        Ok(response) => return response,
                        Err(Ended::Refused(failure)) => return refused(failure),
                        Err(Ended::Lost(copy, why)) => {
                            losses += 1;
                            if losses == LOSSES {
                                return refused(Failure::bad_gateway(format!(
                                    "{why}\nhint: it was asked {losses} times"
                                )));
                            }
                            // However long the leader had it, the next one is waited for.
                            deadline = Instant::now() + HOLD;
                            (request, why_not) = (*copy, Some(why));
                        }
                        Err(Ended::Again(unsent, why)) => {
                            // A leader whose lease lasts is followed before long. Stock clients ask once.
                            if why.is_some() {
                                deadline = deadline.max((Instant::now() + HOLD).min(begin + LONGEST));
                            }
                            (request, why_not) = (*unsent, why.or(why_not));
                        }
                    }
                }
            }
            if Instant::now() >= deadline {
                let what = why_not.unwrap_or_else(|| "no master leads at the moment".to_owned());
                let hint = "try again in a moment; `instep master status` shows who leads";
                return refused(Failure::new(Code::Unavailable, format!("{what}\nhint: {hint}")));
            }
            // A leader that could not be reached is tried again; a new one at once.
            let again = if why_not.is_some() { deadline.min(Instant::now() + PAUSE) } else { deadline };
            let _ = timeout_at(again, role.changed()).await;
        }
    }

    /// Answers as the leader.
    async fn lead(
        &self,
        term: &Term,
        mut peer: Peer,
        forwarded: Option<HeaderValue>,
        mut request: Request,
    ) -> Result<Response<Body>, Failure> {
        if let Some(value) = forwarded {
            let Some(caller) = forwarded::caller(&value, &term.endpoint.peer_secret) else {
                let what = "this request was passed on by a master that does not know who leads now";
                return Err(Failure::new(Code::Unavailable, what));
            };
            // Somebody on the other master's machine is there, and not here.
            let is_elsewhere = caller.ip().is_loopback() && !peer.remote.ip().to_canonical().is_loopback();
            let remote = if is_elsewhere { peer.remote } else { caller };
            peer = Peer { remote, forwarded: true, ..peer };
            request.extensions_mut().insert(Vouched);
        }
        request.extensions_mut().insert(ConnectInfo(peer));
        let Some((routes, database)) = self.routes.get() else {
            return Err(Failure::new(Code::Internal, "this master leads without routes"));
        };
        // One that was stopped and wakes would answer with what was true when it was stopped.
        if let Some(why) = database.lease_lost() {
            return Err(Failure::new(Code::Unavailable, format!("another master may lead by now: {why}")));
        }
        match TowerToHyperService::new(routes.clone()).call(request).await {
            Ok(response) => Ok(response),
            Err(never) => match never {},
        }
    }

    /// Passes a request on to the leader, if there is one.
    async fn follow(&self, role: Role, peer: Peer, request: Request) -> Result<Response<Body>, Ended> {
        check_framing(request.extensions()).map_err(Ended::Refused)?;
        check_origin(request.extensions(), request.headers(), &self.allowed_hosts).map_err(Ended::Refused)?;
        let Role::Follows(leader, ..) = role else { return Err(Ended::Again(Box::new(request), None)) };
        let client = self.client(&leader).map_err(|why| Ended::Refused(Failure::new(Code::Internal, why)))?;
        let Some(value) = forwarded::value(&leader.endpoint.peer_secret, canonical(peer.remote)) else {
            return Err(Ended::Refused(Failure::new(Code::Internal, "the leader's secret cannot be sent")));
        };
        let (request, again) = repeatable(request, &self.room).await.map_err(Ended::Refused)?;
        let address = &leader.endpoint.address;
        match client.forward(request, value).await {
            Ok(response) => Ok(response),
            Err(ForwardError::Unsent(mut request, why)) => {
                forwarded::take(request.headers_mut());
                let what = format!("the leader at {address} cannot be reached: {why}");
                if self.complained.swap(leader.epoch, Ordering::Relaxed) != leader.epoch {
                    tracing::warn!("{what}; each master's --advertise must lead to it from all others");
                }
                Err(Ended::Again(request, Some(what)))
            }
            Err(ForwardError::Lost(why)) => match again {
                Some(request) => {
                    Err(Ended::Lost(Box::new(request), format!("the leader at {address} was lost: {why}")))
                }
                None => Err(Ended::Refused(Failure::bad_gateway(format!(
                    "the leader at {address} was lost while it had this request: {why}\n\
                     hint: nobody knows whether it was done; look, and do it again if it was not"
                )))),
            },
        }
    }

    /// The client of a leader, which is made once for its term.
    fn client(&self, leader: &Leader) -> Result<Arc<LeaderClient>, String> {
        let mut known = lock(&self.client);
        if let Some(client) = known.as_ref().filter(|client| client.epoch() == leader.epoch) {
            return Ok(Arc::clone(client));
        }
        let address = match self.port {
            Port::Master => &leader.endpoint.address,
            Port::Tasks => &leader.endpoint.tasks_address,
        };
        let client = Arc::new(LeaderClient::to(leader, address, self.role.clone())?);
        *known = Some(Arc::clone(&client));
        Ok(client)
    }

    /// What is asked about this process, and not about the cluster.
    fn own_answer(&self, role: &Role, peer: &Peer, request: &Request) -> Option<Result<Response<Body>, Failure>> {
        let answer = match (self.port, request.method(), request.uri().path()) {
            (Port::Master, &(Method::GET | Method::HEAD), "/health") => self.health(role, peer),
            (Port::Master, &(Method::GET | Method::HEAD), "/metrics") => metrics(role),
            _ => return None,
        };
        Some(check_origin(request.extensions(), request.headers(), &self.allowed_hosts).map(|()| answer))
    }

    /// What this process is, for load balancers and people: 200 if requests are answered.
    fn health(&self, role: &Role, peer: &Peer) -> Response<Body> {
        let down = |why: &str| (StatusCode::SERVICE_UNAVAILABLE, json!({"status": "down", "message": why}));
        let (status, mut answer) = match role {
            Role::Follows(leader, seen, unfit) => match leader.lease_age + seen.elapsed() {
                age if age >= LEASE => down("nothing has been heard of the leader for the time of a lease"),
                age => (
                    StatusCode::OK,
                    json!({
                        "status": "up",
                        "leader": leader.endpoint.address,
                        "epoch": leader.epoch,
                        "since": leader.since,
                        "leaseAgeSeconds": age.as_secs_f64(),
                        "canTakeOver": unfit.is_none(),
                        "message": unfit.as_ref().map(|unfit| &unfit.said),
                    }),
                ),
            },
            // It may name the database and its user.
            Role::Nobody(why) if peer.is_local() => down(why),
            Role::Nobody(_) => down("no master is known to lead; the log of this one says why"),
            Role::Starting | Role::Leads(_) => down("this master is taking over"),
        };
        answer["role"] = "standby".into();
        answer["address"] = self.own.address.as_str().into();
        let mut response = Response::new(Body::from(answer.to_string()));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

/// Why a request is passed on no more: it was already, to an address that is not the leader's alone.
fn came_back(forwarded: Option<&HeaderValue>, role: &Role) -> Option<Failure> {
    let Role::Follows(leader, ..) = role else { return None };
    forwarded::caller(forwarded?, &leader.endpoint.peer_secret)?;
    Some(Failure::new(
        Code::Unavailable,
        format!(
            "a request for the leader at {} came to a master that stands by\n\
             hint: each master's --advertise must lead to that master alone, not to all of them",
            leader.endpoint.address
        ),
    ))
}

/// Why a request has no answer of the leader's.
enum Ended {
    Refused(Failure),
    /// It was not sent; why not, if it was tried.
    Again(Box<Request>, Option<String>),
    /// It was sent, and may be sent again.
    Lost(Box<Request>, String),
}

/// What tasks send and clients ask once that may be done twice, because a second time changes nothing: a metric that is there
/// stays as it is, a checkpoint has its name, and all else says how something is. Scripts of Determined end with an error
/// that one of these gets.
const TWICE: [&str; 13] = [
    "/api/v1/allocations/{id}/acceleratorData",
    "/api/v1/allocations/{id}/notify_container_running",
    "/api/v1/allocations/{id}/proxy_address",
    "/api/v1/allocations/{id}/ready",
    "/api/v1/allocations/{id}/signals/ack_preemption",
    "/api/v1/allocations/{id}/signals/pending_preemption",
    "/api/v1/allocations/{id}/waiting",
    "/api/v1/auth/login",
    "/api/v1/checkpoints",
    "/api/v1/trials/{id}/early_exit",
    "/api/v1/trials/{id}/metrics",
    "/api/v1/trials/{id}/progress",
    "/api/v1/trials/{id}/reports",
];
/// Bytes of such a request that are kept until it is answered; a longer one is passed on once.
const KEPT: u64 = 4 << 20;
/// The same of all requests: nobody knows yet who sends them. What finds no room is passed on once.
const KEPT_TOGETHER: usize = 64 << 20;

fn may_be_done_twice(method: &Method, path: &str) -> bool {
    let fits = |pattern: &&str| {
        let (mut parts, mut wanted) = (path.split('/'), pattern.split('/'));
        wanted.by_ref().all(|wanted| parts.next().is_some_and(|part| wanted == part || wanted == "{id}"))
            && parts.next().is_none()
    };
    method == Method::POST && TWICE.iter().any(fits)
}

/// A request, and a copy of it if it may be asked twice and is not too long to be kept.
async fn repeatable(request: Request, room: &Arc<Semaphore>) -> Result<(Request, Option<Request>), Failure> {
    let (method, path) = (request.method(), request.uri().path());
    let length = hyper::body::Body::size_hint(request.body()).exact();
    let reads = length == Some(0) && matches!(*method, Method::GET | Method::HEAD);
    let repeats = length.is_some_and(|length| length <= KEPT) && may_be_done_twice(method, path);
    if !(reads || repeats) || super::proxy::asks_for_websocket(request.headers()) {
        return Ok((request, None));
    }
    let length = length.and_then(|length| u32::try_from(length).ok()).unwrap_or_default();
    let Ok(place) = Arc::clone(room).try_acquire_many_owned(length) else { return Ok((request, None)) };
    let (head, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await;
    let body = body.map_err(|error| Failure::invalid(format!("cannot read the request's body: {error}")))?;
    let mut copy = Request::new(Body::from(body.clone()));
    *copy.method_mut() = head.method.clone();
    *copy.uri_mut() = head.uri.clone();
    *copy.headers_mut() = head.headers.clone();
    forwarded::take(copy.headers_mut());
    copy.extensions_mut().insert(Arc::new(place));
    Ok((Request::from_parts(head, Body::from(body)), Some(copy)))
}

/// What Prometheus reads of a master that stands by.
fn metrics(role: &Role) -> Response<Body> {
    let text = telemetry::of_standby(role.epoch()).unwrap_or_default();
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(super::reply::METRICS));
    response
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use instep_api::wire::Timestamp;

    use super::*;

    fn follows(secret: &str) -> Role {
        follows_at("http://a:1", secret)
    }

    fn follows_at(address: &str, secret: &str) -> Role {
        let endpoint = AdvertisedEndpoint {
            address: address.to_owned(),
            tasks_address: "http://a:2".to_owned(),
            certificate: None,
            peer_secret: secret.to_owned(),
            settings: String::new(),
        };
        let leader = Leader { epoch: 1, since: Timestamp(0), endpoint, lease_age: Duration::ZERO };
        Role::Follows(Arc::new(leader), std::time::Instant::now(), None)
    }

    #[test]
    fn a_request_goes_round_no_circle() {
        let value = forwarded::value("secret", "10.0.0.1:1".parse().unwrap());
        let refused = came_back(value.as_ref(), &follows("secret")).unwrap();
        assert!(refused.message.contains("--advertise"), "{}", refused.message);
        assert_eq!(came_back(value.as_ref(), &follows("other")), None, "what a client claims");
        assert_eq!(came_back(None, &follows("secret")), None);
        assert_eq!(came_back(value.as_ref(), &Role::Starting), None);
    }

    #[tokio::test]
    async fn a_leader_that_is_lost_with_every_request_is_not_asked_for_ever() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let local = listener.local_addr().unwrap();
        let asked = tokio::spawn(async move {
            for number in 1.. {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 4096]).await;
                if number == LOSSES {
                    return;
                }
            }
        });
        let role = follows_at(&format!("http://{local}"), "secret");
        let Role::Follows(leader, ..) = &role else { panic!("it follows") };
        let roles = watch::Sender::new(role.clone());
        let proxy = LeaderProxy::new(Port::Master, &leader.endpoint, Vec::new(), roles.subscribe());
        let peer = Peer { remote: "127.0.0.1:9".parse().unwrap(), local, forwarded: false };
        let mut request = Request::new(Body::empty());
        request.headers_mut().insert(header::HOST, HeaderValue::from_static("127.0.0.1"));
        let answer = proxy.answer(peer, request).await;
        assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
        asked.await.unwrap();
    }

    #[tokio::test]
    async fn what_may_be_done_twice_is_kept_until_it_is_answered() {
        let room = Arc::new(Semaphore::new(10));
        let copied = async |method: Method, path: &'static str, body: &'static str| {
            let mut request = Request::new(Body::from(body));
            (*request.method_mut(), *request.uri_mut()) = (method, path.parse().unwrap());
            let (request, copy) = repeatable(request, &room).await.unwrap();
            let whole = async |request: Request| to_bytes(request.into_body(), 100).await.unwrap();
            assert_eq!(whole(request).await, body, "{path}");
            match copy {
                Some(copy) => {
                    assert_eq!(copy.uri().path(), path);
                    assert_eq!(whole(copy).await, body, "{path}");
                    true
                }
                None => false,
            }
        };
        assert!(copied(Method::GET, "/x", "").await);
        assert!(!copied(Method::GET, "/x", "body").await);
        assert!(copied(Method::POST, "/api/v1/trials/7/metrics", "body").await);
        for path in [
            "/api/v1/experiments",
            "/api/v1/trials/7/kill",
            "/api/v1/trials/7/metrics/x",
            "/api/v1/trials/metrics",
            "/",
        ] {
            assert!(!copied(Method::POST, path, "body").await, "{path}");
        }
        assert!(!copied(Method::DELETE, "/api/v1/trials/7/metrics", "").await);
        let mut websocket = Request::new(Body::empty());
        websocket.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        websocket.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        assert!(repeatable(websocket, &room).await.unwrap().1.is_none());
        assert!(!copied(Method::POST, "/api/v1/trials/7/metrics", "longer than the room").await);
        assert_eq!(room.available_permits(), 10, "what is answered is kept no longer");
    }

    #[test]
    fn what_is_repeated_is_served() {
        let routes = super::super::routes::routes();
        for path in TWICE {
            let found =
                routes.iter().any(|route| route.path == path && route.method == super::super::route::Method::Post);
            assert!(found, "{path}");
        }
    }
}
