//! What a rank called, small enough to be compared with what the others called.

use std::fmt;

use crate::dtype::{DataType, Reduction};
use crate::{Error, Rank};

/// Which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Every rank gets the reduction of all inputs.
    AllReduce = 1,
    /// One rank gets it.
    Reduce,
    /// Every rank gets one rank's buffer.
    Broadcast,
    /// Every rank gets all inputs.
    AllGather,
    /// One rank gets all inputs.
    Gather,
    /// Every rank gets its part of one rank's input.
    Scatter,
    /// Every rank gets the reduction of its part of all inputs.
    ReduceScatter,
    /// Every rank gets its part of all inputs.
    AllToAll,
    /// Nobody goes on before all have come.
    Barrier,
    /// One rank gives a buffer to another.
    Send,
    /// One rank takes it from the other, or from whoever is first.
    Receive,
}

impl Kind {
    const ALL: [Kind; 11] = [
        Kind::AllReduce,
        Kind::Reduce,
        Kind::Broadcast,
        Kind::AllGather,
        Kind::Gather,
        Kind::Scatter,
        Kind::ReduceScatter,
        Kind::AllToAll,
        Kind::Barrier,
        Kind::Send,
        Kind::Receive,
    ];

    /// As torch spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::AllReduce => "all_reduce",
            Kind::Reduce => "reduce",
            Kind::Broadcast => "broadcast",
            Kind::AllGather => "all_gather",
            Kind::Gather => "gather",
            Kind::Scatter => "scatter",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::AllToAll => "all_to_all",
            Kind::Barrier => "barrier",
            Kind::Send => "send",
            Kind::Receive => "receive",
        }
    }

    /// Between two ranks, outside of the order of operations.
    pub(crate) const fn is_message(self) -> bool {
        matches!(self, Kind::Send | Kind::Receive)
    }
}

/// The fingerprint of a call: what must be equal on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The operation.
    pub kind: Kind,
    /// Its element type.
    pub dtype: DataType,
    /// Elements of one rank's part; 0 where parts may differ.
    pub count: u64,
    /// The root, of operations that have one; of a message: the other rank, none when it may come from any.
    pub root: Option<Rank>,
    reduction: u8,
    /// The bits of a factor; of a message: its tag.
    factor: u64,
}

/// In place of a reduction: a pair's share of an all_to_all.
const SENDING: u8 = 100;
const EXPECTING: u8 = 101;

/// How many words a call takes in shared memory.
pub(crate) const CALL_WORDS: usize = 3;

impl Call {
    pub(crate) fn new(kind: Kind, dtype: DataType, count: usize) -> Call {
        Call { kind, dtype, count: count as u64, root: None, reduction: 0, factor: 0 }
    }

    pub(crate) fn rooted(mut self, root: Rank) -> Call {
        self.root = Some(root);
        self
    }

    pub(crate) fn reducing(mut self, reduction: Reduction) -> Result<Call, Error> {
        reduction.check(self.dtype)?;
        self.reduction = reduction.code();
        if let Reduction::PremultipliedSum(factor) = reduction {
            self.factor = factor.to_bits();
        }
        Ok(self)
    }

    /// A message to or from a rank.
    pub(crate) fn message(kind: Kind, bytes: usize, peer: Option<Rank>, tag: u64) -> Call {
        Call { root: peer, factor: tag, ..Call::new(kind, DataType::Bytes, bytes) }
    }

    /// Of a message.
    pub(crate) fn tag(&self) -> Option<u64> {
        self.kind.is_message().then_some(self.factor)
    }

    /// One pair's share of an all_to_all, as its sender has it.
    pub(crate) fn sending(mut self, count: u64, to: Rank) -> Call {
        (self.count, self.root, self.reduction) = (count, Some(to), SENDING);
        self
    }

    /// One pair's share of an all_to_all, as its receiver has it.
    pub(crate) fn expecting(mut self, count: u64, from: Rank) -> Call {
        (self.count, self.root, self.reduction) = (count, Some(from), EXPECTING);
        self
    }

    pub(crate) fn words(&self) -> [u64; CALL_WORDS] {
        let root = self.root.map_or(0, |root| root.0 as u64 + 1);
        let kinds = u64::from(self.kind as u8) | u64::from(self.dtype as u8) << 8 | u64::from(self.reduction) << 16;
        [kinds | root << 32, self.count, self.factor]
    }

    pub(crate) fn from_words(words: [u64; CALL_WORDS]) -> Option<Call> {
        let [kinds, count, factor] = words;
        Some(Call {
            kind: Kind::ALL.into_iter().find(|kind| *kind as u8 == kinds as u8)?,
            dtype: DataType::from_code((kinds >> 8) as u8)?,
            count,
            root: ((kinds >> 32) as usize).checked_sub(1).map(Rank),
            reduction: (kinds >> 16) as u8,
            factor,
        })
    }

    /// A number that differs when the words differ, for all practical purposes.
    pub(crate) fn fingerprint(&self, sequence: u64) -> u64 {
        self.words().into_iter().chain([sequence]).fold(0x9e37_79b9_7f4a_7c15, |state, word| {
            let hashed = (state ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
            hashed ^ (hashed >> 29)
        })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.kind.name())?;
        match self.kind {
            Kind::Barrier => return Ok(()),
            Kind::Send | Kind::Receive => {
                let direction = if self.kind == Kind::Send { "to" } else { "from" };
                let peer = self.root.map_or_else(|| "any rank".to_owned(), |peer| format!("rank {peer}"));
                return write!(formatter, "({} bytes {direction} {peer}, tag {})", self.count, self.factor);
            }
            Kind::AllToAll => {
                let dtype = self.dtype.name();
                return match (self.reduction, self.root) {
                    (SENDING, Some(peer)) => write!(formatter, "({} × {dtype} to rank {peer})", self.count),
                    (EXPECTING, Some(peer)) => write!(formatter, "({} × {dtype} from rank {peer})", self.count),
                    _ => write!(formatter, "({dtype})"),
                };
            }
            _ => write!(formatter, "({} × {}", self.count, self.dtype.name())?,
        }
        if let Some(reduction) = Reduction::name_of_code(self.reduction) {
            write!(formatter, ", {reduction}")?;
            if self.factor != 0 {
                write!(formatter, " by {}", f64::from_bits(self.factor))?;
            }
        }
        if let Some(root) = self.root {
            write!(formatter, ", root {root}")?;
        }
        formatter.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_survive_shared_memory_and_differ_by_every_field() {
        let base = Call::new(Kind::Reduce, DataType::F32, 10).rooted(Rank(3));
        let calls = [
            base.reducing(Reduction::Sum).unwrap(),
            base.reducing(Reduction::Max).unwrap(),
            base.reducing(Reduction::PremultipliedSum(2.0)).unwrap(),
            base.reducing(Reduction::PremultipliedSum(3.0)).unwrap(),
            base.rooted(Rank(0)),
            Call { count: 11, ..base },
            Call { dtype: DataType::BF16, ..base },
            Call { kind: Kind::Gather, ..base },
        ];
        for (index, call) in calls.iter().enumerate() {
            assert_eq!(Call::from_words(call.words()), Some(*call));
            for other in &calls[..index] {
                assert_ne!(call.fingerprint(7), other.fingerprint(7), "{call} and {other}");
            }
            assert_ne!(call.fingerprint(7), call.fingerprint(8));
        }
    }

    #[test]
    fn a_call_reads_as_the_user_wrote_it() {
        let call = Call::new(Kind::Reduce, DataType::F32, 10).rooted(Rank(3)).reducing(Reduction::Average).unwrap();
        assert_eq!(call.to_string(), "reduce(10 × f32, AVG, root 3)");
        assert_eq!(Call::new(Kind::Barrier, DataType::Bytes, 0).to_string(), "barrier");
        let send = Call::message(Kind::Send, 12, Some(Rank(3)), 7);
        assert_eq!(send.to_string(), "send(12 bytes to rank 3, tag 7)");
        assert_eq!(Call::from_words(send.words()), Some(send));
        assert_eq!(Call::message(Kind::Receive, 0, None, 0).to_string(), "receive(0 bytes from any rank, tag 0)");
    }
}
