//! The keys that open shells, and those by which the machines of a trial reach each other: one pair for each, Ed25519, in the
//! format of OpenSSH's files (PROTOCOL.key).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use instep_api::link::SshKeys;
use ring::signature::{Ed25519KeyPair, KeyPair};

use crate::random;

const KIND: &[u8] = b"ssh-ed25519";
/// Letters of a line.
const LINE: usize = 70;
/// What the part with the secret is filled up to a multiple of.
const BLOCK: usize = 8;

/// A new pair.
pub(crate) fn generate() -> SshKeys {
    from_seed(random::bytes(), random::bytes())
}

/// From what is random of it: the secret itself, and the number that tells whether it was decrypted.
fn from_seed(seed: [u8; 32], check: [u8; 4]) -> SshKeys {
    let pair = Ed25519KeyPair::from_seed_unchecked(&seed).expect("any 32 bytes are a seed");
    let point = pair.public_key().as_ref();
    let public = [text(KIND), text(point)].concat();
    let mut secret = [&check[..], &check, &public, &text(&[&seed[..], point].concat()), &text(b"")].concat();
    let missing = secret.len().next_multiple_of(BLOCK) - secret.len();
    secret.extend((1..=BLOCK).map(|number| number as u8).take(missing));
    let none = text(b"none");
    let whole =
        [b"openssh-key-v1\0", &none[..], &none, &text(b""), &1_u32.to_be_bytes(), &text(&public), &text(&secret)];
    let mut private = "-----BEGIN OPENSSH PRIVATE KEY-----\n".to_owned();
    for line in STANDARD.encode(whole.concat()).as_bytes().chunks(LINE) {
        private.extend(line.iter().map(|byte| char::from(*byte)));
        private.push('\n');
    }
    private.push_str("-----END OPENSSH PRIVATE KEY-----\n");
    SshKeys { private, public: format!("ssh-ed25519 {}\n", STANDARD.encode(public)) }
}

/// With its length before it.
fn text(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("keys are short");
    [&length.to_be_bytes()[..], bytes].concat()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn openssh_finds_the_public_key_in_the_private_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        for keys in [generate(), from_seed([7; 32], [1, 2, 3, 4])] {
            std::fs::write(&path, &keys.private).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            let found = Command::new("ssh-keygen").args(["-y", "-P", "", "-f"]).arg(&path).output().unwrap();
            let found = String::from_utf8_lossy(&found.stdout).into_owned();
            assert_eq!(found.trim_end(), keys.public.trim_end());
        }
        assert_ne!(generate(), generate());
    }
}
