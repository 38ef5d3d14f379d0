//! Who is let in: proof of the job's token where there is one, nodes that fit the job, and what all others hear.

use std::time::{Duration, Instant};

use instep_store::{ClientId, Companion, Context};

use super::Coordinator;
use crate::control::channel::{self, EncryptedConnection, Opening};
use crate::control::{self, FromCoordinator, Hello, ToCoordinator, WireTerms};

/// How long a connection may take to say hello, or to ask.
const HELLO_DEADLINE: Duration = Duration::from_secs(30);
/// What every node hears that does not fit the job: what does not fit is for those who lead it.
const REFUSAL: &str = "its job token, job id, options or version of instep are not those of the job";
/// How much of the explanation is shown, whose words are mostly the other node's.
const EXPLANATION_LETTERS: usize = 400;

impl Coordinator {
    /// Takes what has arrived on a connection; gives how many bytes it took.
    pub(super) fn receive(&mut self, client: ClientId, bytes: &[u8], context: &mut Context<'_>) -> usize {
        if self.settings.token.is_some() {
            return self.receive_proved(client, bytes, context);
        }
        if self.peers.contains_key(&client) && bytes.first() == Some(&channel::FIRST_BYTE) {
            let explanation =
                "it has a job token, and this job has none; give all nodes the same --job-token-file, or none";
            self.refuse_unproved(client, explanation, context);
            return bytes.len();
        }
        self.receive_lines(client, bytes, context).unwrap_or(bytes.len())
    }

    /// Sends a message, through the connection's channel if it has one.
    pub(super) fn send(&mut self, client: ClientId, message: &FromCoordinator, context: &mut Context<'_>) {
        let line = control::encode(message);
        match self.encrypted.get_mut(&client).map(|connection| connection.seal(&line)) {
            None => context.send(client, line),
            Some(Ok(sealed)) => context.send(client, sealed),
            Some(Err(_)) => context.close(client),
        }
    }

    /// Closes a connection once what was sent to it is written.
    pub(super) fn close(&mut self, client: ClientId, context: &mut Context<'_>) {
        self.encrypted.remove(&client);
        context.close(client);
    }

    /// Refuses a node that does not fit the job: it hears no more than that, the person who leads the job hears why.
    pub(super) fn refuse_hello(&mut self, client: ClientId, hello: &Hello, reason: &str, context: &mut Context<'_>) {
        let explanation = format!("{} (pid {}): {reason}", hello.address, hello.process);
        let explanation: String = explanation.chars().take(EXPLANATION_LETTERS).collect();
        // Whoever has proved the token may know.
        let heard = if self.encrypted.contains_key(&client) { explanation.clone() } else { REFUSAL.to_owned() };
        self.turn_away(client, heard, explanation, context);
    }

    /// Refuses a connection that has not shown the job's token, or shows one to a job that has none.
    fn refuse_unproved(&mut self, client: ClientId, explanation: &str, context: &mut Context<'_>) {
        // In the clear: there is nothing that both sides could encrypt with.
        self.encrypted.remove(&client);
        self.turn_away(client, REFUSAL.to_owned(), explanation.to_owned(), context);
    }

    fn turn_away(&mut self, client: ClientId, heard: String, explanation: String, context: &mut Context<'_>) {
        if let Some((peer, _)) = self.peers.remove(&client) {
            context.notify_refused(peer, explanation);
        }
        self.send(client, &FromCoordinator::Refused { reason: heard }, context);
        self.close(client, context);
    }

    /// Closes connections that have not said in time who they are; gives when the next one is due.
    pub(super) fn drop_silent_connections(&mut self, context: &mut Context<'_>) -> Option<Instant> {
        // Clients are numbered in the order in which they came.
        while let Some((&client, &(_, since))) = self.peers.first_key_value() {
            let due = since + HELLO_DEADLINE;
            if context.now < due {
                return Some(due);
            }
            self.peers.remove(&client);
            self.close(client, context);
        }
        None
    }

    /// Handles the messages at the start of `bytes`; gives how many bytes they took, or `None` once the connection is closed
    /// because of what it sent.
    fn receive_lines(&mut self, client: ClientId, bytes: &[u8], context: &mut Context<'_>) -> Option<usize> {
        let mut consumed = 0;
        loop {
            match control::decode::<ToCoordinator>(&bytes[consumed..]) {
                Ok(None) => return Some(consumed),
                Ok(Some((message, length))) => {
                    consumed += length;
                    self.handle_message(client, message, context);
                }
                Err(_) => {
                    self.close(client, context);
                    Companion::closed(self, client, context);
                    return None;
                }
            }
        }
    }

    /// The same on a connection that must prove the job's token.
    fn receive_proved(&mut self, client: ClientId, bytes: &[u8], context: &mut Context<'_>) -> usize {
        let mut consumed = 0;
        if !self.encrypted.contains_key(&client)
            && let Some(token) = self.settings.token.as_ref().filter(|_| self.peers.contains_key(&client))
        {
            match channel::opening(bytes, token) {
                Opening::Incomplete => return 0,
                Opening::Unproved => {
                    let explanation = "it has another job token than this job, or none, or another version of instep; \
                                       give all nodes the same --job-token-file and one version";
                    self.refuse_unproved(client, explanation, context);
                    return bytes.len();
                }
                Opening::Begun(connection, length, answer) => {
                    self.encrypted.insert(client, *connection);
                    context.send(client, answer.to_vec());
                    consumed = length;
                }
            }
        }
        // Without one the connection is being closed.
        let Some(connection) = self.encrypted.get_mut(&client) else { return bytes.len() };
        match connection.receive(&bytes[consumed..]) {
            Err(_) => {
                self.close(client, context);
                Companion::closed(self, client, context);
                bytes.len()
            }
            Ok(length) if connection.is_of_a_worker() && self.peers.remove(&client).is_some() => {
                if let Some((envelope, opened)) = self.encrypted.remove(&client).map(EncryptedConnection::into_envelope)
                {
                    context.serve_store(client, Box::new(envelope), opened);
                }
                consumed + length
            }
            Ok(length) => {
                let mut plain = std::mem::take(&mut connection.plain);
                let understood = self.receive_lines(client, &plain, context);
                if let (Some(understood), Some(connection)) = (understood, self.encrypted.get_mut(&client)) {
                    plain.drain(..understood);
                    connection.plain = plain;
                }
                consumed + length
            }
        }
    }

    pub(super) fn refusal_reason(&self, hello: &Hello) -> Option<String> {
        if hello.protocol != control::PROTOCOL {
            let ours = env!("CARGO_PKG_VERSION");
            return Some(format!("it runs instep {}, this node {ours}; use one version", hello.version));
        }
        if hello.run_id != self.settings.run_id {
            let here = &self.settings.run_id;
            return Some(format!("it wants job \"{}\", this one is \"{here}\"", hello.run_id));
        }
        WireTerms::from(&self.settings.terms).disagreement(&hello.terms)
    }
}
