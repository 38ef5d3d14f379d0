//! What is still to be written to one connection: small pieces copied together, large values shared.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};

use crate::protocol::{Sink, Value};

/// From this size on a value is queued by reference: copying less is cheaper than one more piece to write.
const SHARE_FROM_BYTES: usize = 4 << 10;

/// Once a connection has this much to read, shorter values are queued by reference too: copies of a value that one request
/// names again and again would fill the memory.
const COPY_UP_TO_BYTES: usize = 16 << 20;
const SHARE_THEN_FROM_BYTES: usize = 256;

/// What a piece takes besides its bytes, roughly.
const PIECE_BYTES: usize = 64;

/// Small pieces are gathered into blocks of about this size.
const BLOCK_BYTES: usize = 64 << 10;

/// Pieces handed to the kernel in one call.
const PIECES_PER_WRITE: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Output {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece already written.
    written: usize,
    unsent: usize,
}

#[derive(Debug)]
enum Piece {
    Owned(Vec<u8>),
    Shared(Value),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Owned(bytes) => bytes,
            Piece::Shared(value) => value,
        }
    }

    /// The memory that it takes. Outputs that share a value take it together; the store's own share is not counted.
    fn memory(&self) -> usize {
        let bytes = match self {
            Piece::Owned(bytes) => bytes.len(),
            Piece::Shared(value) => value.len().div_ceil(Value::strong_count(value).saturating_sub(1).max(1)),
        };
        bytes + PIECE_BYTES
    }
}

impl Output {
    /// Bytes not yet accepted by the kernel.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent
    }

    /// The memory that the unsent bytes take, at least; other outputs' part of the values that are shared with them left out.
    pub(crate) fn memory(&self) -> usize {
        self.pieces.iter().map(Piece::memory).sum()
    }

    pub(crate) fn push(&mut self, bytes: Vec<u8>) {
        self.unsent += bytes.len();
        self.pieces.push_back(Piece::Owned(bytes));
    }

    /// Writes until all is written or the socket takes no more.
    pub(crate) fn flush(&mut self, stream: &mut impl Write) -> io::Result<()> {
        while self.unsent > 0 {
            match self.write_once(stream) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => self.advance(length),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // Idle connections hold no memory: ten thousand of them must be cheap.
        self.pieces = VecDeque::new();
        self.written = 0;
        Ok(())
    }

    fn write_once(&self, stream: &mut impl Write) -> io::Result<usize> {
        if let [Piece::Owned(only)] = self.pieces.as_slices().0 {
            return stream.write(&only[self.written..]);
        }
        let mut slices = [IoSlice::new(&[]); PIECES_PER_WRITE];
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            let skip = if count == 0 { self.written } else { 0 };
            *slice = IoSlice::new(&piece.bytes()[skip..]);
            count += 1;
        }
        stream.write_vectored(&slices[..count])
    }

    fn advance(&mut self, length: usize) {
        self.unsent -= length;
        self.written += length;
        while let Some(first) = self.pieces.front() {
            let size = first.bytes().len();
            if self.written < size {
                return;
            }
            self.written -= size;
            self.pieces.pop_front();
        }
    }
}

impl Sink for Output {
    fn bytes(&mut self, bytes: &[u8]) {
        self.unsent += bytes.len();
        match self.pieces.back_mut() {
            Some(Piece::Owned(block)) if block.len() < BLOCK_BYTES => block.extend_from_slice(bytes),
            _ => self.pieces.push_back(Piece::Owned(bytes.to_vec())),
        }
    }

    fn shared(&mut self, value: &Value) {
        let share_from = if self.unsent < COPY_UP_TO_BYTES { SHARE_FROM_BYTES } else { SHARE_THEN_FROM_BYTES };
        if value.len() < share_from {
            self.bytes(value);
        } else {
            self.unsent += value.len();
            self.pieces.push_back(Piece::Shared(value.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket that takes a few bytes at a time and now and then none.
    struct Trickle {
        taken: Vec<u8>,
        per_write: usize,
        turn: usize,
    }

    impl Write for Trickle {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.turn += 1;
            if self.turn.is_multiple_of(3) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let length = bytes.len().min(self.per_write);
            self.taken.extend_from_slice(&bytes[..length]);
            Ok(length)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn pieces_leave_in_order_whatever_the_socket_takes() {
        for per_write in [1, 7, 4096, 1 << 20] {
            let mut output = Output::default();
            let mut expected = Vec::new();
            for size in [0, 1, 10, SHARE_FROM_BYTES - 1, SHARE_FROM_BYTES, 3, 3 * BLOCK_BYTES, 5] {
                let value = Value::new((0..size).map(|index| index as u8).collect());
                output.bytes(&[1, 2, 3]);
                output.shared(&value);
                expected.extend_from_slice(&[1, 2, 3]);
                expected.extend_from_slice(&value);
            }
            output.push(vec![9; 10]);
            expected.extend_from_slice(&[9; 10]);
            assert_eq!(output.unsent(), expected.len());
            let mut socket = Trickle { taken: Vec::new(), per_write, turn: 0 };
            while output.unsent() > 0 {
                output.flush(&mut socket).unwrap();
            }
            assert_eq!(socket.taken, expected, "{per_write} bytes a write");
        }
    }
}
