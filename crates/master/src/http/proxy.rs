//! What tasks serve, under the master's own address: `/proxy/TASK/…` goes to the port of that task, and nowhere else.
//!
//! Whoever asks is known to the master by then. The task does not learn their token, and cannot set cookies for the
//! master's address.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{HeaderMap, Request, Response, Uri};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use instep_api::error::Code;
use instep_api::link::Service;
use tokio::net::TcpStream;

use super::call::Call;
use super::failure::Failure;
use super::reply::Reply;

/// How long a task may take to be reached.
const CONNECT: Duration = Duration::from_secs(10);

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

/// Passes a request on to a task, and its answer back.
pub(crate) async fn pass(call: Call) -> Result<Reply, Failure> {
    let task = call.part("id").to_owned();
    let Some(service) = call.application.cluster.use_service(task.clone()).await? else {
        let row = call.application.database.command(task.clone()).await?;
        let (code, what) = match row.ended_at {
            Some(_) => (Code::NotFound, format!("task {task} has ended")),
            None => (Code::Unavailable, format!("task {task} is not ready yet")),
        };
        return Err(Failure::new(code, what));
    };
    let away = |error: &dyn std::fmt::Display| {
        Failure::new(Code::Unavailable, format!("task {task} cannot be reached: {error}"))
    };
    let connecting = TcpStream::connect((service.address.as_str(), service.port));
    let stream = tokio::time::timeout(CONNECT, connecting).await.map_err(|error| away(&error))?;
    let stream = stream.map_err(|error| away(&error))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| away(&error))?;
    // It ends with its one answer.
    tokio::spawn(connection);
    let request = request(call, &service)?;
    let answer = sender.send_request(request).await.map_err(|error| away(&error))?;
    Ok(Reply::Passed(answered(answer.map(Body::new))))
}

fn request(call: Call, service: &Service) -> Result<Request<Body>, Failure> {
    let unusable = |error: axum::http::Error| Failure::invalid(format!("cannot forward the request: {error}"));
    let path = call.uri.path_and_query().map_or("/", |path| path.as_str());
    let uri: Uri = path.parse().map_err(|_| Failure::invalid("cannot forward the address"))?;
    let built = Request::builder().method(call.route.method.name()).uri(uri).body(Body::from(call.body));
    let mut request = built.map_err(unusable)?;
    *request.headers_mut() = passed_on(call.headers, service);
    Ok(request)
}

/// The headers that a task sees.
fn passed_on(mut headers: HeaderMap, service: &Service) -> HeaderMap {
    let others: Vec<String> = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|cookies| cookies.split(';'))
        .map(str::trim)
        .filter(|cookie| !cookie.is_empty() && !cookie.starts_with("auth="))
        .map(str::to_owned)
        .collect();
    for name in OF_CONNECTIONS {
        headers.remove(name);
    }
    // Written anew with the body, which has been read.
    for name in ["authorization", "grpc-metadata-x-allocation-token", "cookie", "host", "content-length", "expect"] {
        headers.remove(name);
    }
    if let Ok(value) = HeaderValue::from_str(&others.join("; "))
        && !others.is_empty()
    {
        headers.insert(header::COOKIE, value);
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
fn answered(mut response: Response<Body>) -> Response<Body> {
    for name in OF_CONNECTIONS.iter().chain([&header::SET_COOKIE]) {
        response.headers_mut().remove(name);
    }
    response.headers_mut().remove("service-worker-allowed");
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_learns_no_token() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer secret"),
            ("grpc-metadata-x-allocation-token", "Bearer secret"),
            ("cookie", "a=1; auth=secret;b=2"),
            ("connection", "keep-alive"),
            ("accept", "text/html"),
            ("host", "master:8080"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers.append(header::COOKIE, HeaderValue::from_static("auth=secret"));
        let service = Service { address: "::1".to_owned(), port: 2600, path: "/".to_owned() };
        let passed = passed_on(headers, &service);
        assert!(!format!("{passed:?}").contains("secret"), "{passed:?}");
        assert_eq!(passed["cookie"], "a=1; b=2");
        assert_eq!(passed["host"], "[::1]:2600");
        assert_eq!(passed.len(), 3, "{passed:?}");
    }

    #[test]
    fn a_task_sets_no_cookies() {
        let mut response = Response::new(Body::empty());
        response.headers_mut().insert(header::SET_COOKIE, HeaderValue::from_static("auth=mine"));
        response.headers_mut().insert(header::ETAG, HeaderValue::from_static("x"));
        let answer = answered(response);
        assert_eq!(answer.headers().len(), 1);
    }
}
