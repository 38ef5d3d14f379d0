//! Walks the table of routes: every route × {no token, a wrong one, one that has expired, a user's, an administrator's}.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use instep_api::identifiers::UserId;
use instep_api::wire::Timestamp;
use instep_database::{Database, Opening};

use super::guard::Access;
use super::router::{Method, router};
use super::routes::routes;
use crate::application::Application;
use crate::clock::now;
use crate::passwords::token_hash;

/// A server on a database of its own, with a token for each of the two first users and one that has expired.
struct Served {
    address: SocketAddr,
    _runtime: tokio::runtime::Runtime,
    _folder: tempfile::TempDir,
}

fn serve() -> Served {
    let folder = tempfile::tempdir().unwrap();
    let opening = Opening { holder: "test".into(), cluster_id: "cluster".into(), now: now() };
    let database = Database::open(&folder.path().join("a.db"), &opening).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let address = runtime.block_on(async {
        let later = Timestamp(now().0 + 3_600_000_000);
        for (token, user, expiry) in [("admin", 1, later), ("user", 2, later), ("expired", 1, Timestamp(1))] {
            database.open_session(token_hash(token), UserId(user), Timestamp(0), expiry).await.unwrap();
        }
        let application = Arc::new(Application::new(database, vec![]));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = router(&application).into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, service).await });
        address
    });
    Served { address, _runtime: runtime, _folder: folder }
}

fn status(served: &Served, method: &str, path: &str, header: &str) -> u16 {
    let mut connection = TcpStream::connect(served.address).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n{header}\r\n"
    );
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no status: {answer:?}"))
}

fn name(method: Method) -> &'static str {
    match method {
        Method::Get => "GET",
        Method::Post => "POST",
        Method::Put => "PUT",
        Method::Patch => "PATCH",
        Method::Delete => "DELETE",
    }
}

#[test]
fn every_route_asks_for_what_its_table_says() {
    let served = serve();
    let unauthenticated = 401;
    let forbidden = 403;
    for route in routes() {
        let path = route.path.replace("{*external}", "x/y").replace("{id}", "77").replace("{kind}", "trial_metrics");
        let path = path.replace(['{', '}'], "");
        let ask = |header: &str| status(&served, name(route.method), &path, header);
        let what = format!("{} {path}", name(route.method));
        // Requests come from this machine, so that what is open to it is open here.
        let open = matches!(route.access, Access::Open | Access::LocalOrUser);
        for header in
            ["", "Authorization: Bearer wrong\r\n", "Authorization: Bearer expired\r\n", "Cookie: auth=no\r\n"]
        {
            assert_eq!(ask(header) == unauthenticated, !open, "{what} with {header:?}");
        }
        if path != "/api/v1/auth/logout" {
            let refused = [ask("Authorization: Bearer user\r\n"), ask("Authorization: Bearer admin\r\n")];
            // Users may change themselves, and nobody else.
            let reserved = route.access == Access::Administrator || what == "PATCH /api/v1/users/77";
            assert_eq!(refused[0] == forbidden, reserved, "{what} for a user");
            assert!(refused[1] != forbidden && refused[1] != unauthenticated, "{what} for an administrator");
            assert!(refused.iter().all(|status| *status < 500), "{what}: {refused:?}");
        }
        let foreign = status(&served, name(route.method), &path, "Origin: http://evil.example\r\n");
        assert_eq!(foreign, forbidden, "{what} from a foreign page");
    }
}

#[test]
fn no_route_is_there_twice() {
    let mut seen: Vec<(&str, &str)> = routes().iter().map(|route| (name(route.method), route.path)).collect();
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count);
}
