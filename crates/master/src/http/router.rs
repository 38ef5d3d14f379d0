//! Makes a server of the table of routes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{ConnectInfo, FromRequestParts, RawPathParams, Request};
use axum::http::{HeaderName, HeaderValue, Response, StatusCode, header};
use axum::routing::on;
use hyper::upgrade::OnUpgrade;
use instep_api::error::Code;

use super::access::Access;
use super::call::{Call, Query, check_path_names};
use super::credentials::{Credential, is_navigation};
use super::failure::Failure;
use super::guard::{admit, check_framing, check_origin, shown};
use super::ownership;
use super::reply::Reply;
use super::request_id;
use super::route::{Action, Kind, Method, Route};
use super::routes::{routes, task_routes};
use crate::application::Application;
use crate::audit::Noted;
use crate::peer::Peer;
use crate::port_holder::only_pages;

/// The router of the master itself: its API and its pages.
pub(crate) fn router(application: &Arc<Application>) -> Router {
    router_of(application, routes(), |_, request| format!("there is no {} {}", request.method(), request.uri().path()))
}

/// The router of the tasks' pages, which have an origin of their own.
pub(crate) fn task_router(application: &Arc<Application>) -> Router {
    router_of(application, task_routes(), |application, request| {
        let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let asked = format!("{} {}", request.method(), request.uri().path());
        only_pages(&asked, application.sites.master_origin(host))
    })
}

/// `unknown` says what is wrong with a request that no route serves.
fn router_of(
    application: &Arc<Application>,
    routes: Vec<Route>,
    unknown: fn(&Application, &Request) -> String,
) -> Router {
    let mut router = Router::new();
    for route in routes {
        let application = Arc::clone(application);
        let filter = route.method.filter();
        let path = route.path;
        let route = Arc::new(route);
        let handler = move |ConnectInfo(peer): ConnectInfo<Peer>, parts: RawPathParams, request: Request| {
            let parts = parts.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            answer(Arc::clone(&application), Arc::clone(&route), peer, parts, request)
        };
        router = router.route(path, on(filter, handler));
    }
    let (application, wrong_method) = (Arc::clone(application), Arc::clone(application));
    router
        .fallback(move |request: Request| async move {
            let what = unknown(&application, &request);
            refused(&application, &request, Failure::not_found(what))
        })
        .method_not_allowed_fallback(move |request: Request| async move {
            let what = format!("{} does not support {}", request.uri().path(), request.method());
            refused(&wrong_method, &request, Failure::method_not_allowed(what))
        })
}

/// The answer to what no route serves; strangers are told nothing else than by a route.
fn refused(application: &Application, request: &Request, failure: Failure) -> Response<Body> {
    let id = request_id::of(request.headers());
    let checked = check_framing(request.extensions())
        .and_then(|()| check_origin(request.extensions(), request.headers(), &application.allowed_hosts));
    let failure = checked.err().unwrap_or(failure);
    request_id::mark(closed(failure.response("", &id)), &id)
}

/// Answers a request of a route. What is recorded is done whole, also if the caller goes away meanwhile: otherwise what was
/// done could miss in the audit log.
async fn answer(
    application: Arc<Application>,
    route: Arc<Route>,
    peer: Peer,
    parts: Vec<(String, String)>,
    request: Request,
) -> Response<Body> {
    let path = route.path;
    if !matches!(route.action, Action::Recorded(_)) {
        return answered(application, route, peer, parts, request).await;
    }
    let id = request_id::of(request.headers());
    tokio::spawn(answered(application, route, peer, parts, request)).await.unwrap_or_else(|error| {
        tracing::error!(request = id, route = path, %error, "a handler has failed");
        let failure = Failure::new(Code::Internal, "the request could not be done");
        request_id::mark(failure.response(path, &id), &id)
    })
}

async fn answered(
    application: Arc<Application>,
    route: Arc<Route>,
    peer: Peer,
    parts: Vec<(String, String)>,
    request: Request,
) -> Response<Body> {
    let (id, started) = (request_id::of(request.headers()), Instant::now());
    let recorded_id = request_id::recorded(request.headers(), &id);
    let (noted, subject) = (Arc::new(Noted::default()), subject_of(&route, &parts, &request));
    application.telemetry.begun();
    let work = handle(Arc::clone(&application), Arc::clone(&route), peer, parts, request, Arc::clone(&noted));
    let outcome = tokio::time::timeout(route.timeout, work).await.unwrap_or_else(|_| {
        let what = format!("the request took longer than {} s", route.timeout.as_secs());
        Err(Failure::new(Code::Unavailable, what))
    });
    let response = match &outcome {
        Err(failure) => failure.response(route.path, &id),
        Ok(_) => Response::default(),
    };
    let (method, path, status, took) = (route.method.name(), route.path, response.status(), started.elapsed());
    application.telemetry.answered(method, path, status.as_u16(), took);
    let refused = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    if refused || matches!(route.action, Action::Recorded(_)) {
        if !noted.has_subject() {
            noted.subject(subject);
        }
        let address = peer.remote.ip().to_canonical().to_string();
        application.audit.record(noted.record(route.action.name(), address, recorded_id, status.as_u16())).await;
    }
    match &outcome {
        // What a task's program does not answer is said to whoever asked; anybody could fill the log with it.
        Err(failure) if failure.code == Code::Internal => {
            tracing::error!(request = id, method, route = path, status = status.as_u16(), why = failure.message);
        }
        _ => tracing::debug!(request = id, method, route = path, status = status.as_u16(), ?took, peer = %peer.remote),
    }
    let response = outcome.map_or(response, Reply::response);
    let response = if route.access == Access::TaskKey { response } else { closed(response) };
    request_id::mark(response, &id)
}

/// Keeps other origins from showing an answer in their pages, and browsers from taking it for something else than it
/// says. What pages say of themselves stays.
fn closed(mut response: Response<Body>) -> Response<Body> {
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// What a request is about, as far as its address says it: of changes the parts that vary, else all of it.
fn subject_of(route: &Route, parts: &[(String, String)], request: &Request) -> String {
    match route.action {
        Action::Read => request.uri().path().to_owned(),
        Action::Recorded(_) | Action::Report(_) => {
            parts.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
        }
    }
}

async fn handle(
    application: Arc<Application>,
    route: Arc<Route>,
    peer: Peer,
    path: Vec<(String, String)>,
    request: Request,
    noted: Arc<Noted>,
) -> Result<Reply, Failure> {
    let (mut head, body) = request.into_parts();
    check_framing(&head.extensions)?;
    check_origin(&head.extensions, &head.headers, &application.allowed_hosts)?;
    let (token, by_cookie) = match shown(&head.headers, &route, &application.cookies)? {
        Credential::None => (None, false),
        Credential::Bearer(token) => (Some(token), false),
        Credential::Cookie(token) => (Some(token), true),
    };
    let known = match admit(&application, route.access, token.as_deref(), peer, &noted).await {
        // A browser without a session is sent to where somebody can sign in; some ports are for everybody.
        Err(_) if route.access == Access::Proxy && token.is_none() => None,
        Err(_) if route.access == Access::Proxy && by_cookie && is_navigation(&head.headers) => None,
        admitted => admitted?,
    };
    let (session, grants) = known.map_or((None, None), |known| (Some(known.session), known.grants));
    let opened_at = session.as_ref().map(|session| session.opened_at);
    let by_access_token = session.as_ref().is_some_and(|session| session.is_access_token);
    let (user, task) = session.map_or((None, None), |session| (Some(session.user), session.task));
    let (with_roles, asked) = (grants.is_some(), Arc::new(AtomicBool::new(false)));
    let (body, passed) = match route.access {
        // A task takes it as it comes.
        Access::Proxy | Access::TaskKey => (Bytes::new(), Some(body)),
        _ => (whole(body, route.body_limit).await?, None),
    };
    let upgrade = match route.kind {
        Kind::Socket => WebSocketUpgrade::from_request_parts(&mut head, &()).await.ok(),
        Kind::Json | Kind::Lines | Kind::Other(_) => None,
    };
    let on_upgrade = match route.access {
        Access::Proxy | Access::TaskKey => head.extensions.remove::<OnUpgrade>(),
        _ => None,
    };
    let query = Query::parse(head.uri.query().unwrap_or_default(), route.query);
    let accept = head.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let (headers, uri) = (head.headers, head.uri);
    let route_of_call = Arc::clone(&route);
    let call = Call {
        application,
        route: route_of_call,
        peer,
        user,
        task,
        grants,
        asked: Arc::clone(&asked),
        opened_at,
        by_access_token,
        token,
        by_cookie,
        path,
        query,
        accept,
        headers,
        uri,
        body,
        passed: Mutex::new(passed),
        noted,
        upgrade,
        on_upgrade,
    };
    // What is there under such a name can still be read, renamed and deleted.
    if matches!(route.method, Method::Post | Method::Put) && route.kind == Kind::Json {
        check_path_names(&call.path)?;
    }
    ownership::check(&call).await?;
    let reply = (route.handler)(call).await?;
    // An answer that nobody has compared with what the caller may see is not given.
    if with_roles && ownership::must_ask(route.access) && !asked.load(Ordering::Relaxed) {
        let what = format!("{} {} answers without asking who may see it", route.method.name(), route.path);
        tracing::error!("{what}");
        return Err(Failure::new(Code::Internal, what));
    }
    Ok(reply)
}

/// All of a body, if it is not too long.
async fn whole(body: Body, limit: usize) -> Result<Bytes, Failure> {
    to_bytes(body, limit).await.map_err(|error| {
        let too_large =
            std::error::Error::source(&error).is_some_and(|cause| cause.to_string().contains("length limit"));
        if too_large {
            Failure::too_large(limit)
        } else {
            Failure::invalid(format!("cannot read the request's body: {error}"))
        }
    })
}
