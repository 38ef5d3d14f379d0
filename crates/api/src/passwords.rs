//! How Determined's client sends passwords: never as typed, but salted and hashed.

use std::fmt::Write;

use sha2::{Digest, Sha512};

/// The salt of Determined's client.
const SALT: &str = "GubPEmmotfiK9TMD6Zdw";

/// What is sent for a password: SHA-512 over a fixed salt and the password, in hexadecimal; an empty one stays empty.
pub fn salted(password: &str) -> String {
    if password.is_empty() {
        return String::new();
    }
    let digest = Sha512::new().chain_update(SALT).chain_update(password).finalize();
    digest.iter().fold(String::with_capacity(128), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_salted_as_determined_does() {
        let expected = "5362e4e4a383cf16daeceb4e16ee733d6214ce15ff23ceff9ff36c7bbcd9884d\
                        ee47b4f0b4c83331c7d91af64ee8da09ab5135a12378d4d97ebf3e300d0ac3bb";
        assert_eq!(salted("Abcdefg1"), expected);
        assert_eq!(salted(""), "");
    }
}
