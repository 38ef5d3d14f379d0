//! How a group works, as its caller wants it.

use std::sync::Arc;
use std::time::Duration;

use instep_recorder::GroupRecorder;

use crate::partition::NetworkChannels;
use crate::{NewestGeneration, Secret, partition};

/// How a group works. All ranks must use the same `slot_bytes`.
#[derive(Clone, Debug)]
pub struct Options {
    /// How messages call this host; its own name unless given.
    pub host: Option<String>,
    /// How long an operation may take that does not say so itself.
    pub timeout: Duration,
    /// Whether peers read long messages straight out of each other's memory, if the kernel permits it.
    pub single_copy: bool,
    /// Bytes of a slot in shared memory, two of which every rank has. A step uses a part of it, to stay in the private
    /// cache, and a larger one when there are more ranks than cores.
    pub slot_bytes: usize,
    /// How many threads of a rank share the work of a large operation inside a host, up to eight; unless given, one
    /// for each core that a rank has, up to four. The smallest number of all ranks holds.
    pub channels: Option<usize>,
    /// What each of them moves at least. The largest number of all ranks holds.
    pub channel_bytes: usize,
    /// How many threads of a rank, with connections of their own, share the work of a large operation between hosts, up to
    /// eight; unless given, one for each core that a rank has, up to four, or eight if it encrypts. The smallest number
    /// of all ranks holds.
    pub network_channels: Option<usize>,
    /// What each of them moves at least. The largest number of all ranks holds.
    pub network_channel_bytes: usize,
    /// How many ranks of the job share the cores of this host; those of the group unless given.
    pub local_world: Option<usize>,
    /// What the bytes travel through.
    pub transport: TransportChoice,
    /// The network interfaces to be reached at (`"eth0"`, or several with commas between), all unless given.
    pub interface: Option<String>,
    /// Where the operations are written down for those who ask why a job hangs.
    pub recorder: Option<Arc<GroupRecorder>>,
    /// What ranks of other hosts must know to be let in; all ranks have the same, or none has one.
    pub secret: Option<Secret>,
    /// Encrypts what goes to ranks that share no memory, under keys of the secret. All ranks do, or none.
    pub encrypt: bool,
    /// Sums in the order of ranks whatever the hosts: the same bits on every topology, for more bytes between hosts. If one
    /// rank says so, all do.
    pub canonical: bool,
    /// Who may say that connecting is in vain.
    pub newest: NewestGeneration,
    /// Ranks with different names here share no memory even if they could, as if they were on different hosts: for tests.
    pub island: Option<String>,
}

impl Options {
    /// What a rank offers to use between hosts. Where nobody says how many ranks share the cores, it has them for itself.
    pub(crate) fn offered_channels(&self) -> NetworkChannels {
        let ours = || {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let ranks = self.local_world.unwrap_or(1);
            // Ciphers take more of a core than sockets do.
            if self.encrypt { partition::encrypted_channels(ranks, cores) } else { partition::channels(ranks, cores) }
        };
        NetworkChannels::new(self.network_channels.unwrap_or_else(ours), self.network_channel_bytes)
    }
}

/// What the bytes of a group travel through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// Shared memory if all ranks share it, TCP otherwise.
    #[default]
    Automatic,
    /// TCP also inside a host; if one rank says so, all use it.
    Tcp,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            host: None,
            timeout: Duration::from_secs(30 * 60),
            single_copy: true,
            slot_bytes: 1 << 20,
            channels: None,
            channel_bytes: 512 << 10,
            network_channels: None,
            network_channel_bytes: 512 << 10,
            local_world: None,
            transport: TransportChoice::Automatic,
            interface: None,
            recorder: None,
            secret: None,
            encrypt: false,
            canonical: false,
            newest: NewestGeneration::default(),
            island: None,
        }
    }
}
