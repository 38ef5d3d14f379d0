//! Passwords: salted by Determined's client, then hashed with argon2.
//!
//! The client never sends a password as typed: it sends SHA-512 of a fixed salt and the password. What arrives is
//! therefore itself a secret, and is hashed once more, with a salt of its own, before it is stored.

use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use sha2::{Digest, Sha256, Sha512};

use crate::random::hexadecimal;

/// The salt of Determined's client.
const CLIENT_SALT: &str = "GubPEmmotfiK9TMD6Zdw";

/// What the client sends for a password; an empty one stays empty.
pub(crate) fn as_client_sends(password: &str) -> String {
    if password.is_empty() {
        return String::new();
    }
    let mut digest = Sha512::new();
    digest.update(CLIENT_SALT);
    digest.update(password);
    hexadecimal(&digest.finalize())
}

/// The hash to store for what a request brought as password; `None` if that is no password at all.
pub(crate) fn to_store(password: &str, is_hashed: bool) -> Option<String> {
    let sent = if is_hashed { password.to_owned() } else { as_client_sends(password) };
    if sent.is_empty() {
        return None;
    }
    let hash = Argon2::default().hash_password(sent.as_bytes());
    Some(hash.expect("the default parameters of argon2 are valid").to_string())
}

/// Whether what a request brought as password belongs to a stored hash. Takes as long as it takes: call it where
/// blocking is allowed.
pub(crate) fn matches(password: &str, is_hashed: bool, stored: &str) -> bool {
    let sent = if is_hashed { password.to_owned() } else { as_client_sends(password) };
    let Ok(hash) = PasswordHash::new(stored) else { return false };
    Argon2::default().verify_password(sent.as_bytes(), &hash).is_ok()
}

/// The hash under which a token is known.
pub(crate) fn token_hash(token: &str) -> String {
    hexadecimal(&Sha256::digest(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_s_salting_is_reproduced() {
        let expected = "5362e4e4a383cf16daeceb4e16ee733d6214ce15ff23ceff9ff36c7bbcd9884d\
                        ee47b4f0b4c83331c7d91af64ee8da09ab5135a12378d4d97ebf3e300d0ac3bb";
        assert_eq!(as_client_sends("Abcdefg1"), expected);
        assert_eq!(as_client_sends(""), "");
    }

    #[test]
    fn a_stored_password_is_recognised_however_it_is_sent() {
        let stored = to_store("Abcdefg1", false).unwrap();
        assert!(matches("Abcdefg1", false, &stored));
        assert!(matches(&as_client_sends("Abcdefg1"), true, &stored));
        assert!(!matches("abcdefg1", false, &stored));
        assert!(!matches("", true, &stored));
        assert_eq!(to_store("", true), None);
        assert!(!matches("x", true, "not a hash"));
    }
}
