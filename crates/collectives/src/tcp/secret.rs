//! What the ranks of a job know and nobody else: without it a caller is not let in, even if it has read the addresses.
//!
//! Ranks show that they know it by proofs: hashes of what was just said, nonces of both sides included, under a key made of
//! the secret and of the token of the rank that is called. Neither is sent or printed, and a proof that was overheard is of no
//! use: the next connection has other nonces.

use std::fmt;
use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read};

use instep_noise::Key;

pub(crate) const TOKEN_BYTES: usize = 16;
pub(crate) const NONCE_BYTES: usize = 16;
pub(crate) const PROOF_BYTES: usize = 16;

/// What a rank draws for a connection, so that none is like another.
pub(crate) type Nonce = [u8; NONCE_BYTES];
/// Shows that whoever made it knows the secret, and the token of the rank that is called.
pub(crate) type Proof = [u8; PROOF_BYTES];

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

/// Makes and checks the proofs of connections to one rank.
pub(crate) struct Prover([u8; 32]);

impl Prover {
    /// For the rank with this token. Without a secret, the token is what strangers do not know.
    pub(crate) fn new(secret: Option<&Secret>, token: &[u8; TOKEN_BYTES]) -> Prover {
        Prover(match secret {
            Some(Secret(key)) => *blake3::keyed_hash(key, token).as_bytes(),
            None => blake3::derive_key("instep 2026 handshake of ranks without a secret", token),
        })
    }

    /// Of all these parts; only the last one may vary in length.
    pub(crate) fn proof(&self, parts: &[&[u8]]) -> Proof {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in parts {
            hasher.update(part);
        }
        let hash = hasher.finalize();
        std::array::from_fn(|index| hash.as_bytes()[index])
    }

    /// The key that encrypted connections to this rank begin with.
    pub(crate) fn session_key(&self) -> Key {
        Key::derive("connections between ranks", &self.0)
    }

    /// Whether this is the proof of these parts.
    pub(crate) fn accepts(&self, proof: &Proof, parts: &[&[u8]]) -> bool {
        same(proof, &self.proof(parts))
    }
}

/// Whether two proofs are the same, in the same time wherever they differ.
pub(crate) fn same(one: &Proof, other: &Proof) -> bool {
    let difference = one.iter().zip(other).fold(0, |difference, (one, other)| black_box(difference | (one ^ other)));
    difference == 0
}

/// Numbers that are used once, all made from one seed: who has the seed has them all.
pub(crate) struct Nonces {
    seed: [u8; 32],
    drawn: u64,
}

impl Nonces {
    pub(crate) fn new(seed: [u8; 32]) -> Nonces {
        Nonces { seed, drawn: 0 }
    }

    /// From a seed that nobody else has.
    pub(crate) fn of_system() -> io::Result<Nonces> {
        let mut seed = [0; 32];
        File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut seed)).map(|()| Nonces::new(seed))
    }

    pub(crate) fn draw(&mut self) -> Nonce {
        self.drawn += 1;
        let hash = blake3::keyed_hash(&self.seed, &self.drawn.to_le_bytes());
        std::array::from_fn(|index| hash.as_bytes()[index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_needs_the_secret_the_token_and_every_part() {
        let [one, other] = ["one", "other"].map(Secret::new);
        let (token, parts) = ([7; TOKEN_BYTES], [&b"who"[..], b"what"]);
        let proof = Prover::new(Some(&one), &token).proof(&parts);
        assert!(Prover::new(Some(&Secret::new("one")), &token).accepts(&proof, &parts));
        assert!(!Prover::new(Some(&one), &token).accepts(&proof, &[b"who", b"else"]));
        for prover in [(Some(&other), token), (None, token), (Some(&one), [8; TOKEN_BYTES])] {
            assert!(!Prover::new(prover.0, &prover.1).accepts(&proof, &parts));
        }
        for index in 0..PROOF_BYTES {
            let mut wrong = proof;
            wrong[index] ^= 1;
            assert!(!Prover::new(Some(&one), &token).accepts(&wrong, &parts));
        }
        assert_eq!(format!("{one:?}"), "Secret");
    }

    #[test]
    fn no_nonce_comes_twice() {
        let (mut one, mut other) = (Nonces::of_system().expect("urandom"), Nonces::of_system().expect("urandom"));
        let drawn: std::collections::HashSet<Nonce> = (0..100).flat_map(|_| [one.draw(), other.draw()]).collect();
        assert_eq!(drawn.len(), 200);
    }
}
