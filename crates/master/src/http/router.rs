//! Makes a server of the table of routes.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{ConnectInfo, FromRequestParts, RawPathParams, Request};
use axum::http::{Response, header};
use axum::routing::{MethodFilter, on};
use instep_api::error::Code;

use super::call::{Call, Query, check_path_names};
use super::failure::Failure;
use super::guard::{admit, check_framing, check_origin, token_of};
use super::ownership;
use super::reply::Reply;
use super::request_id;
use super::routes::{Kind, Route, routes};
use crate::application::Application;
use crate::peer::Peer;

/// The server's router.
pub(crate) fn router(application: &Arc<Application>) -> Router {
    let mut router = Router::new();
    for route in routes() {
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
    let (unknown, wrong_method) = (Arc::clone(application), Arc::clone(application));
    router
        .fallback(move |request: Request| async move {
            let what = format!("there is no {} {}", request.method(), request.uri().path());
            refused(&unknown, &request, Failure::not_found(what))
        })
        .method_not_allowed_fallback(move |request: Request| async move {
            let what = format!("{} does not support {}", request.uri().path(), request.method());
            refused(&wrong_method, &request, Failure::method_not_allowed(what))
        })
}

/// The answer to what no route serves; strangers are told nothing else than by a route.
fn refused(application: &Application, request: &Request, failure: Failure) -> Response<Body> {
    let id = request_id::of(request.headers());
    let checked =
        check_framing(request.extensions()).and_then(|()| check_origin(request.headers(), &application.allowed_hosts));
    let failure = checked.err().unwrap_or(failure);
    request_id::mark(failure.response("", &id), &id)
}

async fn answer(
    application: Arc<Application>,
    route: Arc<Route>,
    peer: Peer,
    parts: Vec<(String, String)>,
    request: Request,
) -> Response<Body> {
    let (id, started) = (request_id::of(request.headers()), Instant::now());
    application.telemetry.begun();
    let work = handle(Arc::clone(&application), Arc::clone(&route), peer, parts, request);
    let outcome = tokio::time::timeout(route.patience, work).await.unwrap_or_else(|_| {
        let what = format!("the request took longer than {} s", route.patience.as_secs());
        Err(Failure::new(Code::Unavailable, what))
    });
    let response = match &outcome {
        Err(failure) => failure.response(route.path, &id),
        Ok(_) => Response::default(),
    };
    let (method, path, status, took) = (route.method.name(), route.path, response.status(), started.elapsed());
    application.telemetry.answered(method, path, status.as_u16(), took);
    match &outcome {
        Err(failure) if status.is_server_error() => {
            tracing::error!(request = id, method, route = path, status = status.as_u16(), why = failure.message);
        }
        _ => tracing::debug!(request = id, method, route = path, status = status.as_u16(), ?took, peer = %peer.remote),
    }
    request_id::mark(outcome.map_or(response, Reply::response), &id)
}

async fn handle(
    application: Arc<Application>,
    route: Arc<Route>,
    peer: Peer,
    path: Vec<(String, String)>,
    request: Request,
) -> Result<Reply, Failure> {
    let (mut head, body) = request.into_parts();
    check_framing(&head.extensions)?;
    check_origin(&head.headers, &application.allowed_hosts)?;
    let token = token_of(&head.headers);
    let session = admit(&application, route.access, token.as_deref(), peer).await?;
    let opened_at = session.as_ref().map(|session| session.opened_at);
    let (user, task) = session.map_or((None, None), |session| (Some(session.user), session.task));
    let body = to_bytes(body, route.body_limit).await.map_err(|error| {
        let too_large =
            std::error::Error::source(&error).is_some_and(|cause| cause.to_string().contains("length limit"));
        if too_large {
            Failure::too_large(route.body_limit)
        } else {
            Failure::invalid(format!("cannot read the request's body: {error}"))
        }
    })?;
    let upgrade = match route.kind {
        Kind::Socket => WebSocketUpgrade::from_request_parts(&mut head, &()).await.ok(),
        Kind::Json | Kind::Lines | Kind::Other(_) => None,
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
        opened_at,
        token,
        path,
        query,
        accept,
        headers,
        uri,
        body,
        upgrade,
    };
    // What is there under such a name can still be read, renamed and deleted.
    if matches!(route.method, Method::Post | Method::Put) && route.kind == Kind::Json {
        check_path_names(&call.path)?;
    }
    ownership::check(&call).await?;
    (route.handler)(call).await
}

/// The methods that routes use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl Method {
    /// As HTTP spells it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
            Method::Delete => "DELETE",
        }
    }

    fn filter(self) -> MethodFilter {
        match self {
            Method::Get => MethodFilter::GET,
            Method::Post => MethodFilter::POST,
            Method::Put => MethodFilter::PUT,
            Method::Patch => MethodFilter::PATCH,
            Method::Delete => MethodFilter::DELETE,
        }
    }
}
