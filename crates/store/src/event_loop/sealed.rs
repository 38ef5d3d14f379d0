//! Clients of the store whose connections the companion has claimed, and then handed over: what they send and what they are
//! answered goes through the companion's envelope, and is for the rest as with any other client.

use super::{EventLoop, OPENING_DEADLINE, Processed};
use crate::connection::{Opening, Role, Sealed, opening};
use crate::protocol::HELLO;
use crate::state::ClientId;

impl EventLoop {
    /// Takes a connection over from the companion. It has as long as a new one to say that it is a client.
    pub(super) fn serve_sealed(&mut self, client: ClientId, sealed: Sealed) {
        let Some(connection) = self.connections.get_mut(&client).filter(|connection| !connection.closing) else {
            return;
        };
        self.incomplete += sealed.opened.len();
        connection.leave_companion(sealed);
        self.openings.push_back((self.now + OPENING_DEADLINE, client));
    }

    /// Opens what has arrived, and processes what it holds together with what was left over.
    pub(super) fn process_sealed(&mut self, client: ClientId, bytes: &[u8]) -> Processed {
        let Some(connection) = self.connections.get_mut(&client) else { return Processed::Dropped };
        let Some(sealed) = &mut connection.sealed else { return Processed::Dropped };
        let before = sealed.opened.len();
        let consumed = sealed.envelope.open(bytes, &mut sealed.opened);
        let mut opened = std::mem::take(&mut sealed.opened);
        self.incomplete -= before;
        let Ok(consumed) = consumed else {
            self.connection_lost(client);
            return Processed::Dropped;
        };
        let Processed::Consumed(processed) = self.process_opened(client, &opened) else { return Processed::Dropped };
        let Some(connection) = self.connections.get_mut(&client) else { return Processed::Dropped };
        opened.drain(..processed);
        self.incomplete += opened.len();
        if before == 0 || processed > 0 {
            connection.input_since = Some(self.now);
        }
        if let Some(sealed) = &mut connection.sealed {
            sealed.opened = opened;
        }
        Processed::Consumed(consumed)
    }

    fn process_opened(&mut self, client: ClientId, opened: &[u8]) -> Processed {
        let Some(connection) = self.connections.get_mut(&client) else { return Processed::Dropped };
        if connection.role == Role::Store {
            return self.process_store(client, opened);
        }
        match opening(opened, connection.peer, |_| false) {
            Opening::Incomplete | Opening::Companion => Processed::Consumed(0),
            Opening::Unknown(notice) => self.disconnect_with(client, notice),
            Opening::Store => {
                connection.role = Role::Store;
                self.state.connect(client);
                match self.process_store(client, &opened[HELLO.len()..]) {
                    Processed::Consumed(length) => Processed::Consumed(HELLO.len() + length),
                    Processed::Dropped => Processed::Dropped,
                }
            }
        }
    }
}
