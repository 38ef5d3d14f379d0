//! Makes a server of the table of routes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, RawPathParams, Request};
use axum::http::{Response, header};
use axum::routing::{MethodFilter, on};
use instep_api::error::Code;

use super::call::{Call, Query};
use super::failure::Failure;
use super::guard::{admit, check_origin, token_of};
use super::reply::Reply;
use super::routes::{Route, routes};
use crate::application::Application;

/// How long a request may take to be read and done; streams may take longer to be sent.
const DEADLINE: Duration = Duration::from_secs(60);

/// The server's router.
pub(crate) fn router(application: &Arc<Application>) -> Router {
    let mut router = Router::new();
    for route in routes() {
        let application = Arc::clone(application);
        let filter = route.method.filter();
        let path = route.path;
        let route = Arc::new(route);
        let handler = move |ConnectInfo(peer): ConnectInfo<SocketAddr>, parts: RawPathParams, request: Request| {
            let parts = parts.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            answer(Arc::clone(&application), Arc::clone(&route), peer, parts, request)
        };
        router = router.route(path, on(filter, handler));
    }
    router
        .fallback(|request: Request| async move {
            let (method, path) = (request.method(), request.uri().path());
            Failure::not_found(format!("there is no {method} {path}")).response("")
        })
        .method_not_allowed_fallback(|request: Request| async move {
            let (method, path) = (request.method(), request.uri().path());
            Failure::method_not_allowed(format!("{path} cannot be asked with {method}")).response("")
        })
}

async fn answer(
    application: Arc<Application>,
    route: Arc<Route>,
    peer: SocketAddr,
    parts: Vec<(String, String)>,
    request: Request,
) -> Response<Body> {
    let work = handle(application, &route, peer, parts, request);
    let outcome = tokio::time::timeout(DEADLINE, work).await.unwrap_or_else(|_| {
        Err(Failure::new(Code::Unavailable, format!("the request took longer than {} s", DEADLINE.as_secs())))
    });
    match outcome {
        Ok(reply) => reply.response(),
        Err(failure) => failure.response(route.path),
    }
}

async fn handle(
    application: Arc<Application>,
    route: &Route,
    peer: SocketAddr,
    path: Vec<(String, String)>,
    request: Request,
) -> Result<Reply, Failure> {
    let (head, body) = request.into_parts();
    check_origin(&head.headers, &application.allowed_hosts)?;
    let token = token_of(&head.headers);
    let user = admit(&application, route.access, token.as_deref(), peer).await?;
    let body = to_bytes(body, route.body_limit).await.map_err(|error| {
        let too_large =
            std::error::Error::source(&error).is_some_and(|cause| cause.to_string().contains("length limit"));
        if too_large {
            Failure::too_large(route.body_limit)
        } else {
            Failure::invalid(format!("cannot read the request's body: {error}"))
        }
    })?;
    let query = Query::parse(head.uri.query().unwrap_or_default());
    let accept = head.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).map(str::to_owned);
    (route.handler)(Call { application, peer, user, token, path, query, accept, body }).await
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
