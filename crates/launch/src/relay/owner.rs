//! Whose program is at the other end of a connection on this machine.

use std::fs;
use std::net::SocketAddr;

use instep_api::sockets::{TABLES, caller};
use nix::unistd::geteuid;

/// How often the kernel's tables are read: rows are passed over at times while others come and go.
const READS: usize = 3;

/// Who has connected.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A program of the user who runs this launcher.
    ThisUser,
    /// Another one, or nobody knows.
    Other(String),
}

/// Who has connected from `peer` to `own`.
pub(super) fn of(peer: SocketAddr, own: SocketAddr) -> Owner {
    // The table of the address's own family first; a client for both families has its row in the other one.
    let tables = if peer.is_ipv4() { [TABLES[0], TABLES[1]] } else { [TABLES[1], TABLES[0]] };
    let find = || tables.iter().find_map(|table| caller(&fs::read_to_string(table).ok()?, peer, own));
    judge((0..READS).find_map(|_| find()), geteuid().as_raw())
}

fn judge(caller: Option<u32>, own: u32) -> Owner {
    match caller {
        Some(uid) if uid == own => Owner::ThisUser,
        Some(uid) => Owner::Other(format!("it is of Unix user {uid}, the job of {own}")),
        None => Owner::Other("the system does not say whose it is".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Owner, judge, of};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn only_this_user_is_served() {
        assert_eq!(judge(Some(7), 7), Owner::ThisUser);
        for other in [Some(0), Some(8), None] {
            assert!(matches!(judge(other, 7), Owner::Other(_)), "{other:?}");
        }
        assert!(matches!(judge(Some(7), 0), Owner::Other(_)), "root's job is not everybody's");
    }

    #[test]
    fn the_kernel_names_who_has_connected() {
        for place in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(place) else { continue };
            let _client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
            let (accepted, peer) = listener.accept().expect("accepted");
            assert_eq!(of(peer, accepted.local_addr().expect("connected")), Owner::ThisUser, "{place}");
            let nobody = ([127, 0, 0, 1], 1).into();
            assert!(matches!(of(nobody, accepted.local_addr().expect("connected")), Owner::Other(_)), "{place}");
        }
    }
}
