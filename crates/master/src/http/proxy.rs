//! Passes a request on to the port of a task, and its answer back; websockets too.
//!
//! Whoever asks is known to the master by then. The task learns neither their token nor a cookie of the master's; what it
//! answers holds for its own pages alone.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{HeaderMap, Request, Response, StatusCode, Uri};
use futures_util::StreamExt;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use instep_api::error::Code;
use instep_api::link::Protocol;
use tokio::net::TcpStream;

use super::call::Call;
use super::cookies;
use super::failure::Failure;
use super::reply::Reply;
use super::task_grants::{granted, is_for_everybody};
use crate::application::Application;
use crate::cluster::{Serving, Target};
use crate::strangers::Stranger;
use crate::sync::lock;

/// What a request says that a master has passed on.
const BY_MASTER: &str = "1.1 instep";
/// How long a task may take to begin its answer to somebody who has not said who they are.
const ANSWER: Duration = Duration::from_secs(60);
/// How long a task may take to be reached.
const CONNECT: Duration = Duration::from_secs(10);
/// How often an open websocket is asked whether it may stay.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// What belongs to one connection, and not to the message.
const OF_CONNECTIONS: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// What a browser would take for all pages of the origin, or of the host: a task speaks for its own alone.
const OF_ORIGINS: [&str; 7] = [
    "alt-svc",
    "clear-site-data",
    "nel",
    "report-to",
    "reporting-endpoints",
    "service-worker-allowed",
    "strict-transport-security",
];

/// The way to a task, for somebody who may go it.
#[derive(Debug)]
pub(crate) struct Passage {
    pub target: Target,
    /// The session for which the way is open, by the hash of its token; none for what is open for everybody.
    pub session: Option<String>,
    pub serving: Serving,
    /// Whether the answer comes from the master's own origin, where no browser may run what is in it.
    pub sandboxed: bool,
}

impl Passage {
    /// A place among the strangers, for a caller without a session; with one none is needed.
    pub(super) fn enter(&self, application: &Application) -> Result<Option<Stranger>, Failure> {
        if self.session.is_some() {
            return Ok(None);
        }
        let full = || {
            let what = format!("too many connections to {}, or to all that is open without a login", self.target);
            Failure::new(Code::ResourceExhausted, what)
        };
        application.strangers.enter(&self.target).ok_or_else(full).map(Some)
    }

    /// That the task does not answer.
    fn away(&self, error: &dyn std::fmt::Display) -> Failure {
        let what = format!("task {} cannot be reached: {error}", self.target);
        let Some(port) = self.target.port else { return Failure::new(Code::Unavailable, what) };
        let hint =
            format!("its program must listen on port {port} of address 0.0.0.0 or {}", self.serving.service.address);
        Failure::new(Code::Unavailable, format!("{what}\nhint: {hint}"))
    }

    /// Connects to the task. Not to this master: it would take what comes for its own, and trust it.
    pub(crate) async fn connect(&self, application: &Application) -> Result<TcpStream, Failure> {
        let service = &self.serving.service;
        let connecting = TcpStream::connect((service.address.as_str(), service.port));
        let stream = tokio::time::timeout(CONNECT, connecting).await.map_err(|_| {
            self.away(&format_args!("{} does not answer within {} s", service.address, CONNECT.as_secs()))
        })?;
        let stream = stream.map_err(|error| self.away(&error))?;
        let ends = stream.local_addr().and_then(|here| Ok((here.ip().to_canonical(), stream.peer_addr()?)));
        let (here, there) = ends.map_err(|error| self.away(&error))?;
        match self.objection(there, here, |port| application.sites.listens_on(port)) {
            Some(why) => Err(Failure::forbidden(why)),
            None => Ok(stream),
        }
    }

    /// Why nobody may be led there, on whose way this machine has the address `here`.
    fn objection(&self, there: SocketAddr, here: IpAddr, is_own_port: impl Fn(u16) -> bool) -> Option<String> {
        let (address, port) = (&self.serving.service.address, there.port());
        let is_this_machine = there.ip().to_canonical().is_loopback() || there.ip().to_canonical() == here;
        if !is_this_machine {
            return None;
        }
        if is_own_port(port) {
            return Some(format!(
                "port {port} of {address} is the master's own\nhint: let the task listen on another port"
            ));
        }
        (!self.serving.may_be_here).then(|| {
            let hint = "start its agent with `--address` and the address of its own node";
            format!("the agent of task {} gives {address}, the master's machine\nhint: {hint}", self.target)
        })
    }

    /// Waits until the way is open no longer, for a connection that has taken it.
    pub(crate) async fn closed(&self, application: &Application) {
        let allowed = async || {
            let tcp = self.serving.service.protocol == Protocol::Tcp;
            let granted = match &self.session {
                Some(session) => granted(application, session, &self.target, tcp).await.map(|page| page.is_some()),
                None => is_for_everybody(application, &self.target).await,
            };
            // As long as somebody is connected the task is in use.
            let service = application.cluster.use_service(self.target.clone()).await;
            let open = |serving: &Serving| self.session.is_some() || serving.unauthenticated;
            matches!((granted, service), (Ok(true), Ok(Some(serving))) if open(&serving))
        };
        while allowed().await {
            tokio::time::sleep(ASK_AGAIN).await;
        }
        tracing::debug!(task = %self.target, "closed a connection whose session or task has ended");
    }
}

/// Passes a request on to a task, and its answer back.
pub(crate) async fn pass(mut call: Call, passage: Passage) -> Result<Reply, Failure> {
    if call.headers.get_all(header::VIA).iter().any(|via| *via == BY_MASTER) {
        let what = format!("what is asked of {} has come through a master already", passage.target);
        return Err(Failure::new(Code::FailedPrecondition, format!("{what}\nhint: no task may lead back to a master")));
    }
    let away = |error: &dyn std::fmt::Display| passage.away(error);
    let stranger = passage.enter(&call.application)?;
    let stream = passage.connect(&call.application).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| away(&error))?;
    // It ends with its one answer, or with what that turns into.
    tokio::spawn(connection.with_upgrades());
    let (application, upgrade) = (Arc::clone(&call.application), call.on_upgrade.take());
    let request = request(call, &passage.serving)?;
    let answering = sender.send_request(request);
    let answer = match &stranger {
        Some(_) => tokio::time::timeout(ANSWER, answering)
            .await
            .map_err(|_| away(&format_args!("it does not answer within {} s", ANSWER.as_secs())))?,
        None => answering.await,
    };
    let mut answer = answer.map_err(|error| away(&error))?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(caller) = upgrade else { return Err(away(&"it changes the protocol unasked")) };
        let task = hyper::upgrade::on(&mut answer);
        let mut response = answered(answer.map(Body::new), &passage);
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        // It ends when either side closes the connection, or when the session or the task ends.
        tokio::spawn(async move {
            relay(caller, task, application, passage).await;
            drop(stranger);
        });
        return Ok(Reply::Passed(response));
    }
    let answer = answer.map(Body::new);
    let answer = match stranger {
        // Whoever asked has a place until all of the answer is taken.
        Some(place) => answer.map(|body| Body::from_stream(body.into_data_stream().inspect(move |_| _ = &place))),
        None => answer,
    };
    Ok(Reply::Passed(answered(answer, &passage)))
}

/// Whether a request wants a websocket.
pub(crate) fn asks_for_websocket(headers: &HeaderMap) -> bool {
    let has = |name: HeaderName, word: &str| {
        let texts = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        texts.flat_map(|text| text.split(',')).any(|found| found.trim().eq_ignore_ascii_case(word))
    };
    has(header::CONNECTION, "upgrade") && has(header::UPGRADE, "websocket")
}

/// Carries bytes between a caller and a task, for as long as the caller may see it.
async fn relay(caller: OnUpgrade, task: OnUpgrade, application: Arc<Application>, passage: Passage) {
    let (Ok(caller), Ok(task)) = (caller.await, task.await) else { return };
    let (mut caller, mut task) = (TokioIo::new(caller), TokioIo::new(task));
    tokio::select! {
        // Either end may break off as it likes.
        _ = tokio::io::copy_bidirectional(&mut caller, &mut task) => {}
        () = passage.closed(&application) => {}
    }
}

/// Removes what belongs to one connection: the known ones, and those that `Connection` names.
pub(super) fn without_those_of_the_connection(headers: &mut HeaderMap) {
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    OF_CONNECTIONS.iter().for_each(|name| drop(headers.remove(name)));
    named.iter().for_each(|name| drop(headers.remove(name.as_str())));
}

fn request(call: Call, serving: &Serving) -> Result<Request<Body>, Failure> {
    let unusable = |error: axum::http::Error| Failure::invalid(format!("cannot forward the request: {error}"));
    let path = call.uri.path_and_query().map_or("/", |path| path.as_str());
    let uri: Uri = path.parse().map_err(|_| Failure::invalid("cannot forward the address"))?;
    let built = Request::builder()
        .method(call.route.method.name())
        .uri(uri)
        .body(lock(&call.passed).take().unwrap_or_default());
    let mut request = built.map_err(unusable)?;
    *request.headers_mut() = passed_on(call.headers, serving);
    Ok(request)
}

/// The headers that a task sees: not the caller's token, but the secret that it asks of the master.
fn passed_on(mut headers: HeaderMap, Serving { service, secret, .. }: &Serving) -> HeaderMap {
    let (theirs, websocket) = (cookies::for_task(&headers), asks_for_websocket(&headers));
    without_those_of_the_connection(&mut headers);
    // Written anew with the body, as it comes.
    for name in ["authorization", "grpc-metadata-x-allocation-token", "cookie", "host", "content-length", "expect"] {
        headers.remove(name);
    }
    let shown = secret.as_ref().and_then(|secret| HeaderValue::from_str(&format!("token {secret}")).ok());
    headers.extend(shown.map(|shown| (header::AUTHORIZATION, shown)));
    if let Some(cookies) = theirs {
        headers.insert(header::COOKIE, cookies);
    }
    headers.append(header::VIA, HeaderValue::from_static(BY_MASTER));
    if websocket {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
    let host = match service.address.contains(':') {
        true => format!("[{}]:{}", service.address, service.port),
        false => format!("{}:{}", service.address, service.port),
    };
    if let Ok(host) = HeaderValue::from_str(&host) {
        headers.insert(header::HOST, host);
    }
    headers
}

/// The answer that the asker sees.
fn answered(mut response: Response<Body>, passage: &Passage) -> Response<Body> {
    let headers = response.headers_mut();
    without_those_of_the_connection(headers);
    for name in OF_ORIGINS {
        headers.remove(name);
    }
    if let header::Entry::Occupied(given) = headers.entry(header::SET_COOKIE) {
        let (_, given) = given.remove_entry_mult();
        let texts: Vec<HeaderValue> = given.collect();
        let set =
            texts.iter().filter_map(|value| cookies::from_task(value.to_str().ok()?, &passage.target.to_string()));
        headers.extend(set.map(|cookie| (header::SET_COOKIE, cookie)));
    }
    if passage.sandboxed {
        headers.remove(header::SET_COOKIE);
        headers.append(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; frame-ancestors 'none'"));
    }
    response
}

#[cfg(test)]
mod tests {
    use instep_api::link::Service;

    use super::*;

    #[test]
    fn a_task_learns_no_token() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer secret"),
            ("grpc-metadata-x-allocation-token", "Bearer secret"),
            ("cookie", "a=1; auth=secret;b=2; instep_session_1=secret; instep_task_1=secret"),
            ("connection", "keep-alive, X-Hop"),
            ("x-hop", "secret"),
            ("accept", "text/html"),
            ("host", "master:8080"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers.append(header::COOKIE, HeaderValue::from_static("auth=secret"));
        let passed = passed_on(headers.clone(), &serving(None));
        assert!(!format!("{passed:?}").contains("secret"), "{passed:?}");
        assert_eq!(passed["cookie"], "a=1; b=2");
        assert_eq!(passed["host"], "[::1]:2600");
        assert_eq!((passed["via"].as_bytes(), passed.len()), (BY_MASTER.as_bytes(), 4), "{passed:?}");
        let passed = passed_on(headers, &serving(Some("own")));
        assert_eq!(passed[header::AUTHORIZATION], "token own");
        assert!(!format!("{passed:?}").contains("secret"), "{passed:?}");
    }

    fn serving(secret: Option<&str>) -> Serving {
        let service =
            Service { address: "::1".to_owned(), port: 2600, path: "/proxy/t/".to_owned(), protocol: Protocol::Http };
        Serving { service, secret: secret.map(str::to_owned), unauthenticated: false, may_be_here: true }
    }

    #[test]
    fn agents_of_an_engine_s_jobs_lead_nobody_to_the_master_s_machine() {
        let passage = |may_be_here| {
            let passage = passage(false);
            Passage { serving: Serving { may_be_here, ..passage.serving }, ..passage }
        };
        let ends = |there: &str, here: &str| (there.parse().unwrap(), here.parse().unwrap());
        let is_own_port = |port| port == 8080;
        for (there, here) in [
            ends("127.0.0.1:5432", "127.0.0.1"),
            ends("[::ffff:127.0.0.1]:5432", "127.0.0.1"),
            ends("10.0.0.1:5432", "10.0.0.1"),
            ends("[fd00::1]:5432", "fd00::1"),
        ] {
            let why = passage(false).objection(there, here, is_own_port).unwrap();
            assert!(why.contains("the master's machine\nhint: "), "{there}: {why}");
            assert_eq!(passage(true).objection(there, here, is_own_port), None, "{there}");
        }
        let (there, here) = ends("10.0.0.2:8080", "10.0.0.1");
        assert_eq!(passage(false).objection(there, here, is_own_port), None, "it is a node");
        let (there, here) = ends("10.0.0.1:8080", "10.0.0.1");
        assert!(passage(true).objection(there, here, is_own_port).unwrap().contains("is the master's own"));
    }

    fn passage(sandboxed: bool) -> Passage {
        let target = Target { task: "t".to_owned(), port: None };
        Passage { target, session: None, serving: serving(None), sandboxed }
    }

    fn answer() -> Response<Body> {
        let mut response = Response::new(Body::empty());
        for (name, value) in [
            ("set-cookie", "auth=mine"),
            ("set-cookie", "own=1; Path=/; Domain=example.org"),
            ("set-cookie", "instep_session_1=mine; Path=/"),
            ("set-cookie", "two=2"),
            ("content-security-policy", "default-src 'self'"),
            ("clear-site-data", "\"cookies\""),
            ("service-worker-allowed", "/"),
            ("strict-transport-security", "max-age=1"),
            ("upgrade", "h2c"),
            ("etag", "x"),
        ] {
            response.headers_mut().append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        response
    }

    fn all<'a>(response: &'a Response<Body>, name: &str) -> Vec<&'a str> {
        response.headers().get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
    }

    #[test]
    fn a_task_speaks_for_its_own_pages_alone() {
        let found = answered(answer(), &passage(false));
        assert_eq!(all(&found, "set-cookie"), ["own=1; Path=/proxy/t/", "two=2; Path=/proxy/t/"]);
        assert_eq!((all(&found, "etag"), all(&found, "content-security-policy").len()), (vec!["x"], 1));
        assert_eq!(found.headers().len(), 4, "{found:?}");
    }

    #[test]
    fn at_the_master_s_own_origin_an_answer_is_no_page() {
        let found = answered(answer(), &passage(true));
        assert_eq!(all(&found, "set-cookie").len(), 0);
        assert!(all(&found, "content-security-policy").contains(&"sandbox; frame-ancestors 'none'"), "{found:?}");
    }

    #[test]
    fn a_websocket_is_asked_for_in_two_headers() {
        let asks = |connection: &'static str, upgrade: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONNECTION, HeaderValue::from_static(connection));
            headers.insert(header::UPGRADE, HeaderValue::from_static(upgrade));
            let passed = passed_on(headers.clone(), &serving(None));
            assert_eq!(asks_for_websocket(&passed), asks_for_websocket(&headers));
            asks_for_websocket(&headers)
        };
        assert!(asks("Upgrade", "websocket") && asks("keep-alive, upgrade", "WebSocket"));
        assert!(!asks("keep-alive", "websocket") && !asks("upgrade", "h2c"));
    }
}
