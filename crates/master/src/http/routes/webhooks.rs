//! Who is told when something happens.

use instep_api::webhooks::{CustomEventRequest, PatchWebhookRequest, WebhookRequest};

use super::super::guard::Access::{Change, Login, Read};
use super::super::guard::Thing::{InBody, Several};
use super::super::router::Method::{Delete, Get, Patch, Post};
use super::super::webhooks;
use super::{Route, route};

pub(super) fn routes() -> Vec<Route> {
    vec![
        route(Get, "/api/v1/webhooks", Read(Several), webhooks::list),
        route(Post, "/api/v1/webhooks", Login, webhooks::create).takes::<WebhookRequest>().names(&["name"]),
        route(Post, "/api/v1/webhooks/custom", Change(InBody), webhooks::custom).takes::<CustomEventRequest>(),
        route(Patch, "/api/v1/webhooks/{id}", Login, webhooks::change).takes::<PatchWebhookRequest>(),
        route(Delete, "/api/v1/webhooks/{id}", Login, webhooks::delete),
        route(Post, "/api/v1/webhooks/{id}/test", Login, webhooks::test),
    ]
}
