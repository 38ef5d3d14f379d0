//! The private `instep._native` extension module.
