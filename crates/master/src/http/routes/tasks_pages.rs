//! The pages of tasks, at an origin of their own.

use super::super::access::Access::TaskKey;
use super::super::route::Method::{Delete, Get, Patch, Post, Put};
use super::super::route::{Kind, PROXY_TIMEOUT, Route, route};
use super::super::task_pages;

/// Everything that is served there: whatever the tasks serve.
pub(crate) fn task_routes() -> Vec<Route> {
    let mut routes = Vec::new();
    for path in ["/proxy/{id}/", "/proxy/{id}/{*rest}"] {
        for method in [Get, Post, Put, Patch, Delete] {
            let row = route(method, path, TaskKey, task_pages::at_own_origin);
            routes.push(row.answers(Kind::Other("*/*")).timeout(PROXY_TIMEOUT));
        }
    }
    routes
}
