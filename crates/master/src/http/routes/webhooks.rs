//! Who is told when something happens.

use instep_api::webhooks::{CustomEventRequest, PatchWebhookRequest, WebhookRequest};

use super::super::access::Access::{Change, Login, Read};
use super::super::access::Thing::{InBody, Several};
use super::super::route::Method::{Delete, Get, Patch, Post};
use super::super::route::{Route, route};
use super::super::webhooks;

pub(super) fn routes() -> Vec<Route> {
    vec![
        route(Get, "/api/v1/webhooks", Read(Several), webhooks::list),
        route(Post, "/api/v1/webhooks", Login, webhooks::create).request::<WebhookRequest>().names(&["name"]),
        route(Post, "/api/v1/webhooks/custom", Change(InBody), webhooks::custom).request::<CustomEventRequest>(),
        route(Patch, "/api/v1/webhooks/{id}", Login, webhooks::change).request::<PatchWebhookRequest>(),
        route(Delete, "/api/v1/webhooks/{id}", Login, webhooks::delete),
        route(Post, "/api/v1/webhooks/{id}/test", Login, webhooks::test),
    ]
}
