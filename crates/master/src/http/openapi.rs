//! The OpenAPI document of everything that is served, made of the table of routes and of the types of the API.

use serde_json::{Map, Value, json};

use super::access::Access;
use super::call::Call;
use super::failure::Failure;
use super::reply::Reply;
use super::route::{Kind, Route};
use super::routes::routes;

/// What the parameters behind the question mark are; a name means the same on every route.
const PARAMETERS: &[(&[&str], &str)] = &[
    (
        &[
            "archived",
            "active",
            "admin",
            "follow",
            "enableRegex",
            "includeBatchMetrics",
            "cookie",
            "ask",
            "pinned",
            "showInactive",
            "unbound",
        ],
        "boolean",
    ),
    (
        &[
            "limit",
            "offset",
            "projectId",
            "startBatches",
            "endBatches",
            "maxDatapoints",
            "afterId",
            "timeoutSeconds",
            "periodSeconds",
            "maxTrials",
            "batchesProcessed",
            "batchesMargin",
            "id",
            "workspaceId",
        ],
        "integer",
    ),
    (&["userIds", "rankIds", "trialIds", "workspaceIds", "ids", "tokenIds"], "integers"),
    (&["timestampBefore", "timestampAfter"], "time"),
    (
        &[
            "users",
            "states",
            "labels",
            "agentIds",
            "allocationIds",
            "containerIds",
            "levels",
            "sources",
            "stdtypes",
            "metricIds",
            "metricNames",
            "workspaceNames",
        ],
        "texts",
    ),
];

/// `GET /api/openapi.json`
pub(crate) async fn document(_: Call) -> Result<Reply, Failure> {
    Reply::json(&made_of(&routes()))
}

/// The document.
pub(crate) fn made_of(routes: &[Route]) -> Value {
    let mut paths = Map::new();
    for route in routes {
        let path = paths.entry(spelled(route.path)).or_insert_with(|| json!({}));
        path[route.method.name().to_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "instep master",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The REST API of Determined's detached mode, as far as instep serves it, and instep's own \
                            additions. Requests may spell names in camelCase or snake_case; answers are in camelCase. \
                            Every answer names its request in the header X-Request-Id.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error", "requestId"],
                    "properties": {
                        "error": {
                            "type": "object",
                            "required": ["code", "reason", "error"],
                            "properties": {
                                "code": {"type": "integer", "description": "gRPC's number"},
                                "reason": {"type": "string", "description": "gRPC's name"},
                                "error": {"type": "string", "description": "a message for people"},
                            },
                        },
                        "requestId": {"type": "string"},
                    },
                },
                "PlainError": {
                    "type": "object",
                    "required": ["message", "requestId"],
                    "properties": {
                        "message": {"type": "string", "description": "a message for people"},
                        "requestId": {"type": "string"},
                    },
                },
            },
        },
    })
}

/// A path as the document spells it: a part that may hold slashes is a part like any other.
fn spelled(path: &str) -> String {
    path.replace("{*", "{")
}

fn operation(route: &Route) -> Value {
    let shape = if route.path.starts_with("/api/v1/") { "Error" } else { "PlainError" };
    let error = |why: &str| {
        let schema = json!({"$ref": format!("#/components/schemas/{shape}")});
        json!({"description": why, "content": {"application/json": {"schema": schema}}})
    };
    let mut responses = json!({"200": success(route), "default": error("the request failed")});
    responses["403"] = error("foreign host name, foreign page, or not permitted");
    if !matches!(route.access, Access::Open) {
        responses["401"] = error("no valid token");
    }
    let token = json!({"token": []});
    let security = match route.access {
        Access::Open => json!([]),
        Access::LocalOrUser => json!([{}, token]),
        Access::Read(_) | Access::Make | Access::Change(_) | Access::Login | Access::Share => json!([token]),
        Access::Administrator | Access::Agent | Access::Proxy => json!([token]),
        // Not a row of the master's own table.
        Access::TaskKey => json!([]),
    };
    let mut operation = json!({
        "operationId": operation_id(route),
        "tags": [tag(route.path)],
        "security": security,
        "parameters": parameters(route),
        "responses": responses,
    });
    if let Some(schema) = route.request {
        // An empty body counts as an empty object, or list.
        operation["requestBody"] = json!({"required": false, "content": {"application/json": {"schema": schema()}}});
    }
    operation
}

fn success(route: &Route) -> Value {
    let content = |kind: &str, schema: Value| json!({kind: {"schema": schema}});
    let (what, content) = match route.kind {
        Kind::Json => {
            let schema = route.response.map_or_else(|| json!({"type": "object"}), |schema| schema());
            ("done", content("application/json", schema))
        }
        Kind::Lines => ("a stream of JSON lines", content("application/json", json!({"type": "object"}))),
        Kind::Other(kind) => ("done", content(kind, json!({"type": "string"}))),
        Kind::Socket => ("the connection becomes a websocket", json!({})),
    };
    json!({"description": what, "content": content})
}

fn parameters(route: &Route) -> Vec<Value> {
    let parts = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path = parts.map(|name| {
        let name = name.trim_start_matches('*');
        let is_number = matches!(name, "id" | "version")
            && !["/tasks/", "/allocations/"].iter().any(|named| route.path.contains(named));
        let schema = json!({"type": if is_number { "integer" } else { "string" }});
        json!({"name": name, "in": "path", "required": true, "schema": schema})
    });
    let behind = route.query.iter().map(|name| {
        let kind = PARAMETERS.iter().find(|(names, _)| names.contains(name)).map_or("text", |(_, kind)| kind);
        let schema = match kind {
            "integers" => json!({"type": "array", "items": {"type": "integer"}}),
            "texts" => json!({"type": "array", "items": {"type": "string"}}),
            "time" => json!({"type": "string", "format": "date-time"}),
            "text" => json!({"type": "string"}),
            simple => json!({"type": simple}),
        };
        json!({"name": name, "in": "query", "required": false, "schema": schema})
    });
    in_path.chain(behind).collect()
}

fn operation_id(route: &Route) -> String {
    let words =
        route.path.split(['/', '-', '_', '{', '}', '*', '.']).filter(|word| !matches!(*word, "" | "api" | "v1"));
    let word = |word: &str| format!("{}{}", word[..1].to_uppercase(), &word[1..]);
    // `/checkpoints/{uuid}` is the files of what `/api/v1/checkpoints/{uuid}` describes.
    let place = if route.path.starts_with("/api/") { "" } else { "Root" };
    route.method.name().to_lowercase() + place + &words.map(word).collect::<String>()
}

fn tag(path: &str) -> &str {
    let rest = path.strip_prefix("/api/v1/").unwrap_or("master");
    rest.split('/').next().unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_holds_every_route_and_nothing_else() {
        let document = made_of(&routes());
        let mut described = Vec::new();
        for (path, operations) in document["paths"].as_object().unwrap() {
            for method in operations.as_object().unwrap().keys() {
                described.push(format!("{} {path}", method.to_uppercase()));
            }
        }
        let mut served: Vec<String> =
            routes().iter().map(|route| format!("{} {}", route.method.name(), spelled(route.path))).collect();
        described.sort();
        served.sort();
        assert_eq!(described, served);
    }

    #[test]
    fn operations_have_names_of_their_own_and_say_what_they_take() {
        let document = made_of(&routes());
        let operations: Vec<&Value> = document["paths"]
            .as_object()
            .unwrap()
            .values()
            .flat_map(|operations| operations.as_object().unwrap().values())
            .collect();
        let mut names: Vec<&str> =
            operations.iter().map(|operation| operation["operationId"].as_str().unwrap()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        let login = &document["paths"]["/api/v1/auth/login"]["post"];
        let body = &login["requestBody"]["content"]["application/json"]["schema"]["properties"];
        assert_eq!(body["isHashed"], json!({"type": ["boolean", "null"]}));
        assert_eq!(login["security"], json!([]));
        for parameter in operations.iter().flat_map(|operation| operation["parameters"].as_array().unwrap()) {
            assert!(parameter["schema"]["type"].is_string(), "{parameter}");
        }
    }
}
