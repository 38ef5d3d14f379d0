//! What an answer says when a request could not be done: gRPC's codes, in the JSON of its gateway.

use serde::{Deserialize, Serialize};

/// Why a request failed, in gRPC's terms. HTTP knows which status each has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "gRPC's own names say it")]
pub enum Code {
    InvalidArgument,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    Unimplemented,
    Internal,
    Unavailable,
    Unauthenticated,
}

impl Code {
    /// gRPC's number.
    pub fn number(self) -> i32 {
        match self {
            Code::InvalidArgument => 3,
            Code::NotFound => 5,
            Code::AlreadyExists => 6,
            Code::PermissionDenied => 7,
            Code::ResourceExhausted => 8,
            Code::FailedPrecondition => 9,
            Code::Aborted => 10,
            Code::Unimplemented => 12,
            Code::Internal => 13,
            Code::Unavailable => 14,
            Code::Unauthenticated => 16,
        }
    }

    /// gRPC's name.
    pub fn name(self) -> &'static str {
        match self {
            Code::InvalidArgument => "InvalidArgument",
            Code::NotFound => "NotFound",
            Code::AlreadyExists => "AlreadyExists",
            Code::PermissionDenied => "PermissionDenied",
            Code::ResourceExhausted => "ResourceExhausted",
            Code::FailedPrecondition => "FailedPrecondition",
            Code::Aborted => "Aborted",
            Code::Unimplemented => "Unimplemented",
            Code::Internal => "Internal",
            Code::Unavailable => "Unavailable",
            Code::Unauthenticated => "Unauthenticated",
        }
    }
}

/// The body of a failed request below `/api/v1`.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ErrorBody {
    pub error: ErrorDetail,
}

/// What happened to a failed request.
#[derive(Debug, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// gRPC's number.
    pub code: i32,
    /// gRPC's name.
    pub reason: String,
    /// A sentence for people.
    pub error: String,
}

impl ErrorBody {
    /// The body for a code and a sentence.
    pub fn new(code: Code, message: &str) -> ErrorBody {
        let detail = ErrorDetail { code: code.number(), reason: code.name().to_owned(), error: message.to_owned() };
        ErrorBody { error: detail }
    }
}

/// The body of a failed request to a plain route, outside of `/api/v1`.
#[derive(Debug, Serialize, Deserialize)]
pub struct PlainErrorBody {
    /// A sentence for people.
    pub message: String,
}
