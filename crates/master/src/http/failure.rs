//! What a request gets that cannot be done. The only place that knows which status a code has.

use axum::body::Body;
use axum::http::{Response, StatusCode, header};
use instep_api::error::{Code, ErrorBody, PlainErrorBody};
use instep_database::Error;

use crate::cluster::Refusal;

/// Why a request was not done: a code for programs, a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub code: Code,
    pub message: String,
    /// A status that gRPC has no code for.
    status: Option<StatusCode>,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into(), status: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(Code::InvalidArgument, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Failure {
        Failure::new(Code::NotFound, message)
    }

    pub(crate) fn unauthenticated() -> Failure {
        Failure::new(Code::Unauthenticated, "invalid credentials")
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Failure {
        Failure::new(Code::PermissionDenied, message)
    }

    pub(crate) fn too_large(limit: usize) -> Failure {
        let message = format!("the request's body is larger than {limit} bytes");
        Failure { code: Code::ResourceExhausted, message, status: Some(StatusCode::PAYLOAD_TOO_LARGE) }
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Failure {
        let status = Some(StatusCode::UNSUPPORTED_MEDIA_TYPE);
        Failure { code: Code::InvalidArgument, message: message.into(), status }
    }

    pub(crate) fn method_not_allowed(message: impl Into<String>) -> Failure {
        let status = Some(StatusCode::METHOD_NOT_ALLOWED);
        Failure { code: Code::NotFound, message: message.into(), status }
    }

    /// Another server was to do it, and was lost meanwhile.
    pub(crate) fn bad_gateway(message: impl Into<String>) -> Failure {
        let status = Some(StatusCode::BAD_GATEWAY);
        Failure { code: Code::Unavailable, message: message.into(), status }
    }

    fn status(&self) -> StatusCode {
        self.status.unwrap_or(match self.code {
            Code::InvalidArgument | Code::FailedPrecondition => StatusCode::BAD_REQUEST,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        })
    }

    /// The answer: in gRPC's shape below `/api/v1`, plain elsewhere, and by which name the log knows the request.
    pub(crate) fn response(&self, path: &str, request: &str) -> Response<Body> {
        let mut body = if path.starts_with("/api/v1/") {
            serde_json::json!(ErrorBody::new(self.code, &self.message))
        } else {
            serde_json::json!(PlainErrorBody { message: self.message.clone() })
        };
        body["requestId"] = request.into();
        let mut response = Response::new(Body::from(body.to_string()));
        *response.status_mut() = self.status();
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        response
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        match refusal {
            Refusal::Missing(what) => Failure::not_found(what),
            Refusal::Invalid(what) => Failure::invalid(what),
            Refusal::Precondition(what) => Failure::new(Code::FailedPrecondition, what),
            Refusal::Closed => Failure::new(Code::Unavailable, "the master is shutting down"),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match &error {
            Error::NotFound { .. } => Code::NotFound,
            Error::AlreadyExists(_) => Code::AlreadyExists,
            Error::Invalid(_) => Code::InvalidArgument,
            Error::Precondition(_) | Error::Registered { .. } => Code::FailedPrecondition,
            Error::Aborted => Code::Aborted,
            Error::Closed
            | Error::Superseded
            | Error::SteppedDown(_)
            | Error::Refused { .. }
            | Error::InUse { .. }
            | Error::InUseHere { .. }
            | Error::InUseElsewhere { .. } => Code::Unavailable,
            // It names the server's host and user, which are not for everybody who asks.
            Error::Engine(_) if error.is_lost() => {
                let hint = "the master's log says why";
                return Failure::new(Code::Unavailable, format!("the database does not answer\nhint: {hint}"));
            }
            Error::NotDurable(_)
            | Error::Incomplete { .. }
            | Error::TooNew { .. }
            | Error::Unusable { .. }
            | Error::Damaged(_)
            | Error::File { .. }
            | Error::FileExists { .. }
            | Error::Engine(_) => Code::Internal,
        };
        let mut message = error.to_string();
        if let Some(cause) = std::error::Error::source(&error) {
            message = format!("{message}: {cause}");
        }
        Failure::new(code, message)
    }
}
