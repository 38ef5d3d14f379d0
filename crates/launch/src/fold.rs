//! Folds identical lines of several ranks into one.
