//! What a stolen access token is good for: not for more than it was made for.

use serde_json::{Value, json};

use super::{FORBIDDEN, Served, ask, bearer, make, serve};
use crate::http::route::Method::{self, Get, Patch, Post};

fn token_of(served: &Served) -> String {
    let made = make(served, "/api/v1/tokens", &json!({"lifespan": "24h"}));
    made["token"].as_str().unwrap().to_owned()
}

#[test]
fn an_access_token_makes_no_tokens_and_changes_no_passwords() {
    let served = serve();
    let token = token_of(&served);
    let with = |method: Method, path: &str, body: Value| ask(&served, method, path, &bearer(&token), &body.to_string());
    for (method, path, body) in [
        (Post, "/api/v1/tokens", json!({"lifespan": "-1"})),
        (Post, "/api/v1/users/2/password", json!("Stolen123!")),
        (Patch, "/api/v1/users/2", json!({"password": "Stolen123!"})),
    ] {
        let (status, answer) = with(method, path, body);
        assert!(
            status == FORBIDDEN && answer.contains("hint: log in with `instep login determined`"),
            "{path}: {answer}"
        );
    }
    assert_eq!(with(Get, "/api/v1/me", json!({})).0, 200);
    // What the login made by itself goes on.
    assert_ne!(token_of(&served), token);
}

#[test]
fn not_even_an_administrator_s_token_sets_passwords() {
    let served = serve();
    let (_, answer) = ask(&served, Post, "/api/v1/tokens", &bearer("administrator"), "{}");
    let made: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let header = bearer(made["token"].as_str().unwrap());
    assert_eq!(ask(&served, Patch, "/api/v1/users/2", &header, r#"{"displayName": "D"}"#).0, 200);
    assert_eq!(ask(&served, Patch, "/api/v1/users/2", &header, r#"{"password": "Stolen123!"}"#).0, FORBIDDEN);
}
