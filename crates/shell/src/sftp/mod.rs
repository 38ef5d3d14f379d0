//! Files over standard input and output: the protocol of `sftp` and `scp`, version 3
//! (draft-ietf-secsh-filexfer-02), with the extensions that OpenSSH's clients use.
//!
//! One request is done after the other, in order: clients send many ahead, so that nothing is waited for but the disk.

mod attributes;
mod files;
mod protocol;

use std::io::{self, Read, Write};

use files::Files;
use protocol::{Request, answer_to_init};

/// Bytes of a request: OpenSSH's limit.
const LONGEST: u32 = 256 << 10;

/// Serves until the input ends.
pub fn serve(input: &mut impl Read, output: &mut impl Write) -> io::Result<()> {
    let mut files = Files::default();
    while let Some(packet) = read_packet(input)? {
        let answer = match Request::parse(&packet) {
            Some(Request::Init) => answer_to_init(),
            Some(Request::Numbered { number, what }) => files.answer(number, what),
            None => return Err(io::Error::new(io::ErrorKind::InvalidData, "a packet cannot be read")),
        };
        output.write_all(&answer)?;
        output.flush()?;
    }
    Ok(())
}

/// Reads requests without doing what they ask, for whoever tries any bytes. Gives how many packets there are, understood
/// or not.
pub fn count_requests(mut input: &[u8]) -> usize {
    let mut count = 0;
    while let Ok(Some(packet)) = read_packet(&mut input) {
        let _ = Request::parse(&packet);
        count += 1;
    }
    count
}

/// One packet without its length; `None` at the end of the input.
fn read_packet(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match input.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_be_bytes(length);
    if length == 0 || length > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a packet of {length} bytes")));
    }
    let mut packet = vec![0; length as usize];
    input.read_exact(&mut packet)?;
    Ok(Some(packet))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_input_is_served_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(count_requests(&bytes) <= bytes.len() / 4);
        }

        #[test]
        fn what_follows_a_request_does_not_matter(rest in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut packet = vec![protocol::STAT, 0, 0, 0, 7, 0, 0, 0, 1, b'/'];
            packet.extend(rest);
            let parsed = Request::parse(&packet);
            prop_assert!(matches!(parsed, Some(Request::Numbered { number: 7, .. })), "{:?}", parsed);
        }
    }
}
