//! Who learns the key of a shell, and what strangers learn of what tasks serve.

use super::*;

fn key_of(answer: &str) -> Option<String> {
    let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1)?).ok()?;
    body["shell"]["privateKey"].as_str().map(str::to_owned)
}

#[test]
fn the_key_of_a_shell_is_for_its_owner_and_administrators() {
    let served = serve();
    fill(&served);
    let made = make(&served, "/api/v1/shells", &json!({"config": {"resources": {"slots": 0}}}));
    let (task, key) = (made["shell"]["id"].as_str().unwrap(), made["shell"]["privateKey"].as_str().unwrap());
    assert!(key.starts_with("-----BEGIN OPENSSH PRIVATE KEY-----\n"));
    let path = format!("/api/v1/shells/{task}");
    for token in ["owner", "administrator"] {
        let (status, answer) = ask(&served, Get, &path, &bearer(token), "");
        assert_eq!((status, key_of(&answer).as_deref()), (200, Some(key)), "{token}");
    }
    // Others see that it is there. A task does not stand for all that its owner has.
    for token in ["other", "own task", "other task"] {
        let (status, answer) = ask(&served, Get, &path, &bearer(token), "");
        assert_eq!(status, FORBIDDEN, "{token}: {answer}");
        assert!(answer.contains("only they and administrators may open it"), "{answer}");
        assert_eq!(ask(&served, Get, "/api/v1/shells", &bearer(token), "").0, 200);
    }
    let urgent = r#"{"priority": 7}"#;
    for (method, path, body) in [
        (Get, "/api/v1/shells".to_owned(), ""),
        (Get, format!("/api/v1/tasks/{task}"), ""),
        (Post, format!("{path}/set_priority"), urgent),
        (Post, format!("{path}/kill"), ""),
    ] {
        let (status, answer) = ask(&served, method, &path, &bearer("owner"), body);
        assert!(status == 200 && !answer.contains("PRIVATE KEY"), "{path}: {answer}");
    }
}

#[test]
fn with_roles_a_shell_is_nobody_else_s_either() {
    let (served, _) = roles::serve_private();
    let made = make(&served, "/api/v1/shells", &json!({"config": {"resources": {"slots": 0}}, "workspaceId": 2}));
    let path = format!("/api/v1/shells/{}", made["shell"]["id"].as_str().unwrap());
    let status = |token: &str| ask(&served, Get, &path, &bearer(token), "").0;
    assert_eq!([status("owner"), status("viewer"), status("other")], [200, FORBIDDEN, 404]);
}

#[test]
fn strangers_learn_nothing_of_what_tasks_serve() {
    let served = serve();
    let things = fill(&served);
    let made = make(&served, "/api/v1/shells", &json!({"config": {"resources": {"slots": 0}}}));
    let shell = made["shell"]["id"].as_str().unwrap();
    for name in [shell, &things.command, &format!("{}:80", things.command), UUID, &format!("{UUID}:80")] {
        let path = format!("/proxy/{name}/");
        assert_eq!(ask(&served, Get, &path, "", "").0, UNAUTHENTICATED, "{name}");
        assert_eq!(ask(&served, Get, &path, &bearer("wrong"), "").0, UNAUTHENTICATED, "{name}");
    }
    let (status, answer) = ask(&served, Get, &format!("/proxy/{UUID}:80/"), &bearer("owner"), "");
    assert!(status == 404 && answer.contains("not found"), "{answer}");
    let (status, answer) = ask(&served, Get, &format!("/proxy/{}:80/", things.command), &bearer("owner"), "");
    assert!(status == 404 && answer.contains("environment.proxy_ports"), "{answer}");
    for odd in ["t:0", "t:65536", "t:080", "t:80:90", "t:x"] {
        assert_eq!(ask(&served, Get, &format!("/proxy/{odd}/"), &bearer("owner"), "").0, 404, "{odd}");
    }
}
