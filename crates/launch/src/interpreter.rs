//! Which Python runs the workers.
