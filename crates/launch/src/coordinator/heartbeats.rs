//! Which nodes are still there: silence and lost connections, and this process's own pauses, after which it knows nothing.

use std::time::Duration;

use instep_policy::failure_detector::FailureDetector;
use instep_policy::membership::{Event, NodeId};
use instep_store::Context;
use serde_json::json;

use super::recovery::LostNode;
use super::{Coordinator, CoordinatorSettings, JoinedNode};
use crate::control::FromCoordinator;
use crate::control::heartbeat::Heartbeat;

impl CoordinatorSettings {
    /// How silent launchers are noticed from now on. Launchers of an elastic job go elsewhere while this process sleeps.
    pub(super) fn failure_detector(&self) -> Option<FailureDetector> {
        let detector = |heartbeat: Heartbeat| {
            FailureDetector::new(heartbeat.interval, heartbeat.coordinator_window(), Duration::ZERO)
        };
        let detector = self.heartbeat.map(detector)?;
        Some(if self.terms.elastic() { detector.counting_sleep() } else { detector })
    }
}

impl Coordinator {
    /// Something came from a node, so it was there a moment ago.
    pub(super) fn note_heard(&mut self, node: NodeId, context: &Context<'_>) {
        let now = self.now(context);
        // What is read right after a sleep may have been said long before.
        let is_fresh = |detector: &&FailureDetector| {
            self.paused_until.is_zero() || now > self.paused_until + detector.interval() / 2
        };
        let detector = self.detector.as_ref().filter(is_fresh);
        if let (Some(detector), Some(joined_node)) = (detector, self.joined.get_mut(&node)) {
            joined_node.heard = detector.awake_time(now);
        }
    }

    /// Gives up those who do not speak; once an interval at least.
    pub(super) fn check_heartbeats(&mut self, context: &mut Context<'_>) {
        self.detect_own_pause(context);
        let now = self.now(context);
        let Some(detector) = &self.detector else { return };
        let silent = self.joined.iter().filter(|(_, joined_node)| !joined_node.host);
        let silent =
            silent.filter_map(|(node, joined_node)| Some((*node, detector.suspicion(joined_node.heard, now)?)));
        let silent: Vec<(NodeId, String)> = silent.collect();
        let interval = detector.interval();
        self.next_heartbeat_check = context.now + interval;
        self.drop_silent_nodes(silent, context);
    }

    /// If this process was stopped for so long that the launchers have given it up, what they said before is void: they
    /// may have gone on elsewhere. To be called before anything else in a turn.
    pub(super) fn detect_own_pause(&mut self, context: &mut Context<'_>) {
        let now = self.now(context);
        let (Some(detector), Some(heartbeat)) = (&mut self.detector, self.settings.heartbeat) else { return };
        let away = detector.tick(now);
        if !away.is_zero() {
            self.paused_until = now;
        }
        if !detector.outlasts(away, heartbeat.window()) || !self.settings.terms.elastic() {
            return;
        }
        let cause = "this launcher was suspended and cannot know what the others did";
        let joined_nodes = self.joined.iter().filter(|(_, joined_node)| !joined_node.host);
        let joined_nodes = joined_nodes.map(|(node, _)| (*node, cause.to_owned())).collect();
        self.drop_silent_nodes(joined_nodes, context);
    }

    /// Gives up nodes that may be alive, and tells them.
    pub(super) fn drop_silent_nodes(&mut self, nodes: Vec<(NodeId, String)>, context: &mut Context<'_>) {
        let mut lost = Vec::new();
        for (node, cause) in nodes {
            let Some(joined_node) = self.joined.remove(&node) else { continue };
            self.send(joined_node.client, &FromCoordinator::Dropped { reason: cause.clone() }, context);
            self.close(joined_node.client, context);
            let JoinedNode { name, host, .. } = joined_node;
            self.settings.events.note("node_lost", json!({"node": name, "cause": cause, "silent": true}));
            lost.push(LostNode { node, name, cause, silent: true, host });
        }
        let silent = self.keep_for_recovery(lost);
        if !silent.is_empty() {
            let nodes = silent.into_iter().map(|lost| (lost.node, lost.cause)).collect();
            self.handle_event(Event::Silent { nodes }, context);
        }
    }

    pub(super) fn handle_lost_node(&mut self, node: NodeId, cause: &str, context: &mut Context<'_>) {
        let Some(JoinedNode { name, host, .. }) = self.joined.remove(&node) else { return };
        self.settings.events.note("node_lost", json!({"node": name, "cause": cause, "silent": false}));
        let lost = LostNode { node, name, cause: cause.to_owned(), silent: false, host };
        for lost in self.keep_for_recovery(vec![lost]) {
            self.handle_event(lost.event(), context);
        }
    }
}
