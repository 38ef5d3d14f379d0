//! Messages as lines: one JSON object each, bounded in length, with texts that are fit to be shown.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::text;

/// Longest line either side accepts.
pub const MAX_LINE_BYTES: usize = 1 << 20;

/// The first byte of a launcher's connection.
pub const FIRST_BYTE: u8 = b'{';

/// One message as a line.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("messages hold nothing that JSON cannot say");
    line.push(b'\n');
    line
}

/// Why a line could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No line end within [`MAX_LINE_BYTES`].
    #[error("a line is longer than {MAX_LINE_BYTES} bytes")]
    TooLong,
    /// Not one of ours.
    #[error("not a message of this protocol")]
    Malformed(#[source] serde_json::Error),
}

/// Takes the first message off `bytes`: the message and how many bytes it took, or `None` if it is not complete.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<Option<(M, usize)>, ControlError> {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
        return if bytes.len() > MAX_LINE_BYTES { Err(ControlError::TooLong) } else { Ok(None) };
    };
    let mut message: Value = serde_json::from_slice(&bytes[..end]).map_err(ControlError::Malformed)?;
    text::clean(&mut message);
    Ok(Some((serde_json::from_value(message).map_err(ControlError::Malformed)?, end + 1)))
}

#[cfg(test)]
mod tests {
    use super::super::messages::{FromCoordinator, ToCoordinator};
    use super::{decode, encode};
    use proptest::prelude::{any, proptest};

    #[test]
    fn messages_survive_encoding_and_decoding() {
        let message = ToCoordinator::Leaving { cause: "received SIGTERM".to_owned(), failed: false };
        let line = encode(&message);
        assert_eq!(line.first(), Some(&b'{'));
        assert_eq!(decode::<ToCoordinator>(&line).expect("valid").expect("complete"), (message, line.len()));
        assert!(decode::<FromCoordinator>(b"{\"complete\":{}}").expect("so far fine").is_none());
        assert!(decode::<FromCoordinator>(b"{\"what\":{}}\n").is_err());
    }

    #[test]
    fn what_others_say_is_fit_to_be_shown_once_it_is_read() {
        let hostile = ToCoordinator::Leaving { cause: "bye\u{1b}]0;owned\u{7}\nerror: x".to_owned(), failed: true };
        let (read, _) = decode::<ToCoordinator>(&encode(&hostile)).expect("valid").expect("complete");
        assert_eq!(read, ToCoordinator::Leaving { cause: "bye ]0;owned  error: x".to_owned(), failed: true });
    }

    proptest! {
        #[test]
        fn decoding_any_bytes_does_not_panic(bytes in any::<Vec<u8>>()) {
            let _ = decode::<ToCoordinator>(&bytes);
            let _ = decode::<FromCoordinator>(&bytes);
        }
    }
}
