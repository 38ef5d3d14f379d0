//! Passwords: salted by Determined's client, then hashed with argon2.
//!
//! The client never sends a password as typed: it sends SHA-512 of a fixed salt and the password. What arrives is
//! therefore itself a secret, and is hashed once more, with a salt of its own, before it is stored.

use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use instep_api::passwords::salted;
use sha2::{Digest, Sha256};

use crate::random::hexadecimal;

/// The hash to store for what a request brought as password; `None` if that is no password at all.
pub(crate) fn to_store(password: &str, is_hashed: bool) -> Option<String> {
    let sent = if is_hashed { password.to_owned() } else { salted(password) };
    if sent.is_empty() {
        return None;
    }
    let hash = Argon2::default().hash_password(sent.as_bytes());
    Some(hash.expect("the default parameters of argon2 are valid").to_string())
}

/// Whether what a request brought as password belongs to a stored hash. Takes as long as it takes: call it where
/// blocking is allowed.
pub(crate) fn matches(password: &str, is_hashed: bool, stored: &str) -> bool {
    let sent = if is_hashed { password.to_owned() } else { salted(password) };
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
    fn a_stored_password_is_recognised_however_it_is_sent() {
        let stored = to_store("Abcdefg1", false).unwrap();
        assert!(matches("Abcdefg1", false, &stored));
        assert!(matches(&salted("Abcdefg1"), true, &stored));
        assert!(!matches("abcdefg1", false, &stored));
        assert!(!matches("", true, &stored));
        assert_eq!(to_store("", true), None);
        assert!(!matches("x", true, "not a hash"));
    }
}
