//! What the ranks of a job know and nobody else: without it a caller is not let in, even if it has read the addresses.
//!
//! Ranks show that they have it by what they make of each other's tokens; it is never sent, and never printed. It keeps
//! strangers out, not those who read the network: nothing else is encrypted.

use std::fmt;
use std::hint::black_box;

const TOKEN_BYTES: usize = 16;

/// A key made of what the user calls the job's secret.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// From any text; all ranks of a job need the same.
    pub fn new(text: &str) -> Secret {
        Secret(blake3::derive_key("instep 2026 handshake of ranks", text.as_bytes()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret")
    }
}

/// What a rank's token becomes on the wire.
pub(crate) fn sealed(secret: Option<&Secret>, token: [u8; TOKEN_BYTES]) -> [u8; TOKEN_BYTES] {
    let Some(Secret(key)) = secret else { return token };
    let hash = blake3::keyed_hash(key, &token);
    std::array::from_fn(|index| hash.as_bytes()[index])
}

/// Whether two tokens are the same, in the same time wherever they differ.
pub(crate) fn same(one: &[u8; TOKEN_BYTES], other: &[u8; TOKEN_BYTES]) -> bool {
    let difference = one.iter().zip(other).fold(0, |difference, (one, other)| black_box(difference | (one ^ other)));
    difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_changes_the_token_and_shows_nothing() {
        let token = [7; TOKEN_BYTES];
        let [one, other] = ["one", "other"].map(Secret::new);
        assert_eq!(sealed(None, token), token);
        assert_eq!(sealed(Some(&one), token), sealed(Some(&Secret::new("one")), token));
        assert_ne!(sealed(Some(&one), token), sealed(Some(&other), token));
        assert_ne!(sealed(Some(&one), token), token);
        assert_eq!(format!("{one:?}"), "Secret");
        assert!(same(&token, &[7; TOKEN_BYTES]));
        for index in 0..TOKEN_BYTES {
            let mut wrong = token;
            wrong[index] ^= 1;
            assert!(!same(&token, &wrong));
        }
    }
}
