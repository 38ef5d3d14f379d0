//! Passwords: salted by Determined's client, then hashed with argon2.
//!
//! The client never sends a password as typed: it sends SHA-512 of a fixed salt and the password. What arrives is
//! therefore itself a secret, and is hashed once more, with a salt of its own, before it is stored. Users who were taken
//! over from Determined have its hash, bcrypt, until they log in.

use std::sync::Mutex;

use argon2::password_hash::phc::{Output, ParamsString, PasswordHash, Salt};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use instep_api::passwords::salted;
use sha2::{Digest, Sha256};

use crate::random::{bytes, hexadecimal};
use crate::sync::lock;

/// Bytes of a salt and of a hash.
const SALT: usize = 16;
const HASH: usize = Params::DEFAULT_OUTPUT_LEN;

/// Bytes that bcrypt looks at, and that Determined gives it.
const BCRYPT_LIMIT: usize = 72;

/// What a stored hash may cost: one of a database that was taken over may say anything.
const HIGHEST_BCRYPT_COST: u32 = 15;
const HIGHEST_ARGON2_KIBIBYTES: u32 = 256 << 10;
const HIGHEST_ARGON2_PASSES: u32 = 16;

/// The memory of hashings that have ended, for the next: as much as was in use at once. The allocator would keep it
/// too, but once for every few logins, in pieces that fit nothing else.
static MEMORY: Mutex<Vec<Vec<Block>>> = Mutex::new(Vec::new());

/// The hash to store for what a request brought as password; `None` if that is no password at all.
pub(crate) fn to_store(password: &str, is_hashed: bool) -> Option<String> {
    let sent = if is_hashed { password.to_owned() } else { salted(password) };
    if sent.is_empty() {
        return None;
    }
    let (salt, params): ([u8; SALT], _) = (bytes(), Params::default());
    let valid = "the default parameters of argon2 are valid";
    let hash = PasswordHash {
        algorithm: Algorithm::default().ident(),
        version: Some(Version::default().into()),
        params: ParamsString::try_from(&params).expect(valid),
        salt: Some(Salt::new(&salt).expect(valid)),
        hash: Some(hashed(&Argon2::from(params), &sent, &salt).expect(valid)),
    };
    Some(hash.to_string())
}

/// Whether what a request brought as password belongs to a stored hash. Takes as long as it takes: call it where
/// blocking is allowed.
pub(crate) fn matches(password: &str, is_hashed: bool, stored: &str) -> bool {
    let sent = if is_hashed { password.to_owned() } else { salted(password) };
    if is_of_determined(stored) {
        let cost = stored.get(4..6).and_then(|cost| cost.parse::<u32>().ok());
        if cost.is_none_or(|cost| cost > HIGHEST_BCRYPT_COST) {
            return false;
        }
        let sent = sent.as_bytes();
        return bcrypt::verify(&sent[..sent.len().min(BCRYPT_LIMIT)], stored).unwrap_or(false);
    }
    let found = || {
        let stored = PasswordHash::new(stored).ok()?;
        let algorithm = Algorithm::try_from(stored.algorithm.as_str()).ok()?;
        let version = stored.version.map_or(Ok(Version::default()), Version::try_from).ok()?;
        let params = Params::try_from(&stored)
            .ok()
            .filter(|params| params.m_cost() <= HIGHEST_ARGON2_KIBIBYTES && params.t_cost() <= HIGHEST_ARGON2_PASSES)?;
        let argon2 = Argon2::new(algorithm, version, params);
        // Two outputs are compared in a time that does not depend on where they differ.
        Some(hashed(&argon2, &sent, &stored.salt?)? == stored.hash?)
    };
    found().unwrap_or(false)
}

/// Whether a hash was taken over from Determined, and is to be replaced by one of ours when its password is known.
pub(crate) fn is_of_determined(stored: &str) -> bool {
    stored.starts_with("$2")
}

/// Hashes with memory that is used again.
fn hashed(argon2: &Argon2<'_>, sent: &str, salt: &[u8]) -> Option<Output> {
    let blocks = argon2.params().block_count();
    let mut memory = lock(&MEMORY).pop().unwrap_or_default();
    memory.resize(memory.len().max(blocks), Block::default());
    let mut hash = [0; HASH];
    let done = argon2.hash_password_into_with_memory(sent.as_bytes(), salt, &mut hash, &mut memory[..blocks]);
    lock(&MEMORY).push(memory);
    done.ok()?;
    Output::new(&hash).ok()
}

/// The hash under which a token is known.
pub(crate) fn token_hash(token: &str) -> String {
    hexadecimal(&Sha256::digest(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_that_determined_stored_is_recognised() {
        let sent = salted("Abcdefg1");
        let stored = bcrypt::hash_with_salt(&sent.as_bytes()[..BCRYPT_LIMIT], 4, [7; 16]).unwrap().to_string();
        assert!(is_of_determined(&stored));
        assert!(matches("Abcdefg1", false, &stored) && matches(&sent, true, &stored));
        assert!(!matches("Abcdefg2", false, &stored) && !matches("", false, &stored));
        assert!(!matches("Abcdefg1", false, "$2a$04$damaged"));
        assert!(!is_of_determined(&to_store("Abcdefg1", false).unwrap()));
    }

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

    #[test]
    fn a_hash_that_costs_too_much_is_nobodys() {
        let stored = to_store("Abcdefg1", false).unwrap();
        let (m, t) = (Params::DEFAULT_M_COST, Params::DEFAULT_T_COST);
        for dear in [
            stored.replace(&format!("m={m}"), "m=4000000"),
            stored.replace(&format!("t={t}"), "t=1000"),
            bcrypt::hash("x", 4).unwrap().replacen("$04$", "$31$", 1),
        ] {
            assert_ne!(dear, stored);
            assert!(!matches("Abcdefg1", false, &dear));
        }
    }

    #[test]
    fn hashes_of_earlier_versions_and_of_argon2_itself_are_recognised() {
        use argon2::password_hash::{PasswordHasher, PasswordVerifier};
        let theirs = Argon2::default().hash_password(salted("Abcdefg1").as_bytes()).unwrap().to_string();
        assert!(matches("Abcdefg1", false, &theirs) && !matches("Abcdefg2", false, &theirs));
        let ours = to_store("Abcdefg1", false).unwrap();
        let read = PasswordHash::new(&ours).unwrap();
        assert!(Argon2::default().verify_password(salted("Abcdefg1").as_bytes(), &read).is_ok(), "{ours}");
        assert_ne!(to_store("Abcdefg1", false).unwrap(), ours, "each has a salt of its own");
        assert!(ours.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{ours}");
    }
}
