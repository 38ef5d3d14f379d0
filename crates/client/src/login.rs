//! Who speaks: names, passwords, and how Determined's client sends them.

use std::fmt;
use std::fmt::Write;

use sha2::{Digest, Sha512};

/// The salt of Determined's client.
const SALT: &str = "GubPEmmotfiK9TMD6Zdw";

/// A user and the password, kept as it is sent: hashed.
#[derive(Clone)]
pub struct Credentials {
    pub(crate) username: String,
    pub(crate) hashed_password: String,
}

impl Credentials {
    /// Takes a name and a password as typed.
    pub fn new(username: impl Into<String>, password: &str) -> Credentials {
        Credentials { username: username.into(), hashed_password: password_as_sent(password) }
    }

    /// Who it is.
    pub fn username(&self) -> &str {
        &self.username
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

/// What is sent for a password: SHA-512 over a fixed salt and the password, in hexadecimal; an empty one stays empty.
pub fn password_as_sent(password: &str) -> String {
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
    fn passwords_are_sent_as_determined_sends_them() {
        let expected = "5362e4e4a383cf16daeceb4e16ee733d6214ce15ff23ceff9ff36c7bbcd9884d\
                        ee47b4f0b4c83331c7d91af64ee8da09ab5135a12378d4d97ebf3e300d0ac3bb";
        assert_eq!(password_as_sent("Abcdefg1"), expected);
        assert_eq!(password_as_sent(""), "");
        assert!(!format!("{:?}", Credentials::new("ann", "Abcdefg1")).contains("5362"));
    }
}
