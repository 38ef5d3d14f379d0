//! `instep doctor`: says what is there and what is missing.
