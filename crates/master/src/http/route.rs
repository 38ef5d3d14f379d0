//! One row of the table of routes: a method and a path, who may call it, its handler, and its limits.

use std::any::TypeId;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use axum::routing::MethodFilter;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::access::Access;
use super::call::Call;
use super::failure::Failure;
use super::reply::{Answer, Reply};
use super::shape::schema_of;

/// How long a request may take, unless a route says otherwise.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long shares of an allocation wait for each other. They all start at once, but each has its context to fetch.
pub(super) const RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(3600);
/// How long a task may take to begin its answer, with all that it is sent before. Nobody else waits for it.
pub(super) const PROXY_TIMEOUT: Duration = Duration::from_secs(3600);
/// Bytes of a request's body at most, unless a route says otherwise.
const BODY_LIMIT: usize = 8 << 20;
/// Bytes of a login: it is read of everybody.
pub(super) const LOGIN_LIMIT: usize = 64 << 10;
/// A thousand lines of output, which may be long ones.
pub(super) const LOGS_LIMIT: usize = 64 << 20;
/// An experiment may come with its code: 96 MiB, a third more as base64.
pub(super) const EXPERIMENT_LIMIT: usize = 160 << 20;

type Handler = Box<dyn Fn(Call) -> Pin<Box<dyn Future<Output = Result<Reply, Failure>> + Send>> + Send + Sync>;

/// One thing that can be asked.
pub(crate) struct Route {
    pub method: Method,
    pub path: &'static str,
    pub access: Access,
    pub body_limit: usize,
    pub handler: Handler,
    /// What its body is read as, as a schema.
    pub request: Option<fn() -> Value>,
    request_type: Option<TypeId>,
    /// Which fields of its body are names that people give.
    pub names: &'static [&'static str],
    /// What it answers with, as its handler says.
    pub response: Option<fn() -> Value>,
    /// Which parameters it looks at.
    pub query: &'static [&'static str],
    pub kind: Kind,
    /// What the audit log calls its requests.
    pub action: Action,
    /// How long a request may take to be read and done; streams may take longer to be sent.
    pub timeout: Duration,
}

/// What a success brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Json,
    /// Lines of JSON, as they come.
    Lines,
    /// Something else, of this type.
    Other(&'static str),
    /// A websocket.
    Socket,
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

    /// As axum tells them apart.
    pub(super) fn filter(self) -> MethodFilter {
        match self {
            Method::Get => MethodFilter::GET,
            Method::Post => MethodFilter::POST,
            Method::Put => MethodFilter::PUT,
            Method::Patch => MethodFilter::PATCH,
            Method::Delete => MethodFilter::DELETE,
        }
    }
}

/// What the audit log knows of a route's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// All of them, under this name.
    Recorded(&'static str),
    /// Refusals only: running tasks report so often, and what they report is kept elsewhere.
    Report(&'static str),
    /// Refusals only: nothing is changed.
    Read,
}

impl Action {
    /// By which the audit log names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Action::Recorded(name) | Action::Report(name) => name,
            Action::Read => "read",
        }
    }
}

/// A route of the table, with what counts unless it says otherwise.
pub(super) fn route<F, Work, Given>(method: Method, path: &'static str, access: Access, handler: F) -> Route
where
    F: Fn(Call) -> Work + Send + Sync + 'static,
    Work: Future<Output = Result<Given, Failure>> + Send + 'static,
    Given: Answer,
{
    Route {
        method,
        path,
        access,
        body_limit: BODY_LIMIT,
        handler: Box::new(move |call| {
            let work = handler(call);
            Box::pin(async move { work.await?.reply() })
        }),
        request: None,
        request_type: None,
        names: &[],
        response: Given::SCHEMA,
        query: &[],
        kind: Kind::Json,
        action: Action::Read,
        timeout: TIMEOUT,
    }
}

impl Route {
    pub(super) fn body_up_to(self, body_limit: usize) -> Route {
        Route { body_limit, ..self }
    }

    pub(super) fn request<T: DeserializeOwned + 'static>(self) -> Route {
        Route { request: Some(schema_of::<T>), request_type: Some(TypeId::of::<T>()), ..self }
    }

    /// Which fields of the body are names: they have no control characters.
    pub(super) fn names(self, names: &'static [&'static str]) -> Route {
        Route { names, ..self }
    }

    pub(super) fn query(self, query: &'static [&'static str]) -> Route {
        Route { query, ..self }
    }

    pub(super) fn answers(self, kind: Kind) -> Route {
        Route { kind, ..self }
    }

    pub(super) fn timeout(self, timeout: Duration) -> Route {
        Route { timeout, ..self }
    }

    /// Whether the table says that bodies are read as this. What it says is what the OpenAPI document shows.
    pub(super) fn declares_request<T: 'static>(&self) -> bool {
        self.request_type == Some(TypeId::of::<T>())
    }
}
