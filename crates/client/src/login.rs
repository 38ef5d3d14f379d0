//! The user a client logs in as.

use std::fmt;

use instep_api::passwords::salted;

/// A user and the password, kept as it is sent: hashed.
#[derive(Clone)]
pub struct Credentials {
    pub(crate) username: String,
    pub(crate) hashed_password: String,
}

impl Credentials {
    /// Takes a name and a password as typed.
    pub fn new(username: impl Into<String>, password: &str) -> Credentials {
        Credentials { username: username.into(), hashed_password: salted(password) }
    }

    /// The name of the user.
    pub fn username(&self) -> &str {
        &self.username
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        assert!(!format!("{:?}", Credentials::new("ann", "Abcdefg1")).contains("5362"));
    }
}
