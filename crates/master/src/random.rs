//! Tokens and identifiers that nobody can guess.

use std::fmt::Write;

/// 256 bits for a token, in hexadecimal.
pub(crate) fn token() -> String {
    hexadecimal(&bytes::<32>())
}

/// A UUID of version 4.
pub(crate) fn uuid() -> String {
    let mut bytes = bytes::<16>();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let digits = hexadecimal(&bytes);
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

/// Random bytes from the system.
pub(crate) fn bytes<const COUNT: usize>() -> [u8; COUNT] {
    let mut bytes = [0; COUNT];
    // Linux has had this call for ten years, and it only fails where it is forbidden; going on without would be unsafe.
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    bytes
}

/// Bytes in hexadecimal.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Infallible: writing to a string.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::uuid;

    #[test]
    fn uuids_are_of_version_4() {
        let one = uuid();
        assert_eq!((one.len(), &one[14..15]), (36, "4"));
        assert!("89ab".contains(&one[19..20]));
        assert_ne!(one, uuid());
    }
}
