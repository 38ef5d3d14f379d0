//! The key that both sides have before they speak.

use std::fmt;

use ring::hkdf;

/// A pre-shared key of 32 bytes, for one purpose. It is never printed.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// The key that a secret gives for a purpose: other purposes get keys that have nothing to do with it.
    ///
    /// The secret has to be one that nobody can guess, since whoever records a handshake can try guesses at leisure.
    pub fn derive(purpose: &str, secret: &[u8]) -> Key {
        let mut key = [0; 32];
        let purpose = [purpose.as_bytes()];
        let material = hkdf::Salt::new(hkdf::HKDF_SHA256, b"instep").extract(secret);
        let expanded = material.expand(&purpose, hkdf::HKDF_SHA256).and_then(|output| output.fill(&mut key));
        expanded.expect("32 bytes are less than the 8160 that HKDF gives");
        Key(key)
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Key")
    }
}

#[cfg(test)]
mod tests {
    use super::Key;

    #[test]
    fn keys_differ_by_secret_and_purpose_and_are_never_printed() {
        let key = Key::derive("control", b"secret");
        assert_eq!(key.bytes(), Key::derive("control", b"secret").bytes());
        assert_ne!(key.bytes(), Key::derive("ranks", b"secret").bytes());
        assert_ne!(key.bytes(), Key::derive("control", b"secret2").bytes());
        assert_eq!(format!("{key:?}"), "Key");
    }
}
